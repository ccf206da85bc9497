"""Takes samples of a run, each on new inputs, and checks one of them: every timed run must really compute.

A time that no run can take is refused: it is a spoilt clock's, or that of a kernel that does not compute.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.devices.detect import kind_of
from tuner.devices.protocol import Device, ImpossibleTime, Run
from tuner.results.measurement import noise
from tuner.workers.workload import Workload

#: The checked sample is a random one among this many.
CHECKED_AMONG = 10
IN_A_TIMED_RUN = "in a timed run: "
#: In the finals the last sample of every so many turns is compared whole.
WHOLE_EVERY = 4
#: A limit may be exceeded by this factor.
OVER_LIMIT = 1.05
#: Seconds that no run takes less than: to call an empty function of Python's costs about as much.
SHORTEST_S = 5e-8


@dataclass
class CheckedSamples:
    """Takes samples of a run, which must have run before.

    Before each sample, ahead of the cache flush, the inputs are placed anew and the outputs are poisoned; after
    it a few elements are compared, see `Workload.before_timed`. In the regimes without a flush, the inputs are
    placed once for all samples of a call, and an untimed run follows.

    Attributes:
        device: Where.
        run: The run.
        regime: One of `tuner.devices.protocol.REGIMES`.
        workload: The arrays that it runs on.
        allowance: So many times the usual tolerance is allowed.
        wrong: What is wrong with the run; empty if nothing is.
        check_s: Seconds spent on checks.
    """

    device: Device
    run: Run
    regime: str
    workload: Workload
    allowance: float = 1.0
    wrong: str = ""
    check_s: float = 0.0
    _checked: bool = False
    _is_timed: bool = False
    _turns: int = 0

    def __post_init__(self) -> None:
        self._cold = self.regime.startswith("cold")
        self._ahead = random.SystemRandom().randrange(CHECKED_AMONG)

    def take_s(self, count: int) -> list[float]:
        """Takes this many samples; in seconds.

        Raises:
            LaunchFailed: A run failed.
        """
        if self._checked or self._ahead >= count:
            self._ahead -= count
            return self._plain_s(count)
        ahead, behind = self._ahead, count - self._ahead - 1
        return [*self._plain_s(ahead), self._checked_s(), *self._plain_s(behind)]

    def turn_s(self, count: int) -> list[float]:
        """Like `take_s`, but then compares the inputs, before other kernels run on them.

        Raises:
            LaunchFailed: A run failed.
        """
        samples = self.take_s(count)
        self._turns += 1
        if self._turns % WHOLE_EVERY == 0:
            samples = [*samples[:-1], self._checked_s()]
        self._compare()
        return samples

    def finish(self, brief: bool = False) -> None:
        """Compares the inputs, and checks a run if none was checked yet and time is not to be brief.

        Raises:
            LaunchFailed: The run failed.
        """
        self._compare()
        if not self._checked and not brief:
            self._checked_s()

    def _compare(self) -> None:
        self._check(self.workload.touched)

    def _check(self, check: Callable[[], str], where: str = "") -> None:
        """Notes what a check finds, and how long it takes."""
        begun_s = time.perf_counter()
        wrong = "" if self.wrong else check()
        self.wrong = self.wrong or (wrong and where + wrong)
        self.check_s += time.perf_counter() - begun_s

    def _plain_s(self, count: int) -> list[float]:
        if count == 0:
            return []
        if not self._cold:
            self.workload.begin(self.workload.second)
            self.run()
        samples = self._samples_s(count, self._before)
        self._look()
        return samples

    def _samples_s(self, count: int, before: Run) -> list[float]:
        """Times of runs, which can be; raises `ImpossibleTime` for others."""
        samples = self.device.samples_s(self.run, count, self.regime, before)
        trouble = impossible(samples, self.workload.problem, self.device)
        if trouble:
            raise ImpossibleTime(trouble)
        return samples

    def _before(self) -> None:
        self._look()
        self.workload.before_timed(self._cold)
        self._is_timed = True

    def _look(self) -> None:
        """Compares a few elements of the run before."""
        if self._is_timed:
            self._is_timed = False
            self._check(lambda: self.workload.after_timed(self.allowance), IN_A_TIMED_RUN)

    def _checked_s(self) -> float:
        workload = self.workload
        before: Run = partial(workload.begin, workload.second)
        if not self._cold:
            workload.begin(workload.second)
            workload.inputs.flip()
            self.run()
            before = workload.begin_again
        [sample_s] = self._samples_s(1, before)
        self._check(lambda: workload.check(self.allowance)[1], IN_A_TIMED_RUN)
        self._checked = True
        return sample_s


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


#: NVBench's default minimum number of samples of a cold measurement.
MIN_SAMPLES = 10
#: NVBench's default target of stdev/mean.
MAX_NOISE = 0.005
#: Largest number of samples of one config in screening; the finals take more.
MAX_SAMPLES = 40
#: Largest device time spent on one config in screening, and time by the clock: to flush a large cache and to
#: look at results may take ten times as long as to run. On a host it is this share of a short budget: finals
#: decide, and they are between as many configs as there was time for.
SCREEN_LIMIT_S, SCREEN_WALL_S, SCREEN_SHARE = 0.5, 1.0, 0.025
#: A first sample slower than the best so far by this factor cannot be noise: after one more, the config is
#: pruned.
HOPELESS = 1.5
#: If the very first run is slower than the best so far by this factor, and by these seconds for one-time work
#: (starting threads, first touch of memory), the config is pruned by that run alone.
HOPELESS_FIRST, ONCE_S = 5.0, 0.25
#: A config whose fastest sample is slower than the best median so far by this factor cannot win.
CANNOT_WIN = 1.08
#: Number of samples before this is judged.
JUDGED_AFTER = 3
#: In a survey, what takes this many times the best is not timed again, nor what takes so many seconds more in
#: its first run: a model needs to know that it is slow, not how slow. Of all else so many samples are taken.
CUT_OFF, BRIEF_ONCE_S, BRIEF_SAMPLES = 6.0, 0.02, 3
#: Blocks of finals: the least if the usual minimum would exceed the budget, that minimum, and the most.
LEAST_BLOCKS, MIN_BLOCKS, MAX_BLOCKS = 2, 5, 30
#: Samples of a turn, taken back to back; its time is their median.
SAMPLES_PER_TURN = 3


@dataclass(frozen=True)
class Screened:
    """Samples of a config, with the reason if it was stopped early.

    Attributes:
        samples_s: Seconds, in order of measurement.
        pruned: Why it was stopped early; empty if it was not.
    """

    samples_s: tuple[float, ...]
    pruned: str = ""


def screen_by(
    take_s: Callable[[int], list[float]], incumbent_s: float | None, wall_s: float = SCREEN_WALL_S
) -> Screened:  # fmt: skip
    """Times a config until its time is known well enough, or it cannot win.

    Args:
        take_s: Takes this many more samples, in seconds, from a device or a recording. The config must have run
            before, so that nothing loads or compiles now.
        incumbent_s: Best median so far, in seconds; None if there is none.
        wall_s: Seconds by the clock after which no further samples are taken but the first few; a few more of
            what others are compared with, while its median is a disturbed one.
    """
    until_s = time.monotonic() + wall_s
    samples = take_s(1)
    best, least = (math.inf, MIN_SAMPLES) if incumbent_s is None else (incumbent_s, 0)
    if samples[0] > HOPELESS * best:
        samples += take_s(1)
        if min(samples) > HOPELESS * best:
            return Screened(tuple(samples), _bound(min(samples), best))
    samples += take_s(JUDGED_AFTER - 1)
    if min(samples) > CANNOT_WIN * best:
        return Screened(tuple(samples), _bound(min(samples), best))
    while not _settled(samples) and time.monotonic() < until_s:
        samples += take_s(min(5, MAX_SAMPLES - len(samples)))
    # On two cores every third cold sample of NumPy took many times as long: its threads waited for a core.
    while len(samples) < least and statistics.median(samples) > HOPELESS * min(samples):
        samples += take_s(1)
    return Screened(tuple(samples))


def briefly(take_s: Callable[[int], list[float]], best_s: float | None) -> Screened:
    """Times a config for a survey: `BRIEF_SAMPLES`, or one sample if that is far above the best.

    Args:
        take_s: As in `screen_by`.
        best_s: Best median so far, in seconds, the library's too; None if there is none.
    """
    samples = take_s(1)
    if best_s is not None and samples[0] > CUT_OFF * best_s:
        return Screened(tuple(samples), _bound(samples[0], best_s))
    return Screened((*samples, *take_s(BRIEF_SAMPLES - 1)))


def lost_at_first(first_s: float, incumbent_s: float | None, brief: bool = False) -> Screened | None:
    """Returns the reason to prune a config whose first run took this long; None if it is to be timed.

    Args:
        first_s: Seconds of the verified run, including waiting for the device.
        incumbent_s: Best median so far, in seconds; None if there is none.
        brief: True for a survey, which has many configs to time.
    """
    most, once_s = (CUT_OFF, BRIEF_ONCE_S) if brief else (HOPELESS_FIRST, ONCE_S)
    if incumbent_s is None or first_s <= most * incumbent_s + once_s:
        return None
    return Screened(
        (first_s,), f"cannot win: its first run takes {first_s / incumbent_s:.3g} times the best median"
    )


def _bound(fastest_s: float, best_s: float) -> str:
    return f"cannot win: its fastest sample takes {fastest_s / best_s:.3g} times the best config's median"


def _settled(samples: Sequence[float]) -> bool:
    if len(samples) >= MAX_SAMPLES or sum(samples) > SCREEN_LIMIT_S:
        return True
    return len(samples) >= MIN_SAMPLES and noise(samples) < MAX_NOISE


def interleave(
    players: Sequence[Callable[[int], list[float]]], budget_s: float,
    is_enough: Callable[[Sequence[Sequence[float]]], bool] = lambda times_s: False,
    least: int = LEAST_BLOCKS, most: int = MAX_BLOCKS,
) -> list[list[float]]:  # fmt: skip
    """Times several participants in turns, so that drift of clocks and temperature affects all alike.

    A block times all of them forth and back. Each block begins with the next one, so that none always follows
    the same one.

    Args:
        players: Each takes this many more samples of a participant, in seconds.
        budget_s: Wall time in seconds, beyond which no block is taken to end but the minimum number.
        is_enough: Whether these times, two of each participant for each block, say enough; asked after a block.
        least: Blocks if `MIN_BLOCKS` would exceed the budget.
        most: Blocks at the most.

    Returns:
        The times of each participant, in seconds.

    Raises:
        LaunchFailed: A run failed.
    """
    times_s: list[list[float]] = [[] for _ in players]
    begun_s, wanted, samples = time.monotonic(), MIN_BLOCKS, 1
    for block in range(most):
        spent_s = time.monotonic() - begun_s
        if block == 1:
            # The first block, of one sample each, shows what a block costs.
            samples = SAMPLES_PER_TURN if SAMPLES_PER_TURN * MIN_BLOCKS * spent_s <= budget_s else 1
            wanted = MIN_BLOCKS if MIN_BLOCKS * spent_s <= budget_s else least
        if block >= wanted and spent_s * (1 + 1 / block) > budget_s:
            break
        forth = [(block + place) % len(players) for place in range(len(players))]
        for number in (*forth, *reversed(forth)):
            times_s[number].append(statistics.median(players[number](samples)))
        if is_enough(times_s):
            break
    return times_s
