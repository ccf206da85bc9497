"""This package as the core's extension point "predictor" (`tuner.lookup.snapshot.predictor`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.lookup.answers import Answer, Question
from tuner.lookup.tuned import Tuned
from tuner.model.fitted import Model
from tuner.model.predict import PredictedTime, Predictor
from tuner.model.remembered import Remembered
from tuner.model.shelf import models
from tuner.model.tiers import from_model, predictor_for
from tuner.results.equivalence import latest_hash

if TYPE_CHECKING:
    from tuner.store.reading import Reader


@dataclass(frozen=True)
class ProblemPredictions:
    """A model's predictions for one problem."""

    _predictor: Predictor
    _problem: Problem

    def candidates(self) -> list[PredictedTime]:
        """Every legal config that the model keeps, the fastest first."""
        count = len(self._predictor.model.configs)
        return self._predictor.candidates(self._problem, count)

    def beside(
        self, timed: Mapping[tuple[str, Config], float], parents: int, count: int
    ) -> list[PredictedTime]:
        """See `Predictor.beside`."""
        return self._predictor.beside(self._problem, timed, parents, count)


class FittedModels:
    """Fitted models, published or in a database."""

    def models(
        self,
        operation: str,
        regime: str,
        directory: Path | None = None,
        store: Reader | None = None,
        dtype: str = "",
    ) -> Sequence[Model]:
        """See `tuner.model.shelf.models`."""
        return models(operation, regime, directory, store, dtype)

    def answer(
        self, model: Model, question: Question, problem: Problem, kernels: Sequence[Kernel], alike: str = ""
    ) -> Answer | None:
        """See `tuner.model.tiers.from_model`."""
        return from_model(model, question, problem, kernels, alike)

    def near(self, tuned: Sequence[Tuned], kernels: Sequence[Kernel]) -> Remembered:
        """See `Remembered`."""
        return Remembered(tuned, kernels)

    def search(
        self, problem: Problem, kernels: Sequence[Kernel], device: DeviceInfo, regime: str, store: Reader | None
    ) -> ProblemPredictions | None:
        """Predictions of the device's model, by the kernels whose sources are those of its survey."""
        every = models(problem.operation.name, regime, store=store, dtype=problem.dtype)
        model = next((each for each in every if each.device.name == device.name), None)
        if model is None or not model.knows(problem):
            return None
        sources = model.provenance.get("sources", {})
        surveyed = [each for each in kernels if latest_hash(sources.get(each.name, "")) == each.source_hash]
        return ProblemPredictions(predictor_for(model, surveyed, device), problem) if surveyed else None


PREDICTOR = FittedModels()
