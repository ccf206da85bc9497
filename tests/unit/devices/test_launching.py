"""A loaded CUDA kernel knows its own occupancy. No GPU: the driver's functions are played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.devices.protocol import LaunchFailed

pytest.importorskip("cupy")

from tuner.devices.cuda import device as cuda
from tuner.devices.cuda import launching

BOARD = DeviceInfo("Fake board", "cuda", max_threads_per_sm=2048)
#: Code -> blocks of it that fit onto a multiprocessor.
BLOCKS = {b"roomy": 8, b"greedy": 1}


class Module:
    """Stands for CuPy's: its function notes the launches."""

    def load(self, code: bytes) -> None:
        if code not in BLOCKS:
            raise MemoryError("1 byte cannot be allocated")
        self.code = code

    def get_function(self, entry: str) -> Any:
        return Function(self.code)


class Function:
    def __init__(self, code: bytes) -> None:
        self.ptr, self.launched = code, 0

    def __call__(self, *arguments: Any) -> None:
        self.launched += 1


@pytest.fixture(autouse=True)
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    played = SimpleNamespace(
        occupancyMaxActiveBlocksPerMultiprocessor=lambda function, threads, shared: BLOCKS[function]
    )
    monkeypatch.setattr(launching, "driver", played)
    monkeypatch.setattr(launching.cupy.cuda.function, "Module", Module)


def loaded(code: bytes, threads: int) -> launching.LoadedKernel:
    arrays = SimpleNamespace(arguments=list, problem=SimpleNamespace(tensors=()), arrays={})
    rendered = Rendered("", "toy", "cuda", Launch((1,), (threads,)))
    return launching.LoadedKernel(rendered, code, arrays, BOARD)


def test_leave_is_asked_for_where_static_shared_memory_may_bring_a_launch_above_48_kb(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    played = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        funcSetAttribute=lambda function, attribute, size: asked.append(size),
    )
    monkeypatch.setattr(launching, "driver", played)
    for size in (0, 40 << 10, 45 << 10, 100 << 10):
        launching._with_shared(SimpleNamespace(get_function=Function), "gemm", size)
    assert asked == [45 << 10, 100 << 10]


def test_each_kernel_keeps_its_occupancy_whatever_is_loaded_after_it() -> None:
    first, second = loaded(b"roomy", 128), loaded(b"greedy", 256)
    assert (first.occupancy, second.occupancy) == (0.5, 0.125)


def test_the_device_tells_the_occupancy_of_the_run_that_is_asked_for_and_none_of_a_library() -> None:
    device = object.__new__(cuda.CudaDevice)
    device._seen = {"sm_clock_hz": 1e9}
    first, second = loaded(b"roomy", 128), loaded(b"greedy", 256)
    assert device.circumstances(first) == {"sm_clock_hz": 1e9, "occupancy": 0.5}
    assert device.circumstances(second) == {"sm_clock_hz": 1e9, "occupancy": 0.125}
    assert device.circumstances(lambda: None) == {"sm_clock_hz": 1e9}


def test_memory_that_is_short_is_a_reason_and_ends_the_worker_that_holds_it() -> None:
    with pytest.raises(LaunchFailed, match="cannot be loaded: out of memory: 1 byte") as caught:
        loaded(b"too large", 128)
    assert caught.value.device_unwell
