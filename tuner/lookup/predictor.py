"""The extension point "predictor": what lookups and studies ask of models of times.

An extra provides one object, a `TimePredictor`. Without it, records, other regimes and defaults answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.extras import provided
from tuner.lookup.answers import Answer, Question
from tuner.lookup.tuned import Tuned

if TYPE_CHECKING:
    from tuner.store.reading import Reader


class PredictedTime(NamedTuple):
    """A config and the seconds that are predicted for it."""

    kernel: str
    config: Config
    time_s: float


class SearchPredictor(Protocol):
    """Predictions for one problem, with given kernels on a device: what a study asks."""

    def candidates(self) -> list[PredictedTime]:
        """Every legal config that the model keeps, the fastest first."""
        ...

    def beside(
        self, timed: Mapping[tuple[str, Config], float], parents: int, count: int
    ) -> list[PredictedTime]:
        """Configs that differ in one or two parameters from the fastest of those timed, the best first.

        Args:
            timed: Kernel and config -> seconds, infinite for what failed. None of these is returned.
            parents: From so many of the fastest the others differ.
            count: How many, at the most.
        """
        ...


class TimePredictor(Protocol):
    """Models of times, by operation and device. A model's attribute ``device`` says where it predicts."""

    def models(
        self,
        operation: str,
        regime: str,
        directory: Path | None = None,
        store: Reader | None = None,
        dtype: str = "",
    ) -> Sequence[Any]:
        """The models of an operation, one for each device, of a dtype where there is one.

        Raises:
            InputError: A published model cannot be read.
            StoreTrouble: The database cannot be read.
        """
        ...

    def answer(
        self, model: Any, question: Question, problem: Problem, kernels: Sequence[Kernel], alike: str = ""
    ) -> Answer | None:
        """What a model answers; None where it does not know such problems, or no config of it is legal.

        Args:
            model: One of `models`.
            question: What is asked.
            problem: The same as it is declared now.
            kernels: The kernels that may answer.
            alike: In what the model's device is like the question's; empty where it is the same.
        """
        ...

    def remembered(self, tuned: Sequence[Tuned], kernels: Sequence[Kernel]) -> Any:
        """What tuned problems, at least one, say of others, ready for `answer_near`."""
        ...

    def answer_near(
        self, remembered: Any, question: Question, problem: Problem, alike: str = ""
    ) -> Answer | None:
        """What tuned problems answer; None where no legal config was good near by. Arguments as of `answer`."""
        ...

    def search(
        self, problem: Problem, kernels: Sequence[Kernel], device: DeviceInfo, regime: str, store: Reader | None
    ) -> SearchPredictor | None:
        """Predictions for a study; None where no model of the device knows the problem and its kernels."""
        ...


def predictor() -> TimePredictor | None:
    """The predictor that an extra provides; None without one."""
    return next(iter(provided("predictor")), None)
