"""A GPU made of the host's memory, with a caller's array libraries: CuPy, PyTorch, and one that shares memory.

What a kernel is handed are addresses; the fake one reads and writes the memory there as the problem's layout
says, so that a wrong operand, letter or pointer gives a wrong result.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner.hardware import DeviceInfo
from tuner.problem import Problem

H200 = DeviceInfo(
    "NVIDIA H200", "cuda", uuid="GPU-1", architecture="sm_90a", driver="580.1", warp_size=32,
    max_threads_per_block=1024, max_threads_per_sm=2048, shared_bytes_per_block=232448,
    shared_bytes_per_sm=233472, registers_per_block=65536, registers_per_thread=255, sm_count=132,
    l2_bytes=60 << 20, compute_capability=90,
)  # fmt: skip


def at(address: int, shape: tuple[int, ...], dtype: str) -> Any:
    """The memory at an address as a row-major array."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


def computed(problem: Problem, addresses: list[int]) -> None:
    """What a kernel does."""
    tensors = problem.tensors
    stored = {
        each.name: at(address, each.shape, each.dtype) for each, address in zip(tensors, addresses, strict=True)
    }
    output = tensors[-1]
    inputs = {name: array for name, array in stored.items() if name != output.name}
    result = problem.operation.reference(np, problem, inputs)
    stored[output.name][...] = result


class Log:
    """What the fake GPU was asked for, in order."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.streams: list[int] = []
        self.devices: list[int] = []
        self.library: list[str] = []


class CupyArray:
    """Looks like ``cupy.ndarray`` as far as callables look."""

    #: The device that new arrays lie on.
    current = 0

    def __init__(self, host: Any, device: Any = 0) -> None:
        """From an array of the host's and a device; or, as CuPy's, from a shape and a dtype."""
        if isinstance(host, tuple):
            host, device = aligned(host, device), self.current
        self.host, self.device_id = np.asarray(host), device

    shape = property(lambda self: self.host.shape)
    strides = property(lambda self: self.host.strides)
    dtype = property(lambda self: self.host.dtype)
    itemsize = property(lambda self: self.host.itemsize)
    ndim = property(lambda self: self.host.ndim)
    T = property(lambda self: CupyArray(self.host.T, self.device_id))
    data = property(lambda self: SimpleNamespace(ptr=self.host.ctypes.data, device_id=self.device_id))

    def __getitem__(self, where: Any) -> CupyArray:
        return CupyArray(self.host[where], self.device_id)


class TorchTensor:
    """Looks like ``torch.Tensor`` as far as callables look."""

    def __init__(self, host: Any, device: str = "cuda:0", requires_grad: bool = False) -> None:
        self.host, self.device, self.requires_grad = np.asarray(host), device, requires_grad

    shape = property(lambda self: self.host.shape)
    ndim = property(lambda self: self.host.ndim)
    dtype = property(lambda self: f"torch.{self.host.dtype}")
    T = property(lambda self: TorchTensor(self.host.T, self.device))

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.host.itemsize for step in self.host.strides)

    def data_ptr(self) -> int:
        return int(self.host.ctypes.data)

    def element_size(self) -> int:
        return int(self.host.itemsize)

    def is_neg(self) -> bool:
        return False

    def t(self) -> TorchTensor:
        return self.T

    def new_empty(self, shape: tuple[int, ...]) -> TorchTensor:
        return TorchTensor(aligned(shape, self.host.dtype), self.device)

    def copy_(self, other: TorchTensor) -> TorchTensor:
        self.host[...] = other.host
        return self


class Shared:
    """An array of an unknown library, which offers its memory by DLPack and the CUDA array interface."""

    def __init__(self, host: Any) -> None:
        self.host = host

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.host.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.host.__array_interface__ | {"version": 3}

    def __dlpack__(self, **_: Any) -> Any:
        return self.host.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __array_namespace__(self) -> Any:
        return SimpleNamespace(from_dlpack=lambda other: Shared(other.host))


def aligned(shape: tuple[int, ...], dtype: Any, beyond: int = 0) -> Any:
    """An array that begins so many bytes beyond a multiple of 256, as GPU memory does without any."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 512, np.uint8)
    start = -memory.ctypes.data % 256 + beyond
    return memory[start : start + size].view(dtype).reshape(shape)


def on_gpu(array: Any, beyond: int = 0) -> Any:
    """The same values and strides' order in memory that is aligned as a GPU's."""
    if array.flags.c_contiguous:
        made = aligned(array.shape, array.dtype, beyond)
        made[...] = array
        return made
    return on_gpu(np.ascontiguousarray(array.T), beyond).T


def _fake_cupy(log: Log) -> ModuleType:
    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            self.before, CupyArray.current = CupyArray.current, self.index

        def __exit__(self, *_: object) -> None:
            CupyArray.current = self.before

    def matmul(a: Any, b: Any, out: Any = None) -> Any:
        log.library.append("matmul")
        if out is None:
            return CupyArray(np.matmul(a.host, b.host), a.device_id)
        np.matmul(a.host, b.host, out=out.host)
        return out

    cupy = ModuleType("cupy")
    runtime = SimpleNamespace(getDevice=lambda: CupyArray.current, getDeviceCount=lambda: 2)
    vars(cupy).update(
        ndarray=CupyArray, matmul=matmul, cuda=SimpleNamespace(Device=Device, runtime=runtime),
        array=lambda array, order, copy: CupyArray(on_gpu(np.ascontiguousarray(array.host)), array.device_id),
        copyto=lambda to, array: np.copyto(to.host, array.host),
    )  # fmt: skip
    return cupy


def _fake_torch(log: Log) -> ModuleType:
    def matmul(a: Any, b: Any, out: Any = None) -> Any:
        log.library.append("torch.matmul")
        return TorchTensor(np.matmul(a.host, b.host), a.device)

    torch = ModuleType("torch")
    streams = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=77))
    vars(torch).update(Tensor=TorchTensor, matmul=matmul, cuda=streams)
    return torch


def _fake_calling(log: Log, cupy: ModuleType) -> ModuleType:
    class Loaded:
        def __init__(self, rendered: Any, problem: Problem, device: DeviceInfo, index: int) -> None:
            self.problem = problem

        @property
        def shortest_run(self) -> Callable[..., None]:
            return self.run

        def run(self, *arrays: Any) -> None:
            log.runs.append(str(self.problem))
            log.devices.append(cupy.cuda.runtime.getDevice())
            computed(self.problem, [array.data.ptr for array in arrays])

        def run_at(self, stream: int, *addresses: int) -> None:
            log.runs.append(str(self.problem))
            log.streams.append(stream)
            computed(self.problem, list(addresses))

    calling = ModuleType("tuner.devices.calling")
    vars(calling).update(
        Loaded=Loaded, device_info=lambda index: H200, adopted=lambda shared: CupyArray(shared.host)
    )
    return calling


def _fake_cublas(log: Log) -> ModuleType:
    """cuBLAS by its manual: column-major, so that what has `ld` rows there has `ld` columns here."""

    def gemv(dtype: str, turned: int, m: int, n: int, a: int, lda: int, x: int, y: int) -> None:
        stored = at(a, (n, lda), dtype)[:, :m]
        left = stored if turned else stored.T
        at(y, (left.shape[0],), dtype)[...] = left @ at(x, (left.shape[1],), dtype)

    def geam(dtype: str, m: int, n: int, a: int, lda: int, c: int, ldc: int) -> None:
        at(c, (n, ldc), dtype)[:, :m] = at(a, (m, lda), dtype)[:, :n].T

    def bound(name: str, dtype: str) -> Any:
        def call(handle: str, *given: Any) -> None:
            assert handle == "handle"
            log.library.append(f"cuBLAS {name}")
            if name == "gemv":
                turned, m, n, one, a, lda, x, x_step, zero, y, y_step = given
                assert (one, x_step, zero, y_step) == (1, 1, 0, 1)
                gemv(dtype, turned, m, n, a, lda, x, y)
            else:
                turned, plain, m, n, one, a, lda, zero, b, ldb, c, ldc = given
                assert (turned, plain, one, zero, b, ldb) == (1, 0, 1, 0, c, ldc)
                geam(dtype, m, n, a, lda, c, ldc)

        return SimpleNamespace(call=call, one=1, zero=0, handle=lambda: "handle")

    cublas = ModuleType("tuner.devices.cublas")
    vars(cublas).update(OPERATION={"n": 0, "t": 1}, bound=bound)
    return cublas


def install(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Puts the fakes where callables look for a GPU and its libraries."""
    log = Log()
    monkeypatch.setattr(CupyArray, "__module__", "cupy")
    monkeypatch.setattr(TorchTensor, "__module__", "torch")
    cupy = _fake_cupy(log)
    monkeypatch.setattr(CupyArray, "dot", lambda self, other: cupy.matmul(self, other), raising=False)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "torch", _fake_torch(log))
    monkeypatch.setitem(sys.modules, "tuner.devices.calling", _fake_calling(log, cupy))
    monkeypatch.setitem(sys.modules, "tuner.devices.cublas", _fake_cublas(log))
    return log
