"""Measures one config: load, verify, time. Failures become outcomes."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tuner.declare.kernel import Rendered
from tuner.devices.protocol import Device, LaunchFailed, Run
from tuner.measuring.sampling import CheckedSamples
from tuner.measuring.timing import Screened, interleave, lost_at_first, screen_by
from tuner.measuring.workload import Draw, Workload
from tuner.results.error_limit import ErrorLimit
from tuner.results.measurement import CompileReport, Error, Measurement, Outcome, memory_reason

#: Why nothing can be said of a config that gave a wrong result.
SPOILT = "what results are held against was overwritten, by this config or one before it"


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


@dataclass
class Bench:
    """One problem on one device in one regime, where configs are measured one after another.

    Attributes:
        device: Where.
        workload: Arrays and references.
        regime: How time is taken.
        energy: True to measure the energy of a run, too: ``power_w`` of runs back to back times the median
            time is ``energy_j`` of the circumstances, where the device tells its power.
        unwell: True after a failure that may have poisoned the device's context.
        limit: What the error of a config may be; see `limit_error`.
    """

    device: Device
    workload: Workload
    regime: str
    energy: bool = False
    unwell: bool = field(default=False, init=False)
    limit: ErrorLimit | None = field(default=None, init=False)

    def limit_error(self, factor: float) -> None:
        """From now on what is less exact than so many times the library, at these inputs, is INACCURATE."""
        run = self.device.library(self.workload)
        error = self.verify_run(run)[0] if run is not None else None
        self.limit = ErrorLimit.beside(factor, error, self.workload.problem)

    def measure(
        self, compiled_config: CompiledConfig, incumbent_s: float | None, first_limit_s: float | None = None
    ) -> Measurement:
        """Loads, verifies and times a config.

        Args:
            compiled_config: What to measure.
            incumbent_s: Best median so far in seconds; a config that cannot win against it is pruned.
            first_limit_s: Seconds that its first run may take, or else this process ends.
        """
        stages = {"compile": compiled_config.compile_s}
        error: Error | None = None
        try:
            with _stage(stages, "load"):
                run = self.device.load(compiled_config.rendered, compiled_config.code, self.workload)
            first = FirstRun(self.device, run, first_limit_s)
            with _stage(stages, "verify"):
                error, wrong = self.verify_run(first)
            refused = self.refused(error, wrong, compiled_config.compiled, stages)
            if refused is not None:
                return refused
            screened, wrong = self._screened(run, first.took_s, incumbent_s, stages)
            refused = self.refused(error, wrong, compiled_config.compiled, stages)
            if refused is not None:
                return refused
            seen = self._seen(run)
            if self.energy and not screened.pruned:
                with _stage(stages, "power"):
                    seen |= self._energy(run, statistics.median(screened.samples_s))
        except (LaunchFailed, MemoryError) as failure:
            return self.failed(failure, error, compiled_config.compiled, stages)
        return Measurement(
            outcome=Outcome.PRUNED if screened.pruned else Outcome.MEASURED,
            reason=screened.pruned,
            samples_s=screened.samples_s,
            error=error,
            compiled=compiled_config.compiled,
            stages_s=stages,
            circumstances=seen,
        )

    def _screened(
        self, run: Run, first_s: float, incumbent_s: float | None, stages: dict[str, float]
    ) -> tuple[Screened, str]:
        """Times a run that took so long the first time; also what is wrong with it."""
        lost = lost_at_first(first_s, incumbent_s)
        if lost is not None:
            return lost, ""
        samples = self._samples(run)
        with _stage(stages, "time"):
            screened = screen_by(samples.take_s, incumbent_s)
            if not screened.pruned:
                samples.finish()
        stages["time"] -= samples.check_s
        stages["verify"] += samples.check_s
        return screened, samples.wrong

    def _samples(self, run: Run) -> CheckedSamples:
        return CheckedSamples(self.device, run, self.regime, self.workload)

    def verify_run(self, run: Run, draw: Draw | None = None) -> tuple[Error, str]:
        """Error and complaint of a run on a draw of the inputs: the first unless given."""
        self.workload.begin(draw or self.workload.first)
        run()
        self.device.synchronize()
        return self.workload.check()

    def refused(
        self,
        error: Error,
        wrong: str,
        compiled: CompileReport,
        stages: Mapping[str, float],
        finals: bool = False,
    ) -> Measurement | None:
        """What is not timed: a wrong result, or one outside of the limit."""
        if wrong and not self.workload.sound():
            # Not necessarily this config's doing: it is tried again in a fresh worker.
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
        """The circumstances of a run, and the limit of the error."""
        kept = self.limit.circumstances if self.limit is not None else {}
        return {**self.device.circumstances(run), **kept}

    def verify(self, compiled_config: CompiledConfig) -> str:
        """What is wrong with a config's output; empty when nothing is."""
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
        with _stage(stages, "verify"):
            error, wrong = self.verify_run(run)
        samples = self._samples(run)
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
        """Power while runs go on back to back, and energy of one; nothing where the device tells no power."""
        power_w = self.device.power_w(run)
        return {} if power_w is None else {"power_w": power_w, "energy_j": power_w * time_s}

    def finals(
        self, compiled_configs: Sequence[CompiledConfig], budget_s: float, threads: Sequence[int] = ()
    ) -> list[Measurement]:
        """Verifies finalists again, times them in alternation with the library, and verifies them once more.

        Before the rounds each is verified on two draws of the inputs, after them on one that is new to all.

        Args:
            compiled_configs: The finalists.
            budget_s: Wall time for the rounds in seconds.
            threads: CPU threads that the finalists use; the library plays with its default, and with each
                other number of these.

        Returns:
            A measurement for each; then the library's, if there is one: with its default of threads first.
            Without the library's where no finalist could be timed.
        """
        found: dict[int, Measurement] = {}
        players: dict[int, _Player] = {}
        for number, compiled_config in enumerate(compiled_configs):
            admitted = self._admitted(compiled_config)
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

    def _admitted(self, compiled_config: CompiledConfig) -> _Player | Measurement:
        """A finalist that is right on two draws, or what is wrong with it."""
        try:
            run = self.device.load(compiled_config.rendered, compiled_config.code, self.workload)
            error, wrong = self.verify_run(run)
            if not wrong:
                wrong = self.verify_run(run, self.workload.second)[1]
        except (LaunchFailed, MemoryError) as failure:
            return self.failed(failure, None, compiled_config.compiled, {})
        refused = self.refused(error, wrong, compiled_config.compiled, {}, finals=True)
        return refused or _Player(run, error, compiled_config.compiled, self._samples(run))

    def _judged(self, player: _Player, samples_s: tuple[float, ...]) -> Measurement:
        """A finalist after the rounds, on inputs that are new to it; the library is not asked."""
        if player.compiled is not None:
            wrong = player.samples.wrong
            if not wrong:
                wrong = self.verify_run(player.run, self.workload.second)[1]
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

    def failed(
        self,
        failure: LaunchFailed | MemoryError,
        error: Error | None,
        compiled: CompileReport,
        stages: Mapping[str, float],
    ) -> Measurement:
        """What came of a config that could not be run; who holds memory that is short goes with the worker."""
        if isinstance(failure, LaunchFailed):
            self.unwell |= failure.device_unwell
            reason = str(failure)
        else:
            self.unwell = True
            reason = memory_reason(failure)
        return Measurement(Outcome.LAUNCH_FAILED, reason, (), error, compiled, stages)


@dataclass
class FirstRun:
    """A run that is timed from outside, and ends this process by SIGALRM where it takes too long.

    Nothing milder stops a kernel, and who began this process sees why it ended.

    Attributes:
        device: Where.
        run: The run.
        limit_s: What it may take; None for any time.
        took_s: What it took, in seconds.
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
    """Who is timed in the finals; the library has no compiler's report."""

    run: Run
    error: Error
    compiled: CompileReport | None
    samples: CheckedSamples


@contextmanager
def _stage(stages: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        stages[name] = time.perf_counter() - start
