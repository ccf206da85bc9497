"""A kernel and a library as programs call both: back to back, in turn, after rests."""

import statistics
from types import SimpleNamespace

import pytest

from tuner.devices.cpu import device as module
from tuner.devices.cpu.device import CpuDevice, ratios_in
from tuner.results.measurement import STATES


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of a clock that only calls and rests move."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    fake = SimpleNamespace(
        perf_counter=lambda: now[0], monotonic=lambda: now[0], process_time=lambda: 0.0, sleep=sleep
    )
    monkeypatch.setattr(module, "time", fake)
    return now


def test_a_kernel_that_suffers_beside_the_library_is_slow_in_turn_alone(now: list[float]) -> None:
    ended_s = [0.0]

    def library() -> None:
        now[0] += 0.006
        ended_s[0] = now[0]

    def kernel() -> None:
        """As one whose threads share the cores with those of the library, which spin on."""
        now[0] += 0.024 if now[0] - ended_s[0] < 0.001 else 0.0015

    ratios = CpuDevice().in_programs(kernel, library, 0.0)
    assert tuple(ratios) == STATES
    assert ratios["in_turn"] < 1
    assert min(ratios["back_to_back"], ratios["after_idling"]) > 1


@pytest.mark.parametrize("state", STATES)
def test_a_machine_that_grows_slower_meets_both_alike(now: list[float], state: str) -> None:
    took_s = [1e-3]

    def call() -> None:
        now[0] += took_s[0]
        took_s[0] *= 1.004

    assert statistics.median(ratios_in(state, call, call, 0.2)) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("slower", [1.0, 1.5])
def test_a_kernel_is_faster_only_where_its_pairs_agree(now: list[float], slower: float) -> None:
    def library() -> None:
        now[0] += 1e-3

    def kernel() -> None:
        now[0] += 0.8e-3 * (slower if int(now[0] * 20) % 3 == 0 else 1.0)

    ratios = CpuDevice().in_programs(kernel, library, 0.6)
    assert [ratio > 1 for ratio in ratios.values()] == [slower == 1.0] * len(STATES)
