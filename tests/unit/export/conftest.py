"""CuPy as far as exported modules use it, on NumPy arrays: launches are kept, and computed as a test says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest


class Memory:
    """An address that knows the array it is in."""

    def __init__(self, array: np.ndarray, offset: int = 0, ptr: int = 0) -> None:
        self.array, self.offset, self.ptr = array, offset, ptr

    def __add__(self, offset: int) -> Memory:
        return Memory(self.array, self.offset + offset)

    def copy_from_device_async(self, source: Memory, size: int) -> None:
        raw = source.array.tobytes()[source.offset : source.offset + size]
        self.array.view(np.uint8)[:size] = np.frombuffer(raw, np.uint8)


class Array(np.ndarray):
    """A NumPy array with CuPy's address."""

    address = 0

    @property
    def data(self) -> Memory:
        return Memory(self, ptr=self.address)


class FakeCupy(ModuleType):
    """The module.

    Attributes:
        launches: Name of the function, grid, block, arguments and shared memory of each launch.
        compiled: Source and options of what was compiled.
        compute: What a launch computes with its arguments.
        piece: The array in constant memory.
    """

    def __init__(self) -> None:
        super().__init__("cupy")
        self.ndarray = Array
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(getDevice=lambda: 0), get_current_stream=lambda: SimpleNamespace(ptr=9)
        )
        self.launches: list[tuple[Any, ...]] = []
        self.compiled: list[tuple[str, tuple[str, ...]]] = []
        self.compute: Callable[..., None] = lambda *arguments: None
        self.piece = np.full(256, np.nan, np.float32)

    def array(self, data: Any) -> Any:
        return np.asarray(data).view(Array)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 0, dtype).view(Array)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        return np.zeros(shape, dtype).view(Array)

    def ascontiguousarray(self, array: Any) -> Any:
        return array if array.flags.c_contiguous else array.copy()

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:  # noqa: N802 - CuPy's name
        self.compiled.append((code, options))
        kept = self

        class Function(SimpleNamespace):
            kernel = SimpleNamespace(ptr=77)

            def __call__(self, grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
                kept.launches.append((self.name, grid, block, arguments, shared_mem))
                kept.compute(*arguments)

        return SimpleNamespace(
            get_function=lambda name: Function(name=name), get_global=lambda name: Memory(kept.piece)
        )


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake
