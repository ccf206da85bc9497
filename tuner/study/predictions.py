"""What a model of times says of a study's configs before the first trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.lookup.model.fitted import Model
from tuner.lookup.model.predict import Predictor
from tuner.lookup.model.shelf import models
from tuner.lookup.predicted import predictor_for
from tuner.results.equivalence import latest_hash
from tuner.results.measurement import Outcome
from tuner.search import Observation
from tuner.store.reading import Reader

#: Configs that a study tries first.
STARTS = 8
#: Configs that others are looked for beside, and how many of these a search knows.
PARENTS, FURTHER = 4, 64
#: Kernel and config.
Named = tuple[str, Config]


class Predictions:
    """A model's word on the kernels of a study; empty where the device has no model, or it does not know them.

    Attributes:
        starts: Kernel and config: what to try first of what the model keeps, the best first.
        elsewhere: Predicted times of what it keeps, as if they had been measured elsewhere.
    """

    def __init__(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        device: DeviceInfo,
        regime: str,
        store: Reader | None = None,
    ) -> None:
        """Asks the model.

        Args:
            problem: What is computed.
            kernels: Which compete.
            device: Where.
            regime: How time is taken.
            store: May have a model of its own.
        """
        self.starts: list[Named] = []
        self.elsewhere: list[Observation] = []
        self._predictor: Predictor | None = None
        every = models(problem.operation.name, regime, store=store, dtype=problem.dtype)
        found = next((each for each in every if each.device.name == device.name), None)
        known = _surveyed(found, kernels) if found is not None else []
        if found is None or not known or not found.knows(problem):
            return
        self._problem, self._predictor = problem, predictor_for(found, known, device)
        candidates = self._predictor.candidates(problem, len(found.configs))
        self.starts = [(each.kernel, each.config) for each in candidates[:STARTS]]
        self.elsewhere = [
            Observation(each.kernel, each.config, Outcome.MEASURED, each.time_s) for each in candidates
        ]

    @cached_property
    def further(self) -> list[Observation]:
        """Predicted times of configs beside those to try first, the best first."""
        if self._predictor is None:
            return []
        kept = [(each.kernel, each.config) for each in self.elsewhere]
        known = dict.fromkeys(kept, math.inf)
        known |= {(each.kernel, each.config): each.time_s or math.inf for each in self.elsewhere[:STARTS]}
        return [
            Observation(each.kernel, each.config, Outcome.MEASURED, each.time_s)
            for each in self._predictor.beside(self._problem, known, STARTS, FURTHER)
        ]

    def beside(self, timed: Mapping[Named, float]) -> list[Named]:
        """What to try after some configs: the most promising ones beside the fastest of them, the best first.

        Args:
            timed: Kernel and config -> seconds.
        """
        if self._predictor is None:
            return []
        return [
            (each.kernel, each.config) for each in self._predictor.beside(self._problem, timed, PARENTS, STARTS)
        ]


def _surveyed(model: Model, kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels whose sources are those of the survey."""
    sources = model.provenance.get("sources", {})
    return [each for each in kernels if latest_hash(sources.get(each.name, "")) == each.source_hash]
