"""A kernel and a library as programs call both: back to back, in turn, after rests."""

from __future__ import annotations

import time

from tuner.devices.cpu.device import CpuDevice
from tuner.results.measurement import STATES


def test_a_kernel_that_suffers_beside_the_library_is_slow_in_turn_alone() -> None:
    ended_s = [0.0]

    def library() -> None:
        time.sleep(0.006)
        ended_s[0] = time.perf_counter()

    def kernel() -> None:
        """As one whose threads share the cores with those of the library, which spin on."""
        time.sleep(0.024 if time.perf_counter() - ended_s[0] < 0.001 else 0.0015)

    ratios = CpuDevice().in_programs(kernel, library)
    assert tuple(ratios) == STATES
    assert ratios["in_turn"] < 1
    assert min(ratios["back_to_back"], ratios["after_idling"]) > 1
