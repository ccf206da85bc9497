"""Answers of a fitted model, by NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Space
from tuner.errors import InputError
from tuner.lookup.legality import Choices
from tuner.model.calibrate import FIRST, doubted
from tuner.model.evidence import CHANGED, WEIGHT, Adapted, adapted
from tuner.model.fitted import Model, There, lot_of
from tuner.results.distance import Floats, Numbers

#: Kernel and config.
Named = tuple[str, Config]
#: Configs that the first trees find worth the others.
SCREENED = 160
#: Pairs of changes to a config that are looked at; of more, so many are drawn.
PAIRS = 20_000
#: Answers that a predictor keeps; the same of what is beside others, which takes tenths of a second.
KEPT, KEPT_BESIDE = 4096, 64


class PredictedTime(NamedTuple):
    """A config and the seconds that are predicted for it."""

    kernel: str
    config: Config
    time_s: float


@dataclass(frozen=True)
class Prediction:
    """What a model answers.

    Attributes:
        best: The config that is predicted to be the fastest of those that obey all constraints, or else
            of those that are legal; None if none is.
        library_s: Predicted time of the library; infinite where there is none.
        gain: log(library / best), as predicted and as far as what was timed near by supports it; minus infinity
            if no config is legal.
        by_library: Whether the library is answered: no kernel's gain outweighs the uncertainty.
        expected_loss: Fraction of speed that the answer loses, 1 - best / answered, as measured at problems
            like this one that the model was not fitted to.
        loss_interval: Its 80 % interval.
        time_interval_s: The 80 % interval of the answer's time.
        foreseen: log(library / best) as trees and networks predict it.
        near: The same by what was timed near by.
    """

    best: PredictedTime | None
    library_s: float
    gain: float
    by_library: bool
    expected_loss: float
    loss_interval: tuple[float, float]
    time_interval_s: tuple[float, float]
    foreseen: float
    near: float


@dataclass(frozen=True)
class _Known:
    """The configs that an answer is chosen among.

    Attributes:
        numbers: Of those of the shortlist.
        made: Those that are not of it, which follow.
        behind: How far behind the fastest each is expected to be by what was timed near by.
        gain: log(library / config) near by.
    """

    numbers: Numbers
    made: Adapted
    behind: Floats
    gain: Floats


class Predictor:
    """Answers for one model, with the kernels as they are declared now, on one device."""

    def __init__(self, model: Model, kernels: Mapping[str, Kernel], device: DeviceInfo | None = None) -> None:
        """Takes a model.

        Args:
            model: The model.
            kernels: By name. Configs of a kernel that is missing, or that are not points of its parameters
                any more, are never answered.
            device: Where answers are to be legal; the surveyed one unless given.
        """
        self.model, self._device, self._kernels = model, device or model.device, kernels
        self._kept: dict[tuple[str, Problem], Prediction] = {}
        self._kept_beside: dict[tuple[object, ...], list[PredictedTime]] = {}
        self._choices = Choices(model.configs, kernels.values())

    def answer(self, problem: Problem) -> Prediction:
        """What to run for a problem; the last few thousand answers are kept.

        Raises:
            InputError: The model does not know such problems.
        """
        key = problem.operation.name, problem
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            kept = self._kept[key] = self._answer(problem)
        return kept

    def _answer(self, problem: Problem) -> Prediction:
        there, known = self._known(problem)
        fastest = self._fastest(there, known, 1)
        found = self._candidate(known, *fastest[0]) if fastest else None
        library = there.library_log_s()
        kernel = math.log(found.time_s) if found else math.inf
        calibration = self.model.calibration
        # What was timed near by may cast doubt on what is predicted: trees extrapolate.
        near = float(known.gain[fastest[0][0]]) if fastest else -math.inf
        foreseen = library - kernel if fastest else -math.inf
        gain = float(doubted(foreseen, near, calibration.doubt)) if fastest else -math.inf
        by_library = not gain > calibration.margin and math.isfinite(library)
        dims = np.log([size for _, size in problem.shape])
        expected, most, spread = calibration.figures(dims, gain)
        answered = library if by_library else kernel
        return Prediction(
            found, math.exp(library), gain, by_library, expected, (0.0, min(most, 1.0)),
            (math.exp(answered + spread[0]), math.exp(answered + spread[1])), foreseen, near,
        )  # fmt: skip

    def candidates(self, problem: Problem, count: int = FIRST) -> list[PredictedTime]:
        """The configs worth trying that are predicted to be the fastest, the best first: what is worth timing.

        Raises:
            InputError: The model does not know such problems.
        """
        there, known = self._known(problem)
        return [self._candidate(known, *each) for each in self._fastest(there, known, count)]

    def beside(
        self, problem: Problem, timed: Mapping[Named, float], parents: int, count: int = FIRST
    ) -> list[PredictedTime]:
        """Configs that differ in one or two parameters from the fastest of those timed, the best first.

        The model tells how much faster each is than the one that it differs from, whose time is known: what the
        model is off by at this problem does not count. A model of an earlier version that cannot be asked about
        configs other than its own knows none.

        Args:
            problem: The problem.
            timed: Kernel and config of all that was tried -> seconds, infinite for what failed. None of these
                is returned.
            parents: From so many of the fastest the others differ.
            count: How many, at the most.

        Raises:
            InputError: The model does not know such problems.
        """
        if not self.model.knows(problem):
            raise InputError(
                f"a model tells of what it was fitted to, which {problem} is not; survey that, too"
            )
        if self.model.columns is None:
            return []
        key = problem, frozenset(timed.items()), parents, count
        if key not in self._kept_beside:
            if len(self._kept_beside) >= KEPT_BESIDE:
                self._kept_beside.clear()
            self._kept_beside[key] = self._looked_up_beside(problem, timed, parents, count)
        return list(self._kept_beside[key])

    def _looked_up_beside(
        self, problem: Problem, timed: Mapping[Named, float], parents: int, count: int
    ) -> list[PredictedTime]:
        found: dict[Named, float] = {}
        for (name, config), time_s in sorted(timed.items(), key=lambda each: each[1])[:parents]:
            kernel, numbers = self._kernels.get(name), self._choices.points.get(name)
            if kernel is None or numbers is None or not kernel.parameters or not math.isfinite(time_s):
                continue
            space = Space.at(kernel.parameters, kernel.constraints, problem, self._device, config)
            around = (space[at] for at in space.beside(0, PAIRS).tolist())
            here = [config, *(each for each in around if (name, each) not in timed)]
            log_s = self._log_s(problem, name, here, self._most_like(numbers, config))
            for each, behind in zip(here[1:], (log_s[1:] - log_s[0]).tolist(), strict=True):
                expected = math.log(time_s) + behind
                found[name, each] = min(found.get((name, each), math.inf), expected)
        best = sorted(found, key=found.__getitem__)[:count]
        return [PredictedTime(*each, math.exp(found[each])) for each in best]

    def _most_like(self, numbers: Numbers, config: Config) -> int:
        """Of configs of the shortlist the one that has most of another's values."""
        every = [self.model.configs[at][1] for at in numbers.tolist()]
        shared = [sum(each[name] == value for name, value in config.items()) for each in every]
        return int(numbers[int(np.argmax(shared))])

    def _log_s(self, problem: Problem, name: str, configs: Sequence[Config], origin: int) -> Floats:
        """Logs of predicted seconds of configs of a kernel that are like one of the shortlist."""
        model = self.model
        assert model.columns is not None, "it was asked for"
        about = model.forest, model.columns, model.traits[problem.dtype, problem.layout]
        made = Adapted([(name, each) for each in configs], np.full(len(configs), origin))
        lot = lot_of(made, self._kernels, problem, self._device, about)
        return There(model, problem, self._device, lot).log_s()

    def _known(self, problem: Problem) -> tuple[There, _Known]:
        """What to choose among: legal configs that were good near by, or are like these, else all."""
        model = self.model
        evidence, count = model.evidence, len(model.configs)
        lot = model.lot(problem, self._device)
        if evidence is None:
            behind, gains = np.zeros(count), np.full(count, np.inf)
        else:
            kind = list(model.traits).index((problem.dtype, problem.layout))
            behind, gains = evidence.around(problem, kind, count)
            if not np.isfinite(evidence.library).any():  # there is no library
                gains = np.full(count, np.inf)
        good = self._choices.legal(problem, self._device, np.isfinite(behind))
        made = self._adapted(problem, behind, good)
        if not len(good) and not made.configs:
            good, behind = self._choices.legal(problem, self._device), np.zeros(count)
        some = lot.some(good)
        if made.configs and model.columns is not None:
            about = model.forest, model.columns, model.traits[problem.dtype, problem.layout]
            some = some.and_(lot_of(made, self._kernels, problem, self._device, about))
        known = _Known(
            good, made, np.append(behind[good], behind[made.origins] + CHANGED),
            np.append(gains[good], gains[made.origins]),
        )  # fmt: skip
        return There(model, problem, self._device, some), known

    def _adapted(self, problem: Problem, behind: Floats, good: Numbers) -> Adapted:
        """Good configs that are not legal here, made legal, of the kernels that have few good ones."""
        if self.model.evidence is None or self.model.columns is None:
            return Adapted([], np.zeros(0, np.int64))
        legal = np.zeros(len(behind), bool)
        legal[good] = True
        about = self._kernels, self.model.configs, self._choices.points
        return adapted(problem, self._device, about, behind, legal)

    def _fastest(self, there: There, known: _Known, count: int) -> list[tuple[int, float]]:
        """Place among the known and log of seconds of the most promising configs, the best first."""
        coarse, most = there.coarse() + WEIGHT * known.behind, max(SCREENED, count)
        screened = np.argpartition(coarse, most)[:most] if most < len(coarse) else np.arange(len(coarse))
        log_s = there.log_s(screened)
        best = np.argsort(log_s + self.model.weight * known.behind[screened], kind="stable")[:count]
        return [(int(screened[at]), float(log_s[at])) for at in best]

    def _candidate(self, known: _Known, at: int, log_s: float) -> PredictedTime:
        made = at - len(known.numbers)
        named = self._choices.named(int(known.numbers[at])) if made < 0 else known.made.configs[made]
        return PredictedTime(*named, math.exp(log_s))
