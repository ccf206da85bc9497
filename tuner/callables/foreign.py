"""Arrays of other libraries, which share their memory by DLPack or the CUDA array interface."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy

#: DLPack's number for memory of the host.
_HOST = 1


def called(function: Callable[..., Any], arrays: tuple[Any, ...], out: Any) -> Any:
    """Calls a function on views of other libraries' arrays, and gives the result back to the library.

    Args:
        function: `tuner.matmul`, `gemv` or `transpose`.
        arrays: Arrays of one library.
        out: One more to write, or None.

    Returns:
        An array of the library, where it can take one; else one of CuPy or NumPy. Or `out`.

    Raises:
        TypeError: A library that shares the memory of neither a GPU nor the host.
    """
    views = [view(each) for each in arrays]
    if out is not None:
        function(*views, out=view(out))
        return out
    return given_back(function(*views), arrays[0])


def view(array: Any) -> Any:
    """A NumPy or CuPy array on the memory of another library's array."""
    on_host = hasattr(array, "__dlpack_device__") and int(array.__dlpack_device__()[0]) == _HOST
    if on_host:
        return numpy.from_dlpack(array)
    from tuner.devices.calling import adopted

    return adopted(array)


def given_back(result: Any, like: Any) -> Any:
    """The result as an array of the library of another: by the array API standard's ``from_dlpack``."""
    namespace = getattr(like, "__array_namespace__", None)
    library = namespace() if namespace else sys.modules.get(type(like).__module__.partition(".")[0])
    take = getattr(library, "from_dlpack", None)
    return take(result) if take else result
