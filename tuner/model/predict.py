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
from tuner.model.calibrate import doubted
from tuner.model.evidence import CHANGED, WEIGHT, AdaptedConfigs, adapted
from tuner.model.fitted import Model, ModelAt
from tuner.results.distance import Floats, Numbers

#: Configs that a first use times.
FIRST = 8
#: Kernel and config.
Named = tuple[str, Config]
#: Configs that the first trees find worth the others.
SCREENED = 160
#: Pairs of changes to a config that are looked at; of more, so many are drawn.
PAIRS = 20_000


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
    made: AdaptedConfigs
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
        self._choices = Choices(model.configs, kernels.values())

    def answer(self, problem: Problem) -> Prediction:
        """What to run for a problem.

        Raises:
            InputError: The model does not know such problems.
        """
        here, known = self._known(problem)
        fastest = self._fastest(here, known, 1)
        found = self._candidate(known, *fastest[0]) if fastest else None
        library = here.library_log_s()
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

    def candidates(self, problem: Problem, count: int | None = FIRST) -> list[PredictedTime]:
        """The configs worth trying that are predicted to be the fastest, the best first; all when None.

        Raises:
            InputError: The model does not know such problems.
        """
        here, known = self._known(problem)
        fastest = self._fastest(here, known, len(self.model.configs) if count is None else count)
        return [self._candidate(known, *config) for config in fastest]

    def beside(
        self, problem: Problem, timed: Mapping[Named, float], parents: int, count: int = FIRST
    ) -> list[PredictedTime]:
        """Configs that differ in one or two parameters from the fastest of those timed, the best first.

        The model tells how much faster each is than the one that it differs from, whose time is known: what the
        model is off by at this problem does not count. A model whose shortlist misses a surveyed kernel cannot
        be asked about other configs, and knows none.

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
        expected: dict[Named, float] = {}
        for (name, config), time_s in sorted(timed.items(), key=lambda each: each[1])[:parents]:
            kernel, numbers = self._kernels.get(name), self._choices.points.get(name)
            if self.model.columns is None or kernel is None or numbers is None or not kernel.parameters:
                continue
            if not math.isfinite(time_s):
                continue
            space = Space.at(kernel.parameters, kernel.constraints, problem, self._device, config)
            around = (space[at] for at in space.beside(0, PAIRS).tolist())
            here = [config, *(other for other in around if (name, other) not in timed)]
            log_s = self._log_s(problem, name, here, self._most_like(numbers, config))
            for other, behind in zip(here[1:], (log_s[1:] - log_s[0]).tolist(), strict=True):
                log_time = math.log(time_s) + behind
                expected[name, other] = min(expected.get((name, other), math.inf), log_time)
        best = sorted(expected, key=expected.__getitem__)[:count]
        return [PredictedTime(*named, math.exp(expected[named])) for named in best]

    def _most_like(self, numbers: Numbers, config: Config) -> int:
        """Of configs of the shortlist the one that has most of another's values."""
        every = [self.model.configs[at][1] for at in numbers.tolist()]
        shared = [sum(each[name] == value for name, value in config.items()) for each in every]
        return int(numbers[int(np.argmax(shared))])

    def _log_s(self, problem: Problem, name: str, configs: Sequence[Config], origin: int) -> Floats:
        """Logs of predicted seconds of configs of a kernel that are like one of the shortlist."""
        made = AdaptedConfigs([(name, config) for config in configs], np.full(len(configs), origin))
        lot = self.model.made(made, self._kernels, problem, self._device)
        return ModelAt(self.model, problem, self._device, lot).log_s()

    def _known(self, problem: Problem) -> tuple[ModelAt, _Known]:
        """What to choose among: legal configs that were good near by, or are like these, else all."""
        model, device = self.model, self._device
        lot = model.lot(problem, device)
        count, kind = len(model.configs), list(model.traits).index((problem.dtype, problem.layout))
        behind, gains = model.evidence.around(problem, kind, count)
        if not np.isfinite(model.evidence.library).any():  # there is no library
            gains = np.full(count, np.inf)
        good = self._choices.legal(problem, device, np.isfinite(behind))
        made = self._adapted(problem, behind, good)
        if not len(good) and not made.configs:
            good, behind = self._choices.legal(problem, device), np.zeros(count)
        lot = lot.some(good)
        if made.configs:
            lot = lot.and_(model.made(made, self._kernels, problem, device))
        known = _Known(
            good, made, np.append(behind[good], behind[made.origins] + CHANGED),
            np.append(gains[good], gains[made.origins]),
        )  # fmt: skip
        return ModelAt(model, problem, device, lot), known

    def _adapted(self, problem: Problem, behind: Floats, good: Numbers) -> AdaptedConfigs:
        """Good configs that are not legal here, made legal, of the kernels that have few good ones."""
        if self.model.columns is None:
            return AdaptedConfigs([], np.zeros(0, np.int64))
        legal = np.zeros(len(behind), bool)
        legal[good] = True
        about = self._kernels, self.model.configs, self._choices.points
        return adapted(problem, self._device, about, behind, legal)

    def _fastest(self, here: ModelAt, known: _Known, count: int) -> list[tuple[int, float]]:
        """Place among the known and log of seconds of the most promising configs, the best first."""
        coarse, most = here.coarse() + WEIGHT * known.behind, max(SCREENED, count)
        screened = np.argpartition(coarse, most)[:most] if most < len(coarse) else np.arange(len(coarse))
        log_s = here.log_s(screened)
        best = np.argsort(log_s + self.model.weight * known.behind[screened], kind="stable")[:count]
        return [(int(screened[at]), float(log_s[at])) for at in best]

    def _candidate(self, known: _Known, at: int, log_s: float) -> PredictedTime:
        made = at - len(known.numbers)
        named = self._choices.named(int(known.numbers[at])) if made < 0 else known.made.configs[made]
        return PredictedTime(*named, math.exp(log_s))


def predictor_for(model: Model, kernels: Sequence[Kernel], device: DeviceInfo) -> Predictor:
    """The predictor of a model with these kernels on a device, which is kept with the model."""
    key = (device, *map(id, kernels))  # the predictor keeps the kernels, so that nothing else has their ids
    if key not in model.kept:
        model.kept[key] = Predictor(model, {kernel.name: kernel for kernel in kernels}, device)
    found: Predictor = model.kept[key]
    return found
