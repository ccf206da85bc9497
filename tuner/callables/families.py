"""Which library an array belongs to."""

from __future__ import annotations

import sys
from typing import Any

import numpy

from tuner.callables.arrays import NUMPY, Family
from tuner.callables.gpu_arrays import CupyFamily, TorchFamily


def family_of(array: Any) -> Family | None:
    """The library that an array belongs to; None for what is no array of NumPy, CuPy or PyTorch."""
    if isinstance(array, numpy.ndarray):
        return NUMPY
    for kind in type(array).__mro__:
        library = kind.__module__.partition(".")[0]
        module = sys.modules.get(library)
        if library == "cupy" and isinstance(array, getattr(module, "ndarray", ())):
            return _made(CupyFamily, module)
        if library == "torch" and isinstance(array, getattr(module, "Tensor", ())):
            return _made(TorchFamily, module)
    return None


#: One family for each library that was met; a dict, since two threads may put the same in.
_FAMILIES: dict[tuple[type, Any], Family] = {}


def _made(kind: type[CupyFamily] | type[TorchFamily], module: Any) -> Family:
    return _FAMILIES.setdefault((kind, module), kind(module))


def shares_memory_with_others(array: Any) -> bool:
    """Whether an array of an unknown library offers its memory: DLPack or the CUDA array interface."""
    return hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")
