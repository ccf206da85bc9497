"""Runs of compiled CPU kernels that notice what they must not touch: guards, and forbidden pages."""

import ctypes
import importlib.util
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.workers.inputs import own_draw

Compiled = Callable[..., None]
Build = Callable[[Kernel, Problem, Config], Compiled]
#: Bytes before and after an array: all bits set, which is NaN in a float.
GUARD, POISON = 512, 0xFF


def loaded(path: Path) -> ModuleType:
    """A file as a module, which Numba finds by its name."""
    spec = importlib.util.spec_from_file_location(path.name.partition(".")[0], path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def guarded(shape: tuple[int, ...], dtype: str, shift: int = 0) -> tuple[np.ndarray, slice, np.ndarray]:
    """A poisoned array, `shift` elements after an aligned address: all bytes, its place in them, itself."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = np.full(size + 2 * GUARD + 128, POISON, np.uint8)
    start = -whole.ctypes.data % 64 + GUARD + shift * np.dtype(dtype).itemsize
    return whole, slice(start, start + size), whole[start : start + size].view(dtype).reshape(shape)


def check(run: Compiled, problem: Problem, shift: int = 0, size: float = 1000.0) -> None:
    """Runs on poisoned output and compares with float64; nothing around the output may change."""
    random, inputs = np.random.default_rng(1), {}
    for tensor in problem.inputs:
        inputs[tensor.name] = guarded(tensor.shape, tensor.dtype)[2]
        own = own_draw(np, problem, tensor, inputs[tensor.name].size, 1)
        inputs[tensor.name][...] = (size * random.standard_normal(tensor.shape)) if own is None else own[0]
    (out,) = problem.outputs
    whole, place, result = guarded(out.shape, out.dtype, shift)
    run(*inputs.values(), result, *(np.dtype(own.dtype).type(own.value).item() for own in problem.scalars))
    reference = problem.operation.reference(np, problem, inputs)
    allowed = problem.tolerance * (np.sqrt(np.mean(reference**2)) + np.abs(reference))
    assert np.all(np.abs(result - reference) <= allowed), str(problem)
    assert np.all(whole[: place.start] == POISON), f"{problem}: written before the output"
    assert np.all(whole[place.stop :] == POISON), f"{problem}: written after the output"


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
