"""Times many configs at one problem quickly: each is verified, then timed three times, or cut off as slow."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from tuner.devices.protocol import Device, LaunchFailed, Run
from tuner.results.measurement import Measurement, Outcome
from tuner.workers.bench import Bench, CompiledConfig, FirstRun
from tuner.workers.sampling import CheckedSamples
from tuner.workers.workload import Workload

#: What takes this many times the best of library and configs is not timed again: a model needs to know that it
#: is slow, not how slow.
CUT_OFF = 6.0
#: A first run takes so many seconds more than a timed one, for what happens once: beyond that it tells enough.
ONCE_S = 0.02
#: Seconds that a first run may take, and times of the best: to replace the worker takes some seconds, too.
FIRST_FLOOR_S, FIRST_FACTOR = 4.0, 20.0
#: Samples of what is not cut off.
SAMPLES = 3
#: Samples of the library, with which all configs are compared: what fits into these seconds, so many at most.
LIBRARY_S, LIBRARY_SAMPLES = 0.01, 9


def first_limit_s(best_s: float | None) -> float:
    """Seconds that a config's first run may take where the best takes so many, or none was timed yet."""
    return max(FIRST_FLOOR_S, FIRST_FACTOR * (best_s or 0.0))


@dataclass
class SurveyBench:
    """One problem on one device in one regime, for a survey.

    Attributes:
        device: Where.
        workload: Arrays and references.
        regime: How time is taken.
        best_s: Best time so far at this problem in seconds, the library's too; None while there is none.
        unwell: True after a failure that may have poisoned the device's context.
    """

    device: Device
    workload: Workload
    regime: str
    best_s: float | None = None
    unwell: bool = field(default=False, init=False)

    def library(self) -> Measurement | None:
        """Times the library, which is not verified; None where there is none."""
        try:
            run = self.device.library(self.workload)
            if run is None:
                return None
            self.workload.begin(self.workload.first)
            run()
            self.device.synchronize()
            before = self.workload.inputs.shuffle if self.regime.startswith("cold") else None
            samples = self.device.samples_s(run, SAMPLES, self.regime, before)
            more = min(int(LIBRARY_S / max(samples[-1], 1e-9)), LIBRARY_SAMPLES) - SAMPLES
            samples = samples + (self.device.samples_s(run, more, self.regime, before) if more > 0 else [])
        except (LaunchFailed, MemoryError) as failure:
            self.unwell = isinstance(failure, MemoryError) or failure.device_unwell
            return Measurement(Outcome.LAUNCH_FAILED, str(failure))
        self._beat(statistics.median(samples))
        return Measurement(Outcome.MEASURED, samples_s=tuple(samples))

    def time(self, compiled_config: CompiledConfig) -> Measurement:
        """Verifies and times a config.

        Every element of its output is compared with a float64 reference, which costs the output's size: the
        reference is made once for all configs of the problem.

        A first run that takes far too long ends this process; see `first_limit_s`.
        """
        bench = Bench(self.device, self.workload, self.regime)
        try:
            run = self.device.load(compiled_config.rendered, compiled_config.code, self.workload)
            first = FirstRun(self.device, run, first_limit_s(self.best_s))
            error, wrong = bench.verify_run(first)
            found = bench.refused(error, wrong, compiled_config.compiled, {})
            if found is None:
                found, wrong = self._timed(run, first.took_s)
                found = bench.refused(error, wrong, compiled_config.compiled, {}) or found
        except (LaunchFailed, MemoryError) as failure:
            found = bench.failed(failure, None, compiled_config.compiled, {})
        self.unwell |= bench.unwell
        if found.outcome is Outcome.MEASURED:
            self._beat(statistics.median(found.samples_s))
        return found

    def _beat(self, time_s: float) -> None:
        self.best_s = time_s if self.best_s is None else min(time_s, self.best_s)

    def _timed(self, run: Run, first_s: float) -> tuple[Measurement, str]:
        """Times a run that is right and took so long the first time; also what is wrong with a timed run."""
        limit_s = float("inf") if self.best_s is None else CUT_OFF * self.best_s
        slow = f"slower than {CUT_OFF:g} times the best at this problem"
        if first_s > limit_s + ONCE_S:
            return Measurement(Outcome.PRUNED, slow, (first_s,)), ""
        checked = CheckedSamples(self.device, run, self.regime, self.workload)
        samples = checked.take_s(1)
        if samples[0] > limit_s:
            return Measurement(Outcome.PRUNED, slow, tuple(samples)), checked.wrong
        samples += checked.turn_s(SAMPLES - 1)
        return Measurement(Outcome.MEASURED, samples_s=tuple(samples)), checked.wrong
