"""Times a sentinel inside a worker: all participants are verified, then timed in turns, forth and back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.devices.protocol import LaunchFailed, Run
from tuner.results.sentinel import CHAMPION, LIBRARY, Terms, decided
from tuner.workers.bench import Bench, CompiledConfig
from tuner.workers.sampling import CheckedSamples

#: A turn is the median of this many samples, or one if they take longer than this in seconds.
SAMPLES_PER_TURN, LONG_TURN_S = 3, 0.02
#: Share of the budget in which all run untimed, so that clocks have risen, and at most so many seconds.
WARM_UP, WARM_UP_LIMIT_S = 0.1, 0.1
#: Blocks that are timed even beyond the budget.
MIN_BLOCKS = 3
#: Readings of the board that are kept for each block.
READ = ("sm_clock_hz", "temperature_c", "power_w", "throttle_reasons")


@dataclass
class Turns:
    """What a sentinel's rounds gave.

    Attributes:
        rounds_s: Name -> times in seconds, two for each block.
        wrong: Name -> what is wrong with it.
        circumstances: Name of a reading -> its value at the end of each block.
    """

    rounds_s: dict[str, list[float]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    circumstances: dict[str, list[float]] = field(default_factory=dict)


def time_sentinel(bench: Bench, named: Sequence[tuple[str, CompiledConfig]], terms: Terms) -> Turns:
    """Verifies participants and library, and times them in turns until enough is known or the budget is out.

    Args:
        bench: Device, arrays and regime.
        named: The configs with their names, the champion first.
        terms: When to stop.
    """
    found, runs = Turns(), {}
    for name, compiled_config in named:
        run = _admitted(bench, compiled_config, found.wrong, name)
        if run is not None:
            runs[name] = run
    library = bench.device.library(bench.workload)
    if library is not None:
        bench.verify_run(library)
        runs[LIBRARY] = library
    if CHAMPION not in runs:
        return found
    allowances = {name: each.rendered.allowance for name, each in named}
    samples = {
        name: CheckedSamples(bench.device, run, bench.regime, bench.workload, allowances.get(name, 1.0))
        for name, run in runs.items()
    }
    try:
        _take_turns(bench, samples, runs, terms, found)
        for name, each in samples.items():
            each.finish()
            if each.wrong and name != LIBRARY:
                found.wrong[name] = each.wrong
                del found.rounds_s[name]
    except (LaunchFailed, MemoryError) as failure:
        failed = bench.failed(failure, None, named[0][1].compiled, {})
        found.rounds_s.clear()
        found.wrong[CHAMPION] = f"while all were timed: {failed.reason}"
    return found


def _admitted(bench: Bench, compiled_config: CompiledConfig, wrong: dict[str, str], name: str) -> Run | None:
    """A config that is loaded and correct; None, with the reason in `wrong`, if it is not."""
    try:
        run = bench.device.load(compiled_config.rendered, compiled_config.code, bench.workload)
        complaint = bench.verify_run(run, allowance=compiled_config.rendered.allowance)[1]
    except (LaunchFailed, MemoryError) as failure:
        complaint = bench.failed(failure, None, compiled_config.compiled, {}).reason
    if not complaint:
        return run
    wrong[name] = complaint
    return None


def _take_turns(
    bench: Bench, samples: dict[str, CheckedSamples], runs: dict[str, Run], terms: Terms, found: Turns
) -> None:
    """Fills `found` block by block."""
    begun_s = time.monotonic()
    each_s = _warm_up(bench, runs, min(WARM_UP * terms.budget_s, WARM_UP_LIMIT_S))
    count = SAMPLES_PER_TURN if SAMPLES_PER_TURN * each_s <= LONG_TURN_S else 1
    names = list(samples)
    found.rounds_s = {name: [] for name in names}
    block_s = 0.0
    for block in range(1_000_000):
        block_begun_s = time.monotonic()
        if block >= MIN_BLOCKS and block_begun_s - begun_s + block_s > terms.budget_s:
            return
        # Each begins in turn, so that none always follows the same one.
        forth = [names[(block + at) % len(names)] for at in range(len(names))]
        for name in (*forth, *reversed(forth)):
            found.rounds_s[name].append(statistics.median(samples[name].take_s(count)))
        readings = bench.device.circumstances(runs[CHAMPION])
        for name in READ:
            if name in readings:
                found.circumstances.setdefault(name, []).append(readings[name])
        block_s = time.monotonic() - block_begun_s
        if not terms.full and decided(found.rounds_s, terms.bound):
            return


def _warm_up(bench: Bench, runs: dict[str, Run], seconds: float) -> float:
    """Runs all untimed for a while; returns the seconds that one run takes at most, with what surrounds it."""
    begun_s = time.monotonic()
    slowest_s = 0.0
    while True:
        for run in runs.values():
            run_begun_s = time.monotonic()
            bench.device.samples_s(run, 1, bench.regime)
            slowest_s = max(slowest_s, time.monotonic() - run_begun_s)
        if time.monotonic() - begun_s >= seconds:
            return slowest_s
