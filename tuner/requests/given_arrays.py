"""A caller's arrays as a kernel takes them: seen without copying, checked, and made where they are left out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy

from tuner.callables.arrays import Operand, index_of
from tuner.callables.families import family_of
from tuner.callables.foreign import view
from tuner.declare.problem import Tensor
from tuner.errors import InputError
from tuner.requests.arguments import is_array


def seen(name: str, array: Any) -> Any:
    """An array of NumPy, of CuPy or of PyTorch on a GPU, on the memory of any array.

    Args:
        name: What messages call it.
        array: An array of one of these, or of a library that shares its memory.

    Raises:
        InputError: It is no array, carries gradients, or does not share its memory.
    """
    if not is_array(array):
        raise InputError(f"{name} is an array, got {type(array).__name__}; pass one")
    if getattr(array, "requires_grad", False):
        raise InputError(f"{name} carries gradients, which no kernel sees; pass {name}.detach()")
    family = family_of(array)
    if family is not None and (family.name != "PyTorch" or str(array.device).startswith("cuda")):
        return array
    try:
        # NumPy takes what PyTorch shares by DLPack for memory that may only be read.
        return array.numpy() if family is not None else view(array)
    except (BufferError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{name} shares its memory by DLPack or the CUDA array interface, {type(array).__name__} does not: "
            f"{error}; convert it to NumPy, CuPy or PyTorch"
        ) from error


def operand_of(array: Any) -> Operand:
    """What there is to know of an array that was `seen`."""
    family = family_of(array)
    assert family is not None, "what was seen belongs to a library that is known"
    return family.operand(array)


def check(tensors: Sequence[Tensor], arrays: Sequence[Any], kind: str, dense: bool = True) -> None:
    """Compares arrays with what a kernel reads: its declaration says how they lie in memory.

    Args:
        tensors: The problem's tensors.
        arrays: An array for each, as `seen`.
        kind: ``cuda`` or ``cpu``: where the kernel runs.
        dense: False if gaps between elements do no harm.

    Raises:
        InputError: One has another shape, dtype, order or place than the kernel takes.
    """
    operands = [operand_of(each) for each in arrays]
    for tensor, operand in zip(tensors, operands, strict=True):
        _check_one(tensor, operand, dense)
    devices = sorted({each.device for each in operands})
    if len(devices) > 1:
        places = ", ".join(
            f"{one.name} on {other.device}" for one, other in zip(tensors, operands, strict=True)
        )
        raise InputError(f"all arrays of a call lie on one device, got {places}; bring them together")
    families = sorted({each.family for each in operands})
    if len(families) > 1:  # each of them has streams of its own
        raise InputError(
            f"all arrays of a call are of one library, got {' and '.join(families)}; convert some, e.g. "
            "by cupy.from_dlpack"
        )
    if kind == "cpu" and devices != ["cpu"]:
        raise InputError(
            f"the kernel is for the CPU, got arrays on {devices[0]}; pass arrays of the host's memory"
        )


def _check_one(tensor: Tensor, operand: Operand, dense: bool) -> None:
    name = tensor.name
    if operand.shape != tensor.shape or operand.dtype != tensor.dtype:
        raise InputError(
            f"{name} is {tensor.dtype} of shape {tensor.shape}, got {operand.dtype} of shape "
            f"{operand.shape}; pass such an array, or tune for this one"
        )
    if dense and not _is_dense(operand):
        raise InputError(f"{name} lies in memory row by row without gaps, got another order; copy it")
    if not operand.aligned:
        raise InputError(
            f"{name} begins at a multiple of 16 bytes, as configs were checked, got one in between, such as a "
            "part of an array; copy it"
        )
    if tensor.output and not operand.writable:
        raise InputError(f"{name} is written by the kernel, got an array that is read-only; pass another")


def _is_dense(operand: Operand) -> bool:
    """True for elements row by row without gaps; strides of axes of one element say nothing."""
    step = operand.itemsize
    for size, stride in zip(reversed(operand.shape), reversed(operand.strides), strict=True):
        if size > 1 and stride != step and 0 not in operand.shape:
            return False
        step *= size
    return True


def made(tensor: Tensor, like: Any) -> Any:
    """A new array for an output, of the library and on the device of another; NumPy's if there is none.

    Args:
        tensor: The output.
        like: An array as a caller passed it, or None.
    """
    family = None if like is None else family_of(like)
    if family is not None and family.name == "PyTorch":
        return like.new_empty(tensor.shape, dtype=getattr(sys.modules["torch"], tensor.dtype))
    operand = None if like is None else operand_of(seen(tensor.name, like))
    if operand is None or operand.family == "NumPy":
        return numpy.empty(tensor.shape, tensor.dtype)
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(index_of(operand.device)):
        return cupy.ndarray(tensor.shape, numpy.dtype(tensor.dtype))
