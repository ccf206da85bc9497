"""Shares a machine's cores among the workers of its GPUs, so that their compilers do not wait for each other.

Each study starts as many compile processes as it has cores (`tuner.workers.compile_pool`). Two workers that
both took all cores would start twice as many as there are, at each opening of a study, and their searches and
device processes would wait for cores.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from tuner.devices.detect import DetectedDevice

#: A share is this many cores at the least: a study, its device's process, and two compilers.
LEAST_CORES = 4


def shares(cores: Sequence[int], count: int) -> list[set[int]]:
    """Divides cores into equal runs of neighbours, which have caches and memory in common.

    Args:
        cores: Numbers of the cores.
        count: Number of shares.

    Returns:
        The shares; all cores for each if there are too few to divide.
    """
    ordered = sorted(cores)
    each = len(ordered) // max(count, 1)
    if count < 2 or each < LEAST_CORES:
        return [set(ordered)] * count
    return [set(ordered[number * each : (number + 1) * each]) for number in range(count)]


def share_cores(found: Sequence[DetectedDevice], processes: Sequence[int]) -> None:
    """Gives each worker process of this machine's GPUs its share of the cores that this process may use.

    Args:
        found: Their devices.
        processes: Their ids, in the same order; what they start later has the same share.
    """
    if any(each.target != "cuda" for each in found):
        return
    for pid, cores in zip(processes, shares(list(os.sched_getaffinity(0)), len(processes)), strict=True):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(pid, cores)
