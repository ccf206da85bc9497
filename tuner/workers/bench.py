"""Times configs: of a search, of finals and sentinels in turns, of a survey. Failures become outcomes."""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.declare.problem import IEEE
from tuner.devices.protocol import Device, LaunchFailed, Run
from tuner.results.measurement import CompileReport, Error, Measurement, Outcome, memory_reason
from tuner.results.objectives import ErrorLimit
from tuner.results.sentinel import CHAMPION, LIBRARY, Terms, decided
from tuner.workers.distributions import broken_promise
from tuner.workers.sampling import CheckedSamples, Screened, interleave, lost_at_first, screen_by
from tuner.workers.workload import NAN, POISONS, Draw, Workload

#: Reason if a wrong result may not be the config's fault.
SPOILT = "the reference data was overwritten, by this config or an earlier one"


@dataclass(frozen=True)
class CompiledConfig:
    """A compiled config.

    Attributes:
        rendered: Its source and launch.
        code: Its machine code.
        compiled: The compiler's report.
        compile_s: Seconds that compiling took.
    """

    rendered: Rendered
    code: bytes
    compiled: CompileReport
    compile_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The config but for its code, for a message."""
        return {
            "rendered": asdict(self.rendered), "compiled": asdict(self.compiled), "compile_s": self.compile_s,
            "code_bytes": len(self.code),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any], code: bytes) -> CompiledConfig:
        """Makes a config of a message and its code."""
        report = CompileReport(**data["compiled"])
        return cls(rendered_from(data["rendered"]), code, report, data.get("compile_s", 0.0))


def rendered_from(data: Mapping[str, Any]) -> Rendered:
    """Reads a rendered kernel from its fields."""
    return Rendered(**{**data, "launch": launch_from(data["launch"]), "options": tuple(data["options"])})


def launch_from(data: Mapping[str, Any] | None) -> Launch | None:
    """Reads a launch; a CPU kernel has none."""
    return Launch.from_json(data) if data else None


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


#: A turn of a sentinel is the median of this many samples, or one if they take longer than this in seconds.
SAMPLES_PER_TURN, LONG_TURN_S = 3, 0.02
#: Share of the budget in which all run untimed, so that clocks have risen, and at most so many seconds.
WARM_UP, WARM_UP_LIMIT_S = 0.1, 0.1
#: Blocks that are timed even beyond the budget.
MIN_BLOCKS = 3
#: Readings of the board that are kept for each block.
READ = ("sm_clock_hz", "temperature_c", "power_w", "throttle_reasons")
#: In a survey, what takes this many times the best of library and configs is not timed again: a model needs to
#: know that it is slow, not how slow.
CUT_OFF = 6.0
#: A first run takes so many seconds more than a timed one, for what happens once: beyond that it tells enough.
ONCE_S = 0.02
#: Seconds that a survey's first run may take, and times of the best: to replace the worker takes seconds, too.
SURVEY_FIRST_FLOOR_S, SURVEY_FIRST_FACTOR = 4.0, 20.0
#: Samples of what a survey does not cut off.
SURVEY_SAMPLES = 3
#: A survey's samples of the library, with which all configs are compared: what fits into these seconds, and at
#: most so many.
LIBRARY_S, LIBRARY_SAMPLES = 0.01, 9


def survey_first_limit_s(best_s: float | None) -> float:
    """Seconds that a config's first run may take where the best takes so many, or none was timed yet."""
    return max(SURVEY_FIRST_FLOOR_S, SURVEY_FIRST_FACTOR * (best_s or 0.0))


@dataclass
class Bench:
    """Measures configs one after another, for one problem on one device in one regime.

    Attributes:
        device: Where.
        workload: Arrays and references.
        regime: How times are taken.
        energy: True to measure the energy of a run, too, if the device reports its power: ``energy_j`` of the
            circumstances is ``power_w`` of back-to-back runs times the median time.
        unwell: True after a failure that may have poisoned the device's context.
        limit: Largest error that a config may have; see `limit_error`.
        best_s: In a survey, the best time so far in seconds, the library's too; None while there is none.
    """

    device: Device
    workload: Workload
    regime: str
    energy: bool = False
    unwell: bool = field(default=False, init=False)
    limit: ErrorLimit | None = field(default=None, init=False)
    best_s: float | None = None

    def limit_error(self, factor: float) -> None:
        """Sets a limit: configs whose error exceeds this multiple of the library's are INACCURATE."""
        run = self.device.library(self.workload)
        error = self.verify_run(run)[0] if run is not None else None
        self.limit = ErrorLimit.beside(factor, error, self.workload.problem)

    def measure(
        self, compiled_config: CompiledConfig, incumbent_s: float | None, first_limit_s: float | None = None
    ) -> Measurement:
        """Loads, verifies and times a config.

        Args:
            compiled_config: The config to measure.
            incumbent_s: Best median so far, in seconds; configs that cannot beat it are pruned.
            first_limit_s: Seconds that its first run may take; beyond them this process ends.
        """
        stages = {"compile": compiled_config.compile_s}
        player = self._admitted(compiled_config, stages, first_limit_s)
        if isinstance(player, Measurement):
            return player
        try:
            screened, wrong = self._screened(player.samples, player.first_s, incumbent_s, stages)
            refused = self.refused(player.error, wrong, player.compiled, stages)
            if refused is not None:
                return refused
            seen = self._seen(player.run)
            if self.energy and not screened.pruned:
                with _stage(stages, "power"):
                    seen |= self._energy(player.run, statistics.median(screened.samples_s))
        except (LaunchFailed, MemoryError) as failure:
            return self.failed(failure, player.error, player.compiled, stages)
        return Measurement(
            Outcome.PRUNED if screened.pruned else Outcome.MEASURED, screened.pruned, screened.samples_s,
            player.error, player.compiled, stages, seen,
        )  # fmt: skip

    def _admitted(
        self,
        compiled_config: CompiledConfig,
        stages: dict[str, float],
        first_limit_s: float | None = None,
        finals: bool = False,
    ) -> _Player | Measurement:
        """Loads and verifies a config: one that can be timed, or the outcome of one that is not.

        Args:
            compiled_config: The config.
            stages: Takes the seconds of each stage.
            first_limit_s: Seconds that its first run may take; beyond them this process ends.
            finals: True to verify it over each poison, on two draws, and on inputs of several kinds.
        """
        compiled, allowance = compiled_config.compiled, compiled_config.rendered.allowance
        error: Error | None = None
        broken = ""
        try:
            with _stage(stages, "load"):
                run = self.device.load(compiled_config.rendered, compiled_config.code, self.workload)
            first = FirstRun(self.device, run, first_limit_s)
            with _stage(stages, "verify"):
                error, wrong = self.verify_run(first, allowance=allowance)
                for poison in POISONS[1:] if finals else ():
                    wrong = wrong or self._over(poison, run, allowance)
                if finals and not wrong and allowance <= 1:
                    broken = self._promise(run)
        except (LaunchFailed, MemoryError) as failure:
            return self.failed(failure, error, compiled, stages)
        refused = self.refused(error, wrong, compiled, stages, finals)
        if refused is None and broken:
            refused = Measurement(Outcome.INACCURATE, broken, (), error, compiled)
        return refused or _Player(run, error, compiled, self._samples(run, allowance), allowance, first.took_s)

    def _screened(
        self, samples: CheckedSamples, first_s: float, incumbent_s: float | None, stages: dict[str, float]
    ) -> tuple[Screened, str]:
        """Times a run whose first run took this long; also returns what is wrong with it."""
        lost = lost_at_first(first_s, incumbent_s)
        if lost is not None:
            return lost, ""
        with _stage(stages, "time"):
            screened = screen_by(samples.take_s, incumbent_s)
            if not screened.pruned:
                samples.finish()
        stages["time"] -= samples.check_s
        stages["verify"] += samples.check_s
        return screened, samples.wrong

    def _samples(self, run: Run, allowance: float = 1.0) -> CheckedSamples:
        return CheckedSamples(self.device, run, self.regime, self.workload, allowance)

    def verify_run(
        self, run: Run, draw: Draw | None = None, allowance: float = 1.0, poison: str = NAN
    ) -> tuple[Error, str]:
        """Returns error and complaint of a run on a draw of the inputs, by default the first.

        Args:
            run: The run.
            draw: The inputs.
            allowance: So many times the usual tolerance is allowed.
            poison: What the outputs hold before it.
        """
        self.workload.begin(draw or self.workload.first, poison)
        run()
        self.device.synchronize()
        return self.workload.check(allowance)

    def refused(
        self,
        error: Error,
        wrong: str,
        compiled: CompileReport | None,
        stages: Mapping[str, float],
        finals: bool = False,
    ) -> Measurement | None:
        """Returns the outcome of a config that is not timed: a wrong result, or one beyond the error limit."""
        if wrong and not self.workload.sound():
            # This may not be the config's fault, so it is tried again in a fresh worker.
            self.unwell = True
            return Measurement(Outcome.CRASHED, f"{SPOILT}: {wrong}", (), error, compiled, stages)
        if wrong:
            return Measurement(Outcome.WRONG_RESULT, wrong, (), error, compiled, stages)
        complaint = self.limit.complaint(error, finals) if self.limit is not None else ""
        if self.limit is None or not complaint:
            return None
        kept = self.limit.circumstances
        return Measurement(Outcome.INACCURATE, complaint, (), error, compiled, stages, kept)

    def _seen(self, run: Run) -> dict[str, float]:
        """Returns the circumstances of a run, with the error limit."""
        kept = self.limit.circumstances if self.limit is not None else {}
        return {**self.device.circumstances(run), **kept}

    def verify(self, compiled_config: CompiledConfig) -> str:
        """Describes what is wrong with a config's output; empty if nothing is."""
        try:
            return self.verify_run(
                self.device.load(compiled_config.rendered, compiled_config.code, self.workload)
            )[1]
        except (LaunchFailed, MemoryError) as failure:
            return self.failed(failure, None, compiled_config.compiled, {}).reason

    def measure_baseline(self) -> Measurement | None:
        """Verifies and times the library with the same code as a kernel."""
        run = self.device.library(self.workload)
        if run is None:
            return None
        stages: dict[str, float] = {}
        problem = self.workload.problem
        allowance = problem.operation.baselines[self.device.info.kind].allowance(problem)
        with _stage(stages, "verify"):
            error, wrong = self.verify_run(run, allowance=allowance)
        samples = self._samples(run, allowance)
        with _stage(stages, "time"):
            screened = screen_by(samples.take_s, None)
        stages["time"] -= samples.check_s
        stages["verify"] += samples.check_s
        seen = dict(self.device.circumstances(run))
        if self.energy:
            with _stage(stages, "power"):
                seen |= self._energy(run, statistics.median(screened.samples_s))
        return Measurement(
            Outcome.MEASURED, wrong or samples.wrong, screened.samples_s, error, None, stages, seen
        )

    def _energy(self, run: Run, time_s: float) -> dict[str, float]:
        """Returns power during back-to-back runs and energy of one; empty if the device reports no power."""
        power_w = self.device.power_w(run)
        return {} if power_w is None else {"power_w": power_w, "energy_j": power_w * time_s}

    def finals(
        self, compiled_configs: Sequence[CompiledConfig], budget_s: float, threads: Sequence[int] = ()
    ) -> list[Measurement]:
        """Verifies finalists again, times them in alternation with the library, and verifies them once more.

        Each finalist is verified on two draws of the inputs before the rounds, and on a new one after them.

        Args:
            compiled_configs: The finalists.
            budget_s: Wall time for the rounds in seconds.
            threads: Numbers of CPU threads that the finalists use. The library is timed with its default, and
                with each other number.

        Returns:
            A measurement for each finalist, then those of the library, if there is one, beginning with its
            default number of threads. The library's are missing if no finalist could be timed.
        """
        found: dict[int, Measurement] = {}
        players: dict[int, _Player] = {}
        for number, compiled_config in enumerate(compiled_configs):
            admitted = self._admitted(compiled_config, {}, finals=True)
            if isinstance(admitted, Measurement):
                found[number] = admitted
            else:
                players[number] = admitted
        if not players:
            return list(found.values())
        for number, run in enumerate(self._libraries(threads), start=len(compiled_configs)):
            players[number] = _Player(run, self.verify_run(run)[0], None, self._samples(run))
        times = interleave([each.samples.turn_s for each in players.values()], budget_s)
        self.workload.draw_anew()
        for samples_s, (number, player) in zip(times, players.items(), strict=True):
            found[number] = self._judged(player, samples_s)
        return [found[number] for number in sorted(found)]

    def _over(self, poison: str, run: Run, allowance: float) -> str:
        """What is wrong with a run on the second draw, over outputs that hold something else than NaN."""
        wrong = self.verify_run(run, self.workload.second, allowance, poison)[1]
        return f"over outputs that held {poison}: {wrong}" if wrong else ""

    def _promise(self, run: Run) -> str:
        """What breaks the promise of a precision that is as exact as the library for every input."""
        usual = self.workload.problem.precision == IEEE
        return "" if usual else broken_promise(self.device, self.workload, run)

    def _judged(self, player: _Player, samples_s: tuple[float, ...]) -> Measurement:
        """Judges a finalist after the rounds, on new inputs; the library is not checked."""
        if player.compiled is not None:
            wrong = player.samples.wrong
            if not wrong:
                wrong = self.verify_run(player.run, self.workload.second, player.allowance)[1]
            refused = self.refused(player.error, wrong, player.compiled, {}, finals=True)
            if refused is not None:
                return refused
        seen = self._seen(player.run)
        return Measurement(Outcome.MEASURED, "", samples_s, player.error, player.compiled, {}, seen)

    def _libraries(self, threads: Sequence[int]) -> list[Run]:
        default = self.device.library(self.workload)
        if default is None:
            return []
        others = set(threads) - {0, int(self.device.circumstances(default).get("threads", 0))}
        found = [self.device.library(self.workload, count) for count in sorted(others)]
        return [default, *(run for run in found if run is not None)]

    def sentinel(self, named: Sequence[tuple[str, CompiledConfig]], terms: Terms) -> Turns:
        """Verifies participants and library, and times them in turns until enough is known or time is up.

        Args:
            named: The configs with their names, the champion first.
            terms: When to stop.
        """
        turns, players = Turns(), {}
        for name, compiled_config in named:
            admitted = self._admitted(compiled_config, {})
            if isinstance(admitted, _Player):
                players[name] = admitted
            else:
                turns.wrong[name] = admitted.reason
        for run in self._libraries(()):
            players[LIBRARY] = _Player(run, self.verify_run(run)[0], None, self._samples(run))
        if CHAMPION not in players:
            return turns
        try:
            self._take_turns(players, terms, turns)
            for name, player in players.items():
                player.samples.finish()
                if player.samples.wrong and name != LIBRARY:
                    turns.wrong[name] = player.samples.wrong
                    del turns.rounds_s[name]
        except (LaunchFailed, MemoryError) as failure:
            failed = self.failed(failure, None, named[0][1].compiled, {})
            turns.rounds_s.clear()
            turns.wrong[CHAMPION] = f"while all were timed: {failed.reason}"
        return turns

    def _take_turns(self, players: Mapping[str, _Player], terms: Terms, turns: Turns) -> None:
        """Takes turns block by block."""
        begun_s = time.monotonic()
        slowest_s = self._warm_up(players.values(), min(WARM_UP * terms.budget_s, WARM_UP_LIMIT_S))
        count = SAMPLES_PER_TURN if SAMPLES_PER_TURN * slowest_s <= LONG_TURN_S else 1
        names = list(players)
        turns.rounds_s = {name: [] for name in names}
        block_s = 0.0
        for block in range(1_000_000):
            block_begun_s = time.monotonic()
            if block >= MIN_BLOCKS and block_begun_s - begun_s + block_s > terms.budget_s:
                return
            # Each begins in turn, so that none always follows the same one.
            forth = [names[(block + at) % len(names)] for at in range(len(names))]
            for name in (*forth, *reversed(forth)):
                turns.rounds_s[name].append(statistics.median(players[name].samples.take_s(count)))
            readings = self.device.circumstances(players[CHAMPION].run)
            for name in READ:
                if name in readings:
                    turns.circumstances.setdefault(name, []).append(readings[name])
            block_s = time.monotonic() - block_begun_s
            if not terms.full and decided(turns.rounds_s, terms.bound):
                return

    def _warm_up(self, players: Iterable[_Player], seconds: float) -> float:
        """Runs all untimed for a while; returns the most seconds that a run takes with what surrounds it."""
        begun_s = time.monotonic()
        slowest_s = 0.0
        while True:
            for player in players:
                run_begun_s = time.monotonic()
                self.device.samples_s(player.run, 1, self.regime)
                slowest_s = max(slowest_s, time.monotonic() - run_begun_s)
            if time.monotonic() - begun_s >= seconds:
                return slowest_s

    def survey_library(self) -> Measurement | None:
        """Times the library for a survey, which does not verify it; None where there is none."""
        try:
            run = self.device.library(self.workload)
            if run is None:
                return None
            self.workload.begin(self.workload.first)
            run()
            self.device.synchronize()
            before = self.workload.inputs.shuffle if self.regime.startswith("cold") else None
            samples = self.device.samples_s(run, SURVEY_SAMPLES, self.regime, before)
            more = min(int(LIBRARY_S / max(samples[-1], 1e-9)), LIBRARY_SAMPLES) - SURVEY_SAMPLES
            samples = samples + (self.device.samples_s(run, more, self.regime, before) if more > 0 else [])
        except (LaunchFailed, MemoryError) as failure:
            return self.failed(failure, None, None, {})
        return self._surveyed(Measurement(Outcome.MEASURED, samples_s=tuple(samples)))

    def survey(self, compiled_config: CompiledConfig) -> Measurement:
        """Verifies a config, then times it three times, or cuts it off as slow.

        Every element of its output is compared with a float64 reference, which costs the output's size: the
        reference is made once for all configs of the problem.

        A first run that takes far too long ends this process; see `survey_first_limit_s`.
        """
        player = self._admitted(compiled_config, {}, survey_first_limit_s(self.best_s))
        if isinstance(player, Measurement):
            return player
        limit_s = math.inf if self.best_s is None else CUT_OFF * self.best_s
        slow = f"slower than {CUT_OFF:g} times the best at this problem"
        if player.first_s > limit_s + ONCE_S:
            return Measurement(Outcome.PRUNED, slow, (player.first_s,))
        try:
            samples = player.samples.take_s(1)
            is_slow = samples[0] > limit_s
            if not is_slow:
                samples += player.samples.turn_s(SURVEY_SAMPLES - 1)
            refused = self.refused(player.error, player.samples.wrong, compiled_config.compiled, {})
        except (LaunchFailed, MemoryError) as failure:
            return self.failed(failure, None, compiled_config.compiled, {})
        if refused is not None or is_slow:
            return refused or Measurement(Outcome.PRUNED, slow, tuple(samples))
        return self._surveyed(Measurement(Outcome.MEASURED, samples_s=tuple(samples)))

    def _surveyed(self, measurement: Measurement) -> Measurement:
        """Notes the best time of a survey."""
        self.best_s = min(self.best_s or math.inf, statistics.median(measurement.samples_s))
        return measurement

    def failed(
        self,
        failure: LaunchFailed | MemoryError,
        error: Error | None,
        compiled: CompileReport | None,
        stages: Mapping[str, float],
    ) -> Measurement:
        """Returns the outcome of a config that could not run; whatever holds memory ends with the worker."""
        if isinstance(failure, LaunchFailed):
            self.unwell |= failure.device_unwell
            reason = str(failure)
        else:
            self.unwell = True
            reason = memory_reason(failure)
        return Measurement(Outcome.LAUNCH_FAILED, reason, (), error, compiled, stages)


@dataclass
class FirstRun:
    """A first run with a time limit: SIGALRM ends this process if the run takes too long.

    Nothing milder stops a kernel, and the parent process sees the reason.

    Attributes:
        device: Where.
        run: The run.
        limit_s: Seconds that it may take; None for no limit.
        took_s: Seconds that it took.
    """

    device: Device
    run: Run
    limit_s: float | None
    took_s: float = 0.0

    def __call__(self) -> None:
        """Runs, and waits for the end."""
        begun_s = time.perf_counter()
        if self.limit_s is not None:
            signal.setitimer(signal.ITIMER_REAL, self.limit_s)
        try:
            self.run()
            self.device.synchronize()
        finally:
            if self.limit_s is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
        self.took_s = time.perf_counter() - begun_s


@dataclass(frozen=True)
class _Player:
    """A config or the library, verified and ready to be timed; the library has no compiler's report."""

    run: Run
    error: Error
    compiled: CompileReport | None
    samples: CheckedSamples
    allowance: float = 1.0
    first_s: float = 0.0


@contextmanager
def _stage(stages: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        stages[name] = time.perf_counter() - start
