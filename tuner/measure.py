"""Measures one config: load, verify, time. Failures become outcomes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tuner.accuracy import ErrorLimit
from tuner.correctness import Workload
from tuner.devices.protocol import Device, LaunchFailed, Run
from tuner.kernel import Rendered
from tuner.measurement import CompileReport, Error, Measurement, Outcome, memory_reason
from tuner.timing import interleave, screen


@dataclass(frozen=True)
class Contestant:
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
        error = self._verify(run)[0] if run is not None else None
        self.limit = ErrorLimit.beside(factor, error, self.workload.problem)

    def measure(self, contestant: Contestant, incumbent_s: float | None) -> Measurement:
        """Loads, verifies and times a config.

        Args:
            contestant: What to measure.
            incumbent_s: Best median so far in seconds; a config that cannot win against it is pruned.
        """
        stages = {"compile": contestant.compile_s}
        error: Error | None = None
        try:
            with _stage(stages, "load"):
                run = self.device.load(contestant.rendered, contestant.code, self.workload)
            with _stage(stages, "verify"):
                error, wrong = self._verify(run)
            refused = self._refused(error, wrong, contestant.compiled, stages)
            if refused is not None:
                return refused
            with _stage(stages, "time"):
                screened = screen(self.device, run, self.regime, incumbent_s)
            seen = self._seen(run)
            if self.energy and not screened.pruned:
                with _stage(stages, "power"):
                    seen |= self._energy(run, statistics.median(screened.samples_s))
        except (LaunchFailed, MemoryError) as failure:
            return self._failed(failure, error, contestant.compiled, stages)
        return Measurement(
            outcome=Outcome.PRUNED if screened.pruned else Outcome.MEASURED,
            reason=screened.pruned,
            samples_s=screened.samples_s,
            error=error,
            compiled=contestant.compiled,
            stages_s=stages,
            circumstances=seen,
        )

    def _verify(self, run: Run) -> tuple[Error, str]:
        self.workload.poison()
        run()
        self.device.synchronize()
        return self.workload.check()

    def _refused(
        self,
        error: Error,
        wrong: str,
        compiled: CompileReport,
        stages: Mapping[str, float],
        finals: bool = False,
    ) -> Measurement | None:
        """What is not timed: a wrong result, or one outside of the limit."""
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

    def verify(self, contestant: Contestant) -> str:
        """What is wrong with a config's output; empty when nothing is."""
        try:
            return self._verify(self.device.load(contestant.rendered, contestant.code, self.workload))[1]
        except (LaunchFailed, MemoryError) as failure:
            return self._failed(failure, None, contestant.compiled, {}).reason

    def measure_baseline(self) -> Measurement | None:
        """Verifies and times the library with the same code as a kernel."""
        run = self.device.library(self.workload)
        if run is None:
            return None
        stages: dict[str, float] = {}
        with _stage(stages, "verify"):
            error, wrong = self._verify(run)
        with _stage(stages, "time"):
            screened = screen(self.device, run, self.regime, None)
        seen = dict(self.device.circumstances(run))
        if self.energy:
            with _stage(stages, "power"):
                seen |= self._energy(run, statistics.median(screened.samples_s))
        return Measurement(Outcome.MEASURED, wrong, screened.samples_s, error, None, stages, seen)

    def _energy(self, run: Run, time_s: float) -> dict[str, float]:
        """Power while runs go on back to back, and energy of one; nothing where the device tells no power."""
        power_w = self.device.power_w(run)
        return {} if power_w is None else {"power_w": power_w, "energy_j": power_w * time_s}

    def finals(
        self, contestants: Sequence[Contestant], budget_s: float, threads: Sequence[int] = ()
    ) -> list[Measurement]:
        """Verifies finalists again and times them in alternation with the library.

        Args:
            contestants: The finalists.
            budget_s: Wall time for the rounds in seconds.
            threads: CPU threads that the finalists use; the library plays with its default, and with each
                other number of these.

        Returns:
            A measurement for each; then the library's, if there is one: with its default of threads first.
        """
        found: list[Measurement | None] = []
        playing: list[tuple[Run, Error, CompileReport | None]] = []
        for contestant in contestants:
            try:
                run = self.device.load(contestant.rendered, contestant.code, self.workload)
                error, wrong = self._verify(run)
            except (LaunchFailed, MemoryError) as failure:
                found.append(self._failed(failure, None, contestant.compiled, {}))
                continue
            refused = self._refused(error, wrong, contestant.compiled, {}, finals=True)
            found.append(refused)
            if refused is not None:
                continue
            playing.append((run, error, contestant.compiled))
        for run in self._libraries(threads):
            found.append(None)
            playing.append((run, self._verify(run)[0], None))
        times = interleave(self.device, [run for run, _, _ in playing], self.regime, budget_s)
        timed = iter(
            Measurement(Outcome.MEASURED, "", samples_s, error, compiled, {}, self._seen(run))
            for samples_s, (run, error, compiled) in zip(times, playing, strict=True)
        )
        return [each or next(timed) for each in found]

    def _libraries(self, threads: Sequence[int]) -> list[Run]:
        default = self.device.library(self.workload)
        if default is None:
            return []
        others = set(threads) - {0, int(self.device.circumstances(default).get("threads", 0))}
        found = [self.device.library(self.workload, count) for count in sorted(others)]
        return [default, *(run for run in found if run is not None)]

    def _failed(
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


@contextmanager
def _stage(stages: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        stages[name] = time.perf_counter() - start
