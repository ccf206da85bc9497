"""Measures one config: load, verify, time. Failures become outcomes."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tuner.declare.kernel import Rendered
from tuner.declare.problem import IEEE
from tuner.devices.protocol import Device, LaunchFailed, Run
from tuner.results.measurement import CompileReport, Error, Measurement, Outcome, memory_reason
from tuner.results.objectives import ErrorLimit
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
    """

    device: Device
    workload: Workload
    regime: str
    energy: bool = False
    unwell: bool = field(default=False, init=False)
    limit: ErrorLimit | None = field(default=None, init=False)

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
        error: Error | None = None
        try:
            with _stage(stages, "load"):
                run = self.device.load(compiled_config.rendered, compiled_config.code, self.workload)
            first = FirstRun(self.device, run, first_limit_s)
            with _stage(stages, "verify"):
                allowance = compiled_config.rendered.allowance
                error, wrong = self.verify_run(first, allowance=allowance)
            refused = self.refused(error, wrong, compiled_config.compiled, stages)
            if refused is not None:
                return refused
            samples = self._samples(run, allowance)
            screened, wrong = self._screened(samples, first.took_s, incumbent_s, stages)
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
        compiled: CompileReport,
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
        """Returns a finalist that is correct on two draws, or the reason why it is not."""
        try:
            run = self.device.load(compiled_config.rendered, compiled_config.code, self.workload)
            allowance = compiled_config.rendered.allowance
            error, wrong = self.verify_run(run, allowance=allowance)
            for poison in POISONS[1:]:
                wrong = wrong or self._over(poison, run, allowance)
            broken = "" if wrong or allowance > 1 else self._promise(run)
        except (LaunchFailed, MemoryError) as failure:
            return self.failed(failure, None, compiled_config.compiled, {})
        refused = self.refused(error, wrong, compiled_config.compiled, {}, finals=True)
        if refused is None and broken:
            refused = Measurement(Outcome.INACCURATE, broken, (), error, compiled_config.compiled)
        samples = self._samples(run, allowance)
        return refused or _Player(run, error, compiled_config.compiled, samples, allowance)

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

    def failed(
        self,
        failure: LaunchFailed | MemoryError,
        error: Error | None,
        compiled: CompileReport,
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
    """A participant of the finals; the library has no compiler's report."""

    run: Run
    error: Error
    compiled: CompileReport | None
    samples: CheckedSamples
    allowance: float = 1.0


@contextmanager
def _stage(stages: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        stages[name] = time.perf_counter() - start
