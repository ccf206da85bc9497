"""Arrays between pages that may not be touched: one element read or written outside ends the process."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable

import numpy as np

from tuner.declare.problem import Problem


def fenced(shape: tuple[int, ...], dtype: str, at_end: bool) -> np.ndarray:
    """An array that ends where a forbidden page begins, or begins where one ends."""
    count, page = int(np.prod(shape)), mmap.PAGESIZE
    size = count * np.dtype(dtype).itemsize
    inside = -(-size // page) * page
    memory = mmap.mmap(-1, inside + 2 * page)
    start = np.frombuffer(memory, np.uint8).ctypes.data
    for place in (start, start + page + inside):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(place), page, 0) == 0
    offset = page + (inside - size if at_end else 0)
    return np.frombuffer(memory, dtype, count, offset).reshape(shape)


def stays_inside(run: Callable[..., None], problem: Problem) -> bool:
    """Runs a compiled kernel on fenced arrays, in a forked child that may die of it; False where it did."""
    child = os.fork()
    if child == 0:
        try:
            for at_end in (True, False):
                arrays = [fenced(each.shape, each.dtype, at_end) for each in problem.tensors]
                for each in arrays:
                    each[...] = 1
                run(*arrays, *problem.dims.values())
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
