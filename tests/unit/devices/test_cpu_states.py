"""A kernel and a library as programs call both: back to back, in turn, after rests."""

import statistics
import time
from types import SimpleNamespace

import pytest

from tuner.devices.cpu import device as module
from tuner.devices.cpu.device import CpuDevice, ratios_in
from tuner.results.measurement import STATES


def test_a_kernel_that_suffers_beside_the_library_is_slow_in_turn_alone() -> None:
    ended_s = [0.0]

    def library() -> None:
        time.sleep(0.006)
        ended_s[0] = time.perf_counter()

    def kernel() -> None:
        """As one whose threads share the cores with those of the library, which spin on."""
        time.sleep(0.024 if time.perf_counter() - ended_s[0] < 0.001 else 0.0015)

    ratios = CpuDevice().in_programs(kernel, library, 0.0)
    assert tuple(ratios) == STATES
    assert ratios["in_turn"] < 1
    assert min(ratios["back_to_back"], ratios["after_idling"]) > 1


@pytest.mark.parametrize("state", STATES)
def test_a_machine_that_grows_slower_meets_both_alike(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    now, took_s = [0.0], [1e-3]

    def call() -> None:
        now[0] += took_s[0]
        took_s[0] *= 1.004

    def clock() -> float:
        return now[0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    fake = SimpleNamespace(perf_counter=clock, monotonic=clock, process_time=lambda: 0.0, sleep=sleep)
    monkeypatch.setattr(module, "time", fake)
    assert statistics.median(ratios_in(state, call, call, 0.2)) == pytest.approx(1.0, abs=0.03)
