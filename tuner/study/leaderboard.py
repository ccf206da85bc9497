"""How the measured configs of a study compare, and the machine code of the best."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.declare.space import Config
from tuner.measuring.bench import CompiledConfig
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import TIME, resolved, values_of
from tuner.search import front, front_value
from tuner.study.progress import Progress

#: Compiled configs kept for the finals, at the most.
KEPT = 32


class Leaderboard:
    """The measured configs of a study, and the machine code of the best.

    Attributes:
        times_s: (kernel, config) -> median in seconds.
        stopped_s: (kernel, config) -> the fastest sample of what was stopped early, in seconds.
        compiled_configs: The compiled among the best of them.
        best_s: The least of the times; None while there is none.
        objectives: What the study minimises.
        with_objectives: Where there are several objectives: (kernel, config) -> its measurement, if it has all.
        front: Those of them that no other beats.
    """

    def __init__(self, objectives: tuple[str, ...] = TIME, progress: Progress | None = None) -> None:
        """Begins.

        Args:
            objectives: What the study minimises.
            progress: Is kept up to date.
        """
        self.objectives = objectives
        self._progress = progress or Progress()
        self.with_objectives: dict[tuple[str, Config], Measurement] = {}
        self.front: list[tuple[str, Config]] = []
        self.times_s: dict[tuple[str, Config], float] = {}
        self.stopped_s: dict[tuple[str, Config], float] = {}
        self.compiled_configs: dict[tuple[str, Config], CompiledConfig] = {}
        self.best_s: float | None = None

    def add_trial(
        self,
        kernel: str,
        config: Config,
        measurement: Measurement,
        compiled_config: CompiledConfig | None = None,
    ) -> None:
        """Counts a trial, and ranks it if it was measured."""
        self._progress.count(measurement)
        if measurement.outcome is Outcome.PRUNED and measurement.samples_s:
            self.stopped_s[kernel, config] = min(measurement.samples_s)
        time_s = measurement.time_s
        if measurement.outcome is not Outcome.MEASURED or time_s is None:
            return
        if self._add(kernel, config, time_s, compiled_config):
            self._progress.lead(time_s, f"{kernel} {config}")
        self.add_objectives(kernel, config, measurement)
        self._progress.set_front(len(self.front))

    def _add(self, kernel: str, config: Config, time_s: float, compiled_config: CompiledConfig | None) -> bool:
        """Takes a measured config in; True if it is the best."""
        self.times_s[kernel, config] = time_s
        if compiled_config is not None:
            self.compiled_configs[kernel, config] = compiled_config
            if len(self.compiled_configs) > KEPT:
                ranked = sorted(self.compiled_configs, key=lambda each: self.times_s[each])
                self.compiled_configs = {each: self.compiled_configs[each] for each in ranked[: KEPT // 2]}
        if self.best_s is None or time_s < self.best_s:
            self.best_s = time_s
            return True
        return False

    def add_objectives(self, kernel: str, config: Config, measurement: Measurement) -> None:
        """Takes in all objectives of a measured config, where there are several."""
        if len(self.objectives) > 1 and values_of(measurement, self.objectives) is not None:
            self.with_objectives[kernel, config] = measurement
            self.front = self.front_of(
                [each for each in self.front if each != (kernel, config)] + [(kernel, config)]
            )

    def front_of(self, configs: Iterable[tuple[str, Config]]) -> list[tuple[str, Config]]:
        """Those of weighed configs that no other of them beats, the fastest first."""
        ranked = sorted(configs, key=self.values)
        return [ranked[at] for at in front([resolved(self.values(each)) for each in ranked])]

    def values(self, of: tuple[str, Config]) -> tuple[float, ...]:
        """The objectives of a config that has been weighed."""
        return values_of(self.with_objectives[of], self.objectives) or ()

    @property
    def objective_value(self) -> float | None:
        """A number that falls as the search gets on: the best time, or how good the front is."""
        if len(self.objectives) == 1:
            return self.best_s
        return front_value([self.values(each) for each in self.front]) if self.front else None
