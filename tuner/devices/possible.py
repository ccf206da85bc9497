"""Tells times that no run can take: they are a spoilt clock's, or those of a kernel that does not compute."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.devices.detect import kind_of
from tuner.devices.protocol import Device

#: A limit may be exceeded by this factor.
OVER_LIMIT = 1.05
#: Seconds that no run takes less than: to call an empty function of Python's costs about as much.
SHORTEST_S = 5e-8


def impossible(samples_s: Sequence[float], problem: Problem, device: Device) -> str:
    """Says which sample cannot be, with the limit and both figures; empty if all can be.

    Only outputs count as bytes that must move: it is verified that each element is written, and a kernel of a
    user's own need not read all of its inputs.

    Args:
        samples_s: Times of single runs in seconds.
        problem: What they computed.
        device: Where; one that does not tell its cores or multiprocessors has no limits.
    """
    wrong = [sample_s for sample_s in samples_s if not SHORTEST_S <= sample_s < math.inf]
    if wrong:
        return f"its time cannot be: a run takes {SHORTEST_S:g} s or more, and ends, got {wrong[0]:.3g} s"
    time_s = min(samples_s, default=math.inf)
    kind, units = kind_of(device.info.kind), device.info.cores or device.info.sm_count
    cycles = units * kind.fastest_hz
    written = sum(tensor.bytes for tensor in problem.outputs)
    for amount, most, unit in (
        (problem.work.flops, cycles * kind.most_per_cycle[0] / DTYPE_BYTES[problem.dtype], "flop"),
        (written, cycles * kind.most_per_cycle[1], "bytes"),
    ):
        rate = amount / time_s
        if units and rate > OVER_LIMIT * most:
            return (
                f"its time cannot be: {amount:.3g} {unit} in {time_s:.3g} s are {rate:.3g} {unit}/s, and "
                f"{device.info.name} does at most {most:.3g}"
            )
    return ""
