"""Reasons to doubt measured times: a busy machine, or a champion that is only provisional.

A champion is provisional if its times are noisy, if other processes used the cores, or if the library's times
contradict each other. Records keep what was observed as circumstances, and this module decides what is too
much. So a record made before circumstances were kept is never in doubt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: A champion's times are not credible if their noise exceeds this.
MUCH_NOISE = 0.10
#: Two times of one library contradict each other if they differ by this factor. OpenBLAS's core types for AVX2
#: and AVX-512 differed by up to 1.88 times on a quiet machine (docs/results/cpu-*.md).
APART = 2.0
#: Share of a CPU's cores that other processes may use during the finals. On two cores in use by others, NumPy
#: was 74 to 109 times slower than the champion in all of its runs, and the noise was below `MUCH_NOISE`.
MUCH_TAKEN = 0.10
#: Circumstances: noise of the finals' times; share of the cores that other processes used; the library's time
#: in the finals over that before the search, or the other way round; over its best time of earlier runs; and
#: over that of OpenBLAS's other core types, or the other way round.
NOISE, TAKEN = "finals_noise", "others_share"
SEARCH, EARLIER = "baseline_apart_from_search", "baseline_over_earlier"
CORE_TYPE = "baseline_apart_by_core_type"
#: Circumstances of a machine: cores that other processes used, share of the cores' time the hypervisor gave
#: to others, share of the time in which a control group's quota throttled the study, number of times that a
#: core was throttled for heat, other processes that compute on the GPU, share of time the GPU was busy before
#: the study.
OTHERS_CORES, STEAL, QUOTA, HEAT = "others_cores", "steal_share", "quota_share", "heat_events"
OTHERS_PROCESSES, OTHERS_GPU = "others_processes", "others_gpu_share"
#: A quarter of a core is more than an idle machine's own services use, and it delays every kernel that has a
#: thread on each core. On machines of many cores the services grow with the cores.
BUSY_CORES, BUSY_SHARE_OF_CORES = 0.25, 0.01
#: Shares of time above which a warning is given.
MUCH_STEAL, MUCH_QUOTA, BUSY_GPU = 0.02, 0.01, 0.10
#: NVML's reasons for low clocks that do not belong to normal operation: the hardware's slowdown, heat seen
#: by software, heat seen by hardware, the power brake (NVML API reference, nvmlClocksEventReasons).
SLOWED = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
_TOLD = {
    SEARCH: "the library's times before the search and in the finals are {:.3g} x apart",
    EARLIER: "the library took {:.3g} x its best time of earlier runs",
    CORE_TYPE: "the library's times as it runs by itself and with another core type are {:.3g} x apart",
}


@dataclass(frozen=True)
class LibraryTime:
    """A time of a library.

    Attributes:
        name: The library's.
        core_type: CPU type that its BLAS was set to; empty if it has none.
        threads: Number of its BLAS's threads; empty if it has none.
        session: Run of the study in which it was measured.
        time_s: Median in seconds.
    """

    name: str
    core_type: str
    threads: str
    session: str
    time_s: float


def contradictions(final: LibraryTime, others: Iterable[LibraryTime]) -> dict[str, float]:
    """Compares the library's other times with that of the finals, as circumstances; 1 means equal.

    A busy machine makes times longer, never shorter. So a slower earlier run proves nothing.

    Args:
        final: The library's time in the finals.
        others: Other times of the same version of the library, for the same problem on the same device.
    """
    same = [each for each in others if (each.name, each.threads) == (final.name, final.threads)]
    alike = [each for each in same if each.core_type == final.core_type]
    here = [each.time_s for each in alike if each.session == final.session]
    earlier = [each.time_s for each in alike if each.session != final.session]
    elsewhere = [each.time_s for each in same if each.core_type != final.core_type]
    found = {}
    if here:
        found[SEARCH] = max(_apart(final.time_s, each) for each in here)
    if earlier:
        found[EARLIER] = final.time_s / min(earlier)
    if elsewhere:
        found[CORE_TYPE] = _apart(final.time_s, min(elsewhere))
    return found


def _apart(one_s: float, other_s: float) -> float:
    return math.exp(abs(math.log(one_s / other_s)))


def doubts(seen: Mapping[str, float]) -> tuple[str, ...]:
    """Reasons why a champion with these circumstances is provisional; empty if it is not."""
    found = []
    if seen.get(NOISE, 0.0) > MUCH_NOISE:
        found.append(f"its times have a noise of {seen[NOISE]:.0%}, more than {MUCH_NOISE:.0%}")
    if seen.get(TAKEN, 0.0) > MUCH_TAKEN:
        found.append(
            f"other processes used {seen[TAKEN]:.0%} of the cores during the finals, more than {MUCH_TAKEN:.0%}"
        )
    return (*found, *(told.format(seen[name]) for name, told in _TOLD.items() if seen.get(name, 1.0) >= APART))


def complaints(seen: Mapping[str, float], cores: int = 0) -> tuple[str, ...]:
    """Reasons to doubt times measured under these circumstances; empty on a quiet machine.

    Args:
        seen: Circumstances of a record, or of a load.
        cores: Cores of a CPU; 0 for a GPU.
    """
    found = []
    busy = seen.get(OTHERS_CORES, 0.0)
    if busy > max(BUSY_CORES, BUSY_SHARE_OF_CORES * cores):
        found.append(f"other processes use {busy:.2g} of {cores or 'its'} cores")
    if seen.get(STEAL, 0.0) > MUCH_STEAL:
        found.append(f"the hypervisor gives {seen[STEAL]:.0%} of the cores' time to others")
    if seen.get(QUOTA, 0.0) > MUCH_QUOTA:
        found.append(f"a CPU quota holds this process back {seen[QUOTA]:.0%} of the time")
    if seen.get(HEAT, 0.0) > 0:
        found.append("cores are throttled for heat")
    count = int(seen.get(OTHERS_PROCESSES, 0))
    if count:
        found.append(f"{count} other process{'es' if count > 1 else ''} on the GPU")
    if seen.get(OTHERS_GPU, 0.0) >= BUSY_GPU:
        found.append(f"the GPU is {seen[OTHERS_GPU]:.0%} busy without this study")
    reasons = int(seen.get("throttle_reasons", 0))
    slowed = sorted({told for bit, told in SLOWED.items() if reasons & bit})
    if slowed:
        found.append(f"clocks are throttled: {', '.join(slowed)}")
    return tuple(found)
