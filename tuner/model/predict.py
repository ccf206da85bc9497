"""A fitted model, and its answers by NumPy alone: times of a shortlist of configs, and of the library."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import IEEE, Problem
from tuner.declare.space import Config, Space
from tuner.errors import InputError
from tuner.model import physics
from tuner.model.calibrate import Calibration, Forecast, doubted
from tuner.model.forest import Bits, Forest, Network
from tuner.model.physics import DeviceRates, Traits
from tuner.model.table import Choices, Evidence, ParameterOrder, parameter_table
from tuner.results.distance import Floats, Numbers
from tuner.results.record import ProblemKey

#: Configs that a first use times.
FIRST = 8
#: Pairs of changes to a config that are looked at; of more, so many are drawn.
PAIRS = 20_000
#: A kernel with so many good configs that are legal needs no others; those of each kernel that are changed.
ENOUGH, ORIGINS = 8, 8
#: Combinations of a space that are looked at for changed ones.
LOOKED_AT = 100_000
#: Log of time behind the best near by beyond which a config is not worth changing.
WORTH = 0.3
#: Log of time that a changed config is expected to fall behind the one that it was made from.
CHANGED = 0.05
#: Kernel and config.
Named = tuple[str, Config]


@dataclass(frozen=True, eq=False)
class Model:
    """Predicts times of a shortlist of configs, and of the library, on one device.

    Attributes:
        operation: Name of the operation.
        device: The device.
        limits: What it reached in the survey.
        configs: The shortlist: kernel and config.
        order: What the numbers of parameters stand for.
        parameters: Their parameters as numbers, shape (parameters, configs).
        traits: Their traits by dtype and layout.
        forest: Log of a config's time over the geometric mean of first estimate and roofline.
        library: Log of the library's time over the roofline.
        calibration: What predictions cost.
        evidence: How configs stood at the surveyed problems.
        provenance: What the model was fitted to: device, versions, counts, dates, hashes of sources.
        network: Says the same as the forest, in a published model; None in others.
        predictors: Those of the model, by device and kernels.
    """

    operation: str
    device: DeviceInfo
    limits: DeviceRates
    configs: Sequence[Named]
    order: ParameterOrder
    parameters: Floats
    traits: Mapping[tuple[str, str], Traits]
    forest: Forest
    library: Forest
    calibration: Calibration
    evidence: Evidence
    provenance: Mapping[str, Any] = field(default_factory=dict)
    network: Network | None = None
    predictors: dict[Any, Predictor] = field(default_factory=dict, init=False, repr=False)

    @property
    def dtype(self) -> str:
        """Of all surveyed problems."""
        return next(iter(self.traits))[0]

    @property
    def precision(self) -> str:
        """Of all surveyed problems."""
        return str(self.provenance.get("precision", IEEE))

    @property
    def epilogue(self) -> str:
        """Of all surveyed problems."""
        return str(self.provenance.get("epilogue", ""))

    @property
    def arithmetic(self) -> str:
        """That of all surveyed problems (`ProblemKey.arithmetic`)."""
        return ProblemKey(self.operation, (), self.dtype, "", self.precision, self.epilogue).arithmetic

    def knows(self, problem: Problem) -> bool:
        """Whether such problems were surveyed: dtype, layout, precision and epilogue."""
        named = problem.operation.name, problem.precision, problem.epilogue
        surveyed = self.operation, self.provenance.get("precision", IEEE), self.provenance.get("epilogue", "")
        return named == surveyed and (problem.dtype, problem.layout) in self.traits


@dataclass(frozen=True)
class Lot:
    """Configs that a model is asked about.

    Attributes:
        configs: Kernel and config.
        traits: Their traits.
        bits: What their own features leave of all trees, shape (configs, trees).
        features: Features of their own, shape (features, configs).
    """

    configs: Sequence[Named]
    traits: Traits
    bits: Bits
    features: Floats

    @classmethod
    def of(
        cls, model: Model, configs: Sequence[Named], parameters: Floats, traits: Traits, device: DeviceInfo
    ) -> Lot:
        """Configs with some parameters, as numbers, and traits."""
        features = physics.fixed_features(parameters, device, traits)
        return cls(configs, traits, model.forest.bits(0, features), features)

    def some(self, numbers: Numbers) -> Lot:
        """Those with some numbers."""
        configs = [self.configs[at] for at in numbers.tolist()]
        return Lot(configs, self.traits.some(numbers), self.bits[numbers], self.features[:, numbers])

    def and_(self, more: Lot) -> Lot:
        """These, and more of them."""
        traits = replace(self.traits, values=np.hstack([self.traits.values, more.traits.values]))
        return Lot(
            [*self.configs, *more.configs], traits, np.vstack([self.bits, more.bits]),
            np.hstack([self.features, more.features]),
        )  # fmt: skip


class ModelAt:
    """A model at one problem, asked about some configs."""

    def __init__(self, model: Model, problem: Problem, device: DeviceInfo, lot: Lot) -> None:
        """Computes the features.

        Args:
            model: One that knows the problem.
            problem: The problem.
            device: Where.
            lot: The configs that are asked about.
        """
        self._model, self._problem, self._device, self.lot = model, problem, device, lot
        self._roofline = math.log(model.limits.roofline_s(problem))
        self._shared = physics.problem_features(problem, model.limits)
        self._mixed, estimate = physics.config_features(problem, device, lot.traits, model.limits)
        self._reference = (estimate + self._roofline) / 2
        first = len(lot.features)
        self._bits = lot.bits & model.forest.bits(first, self._shared[:, None])
        self._bits &= model.forest.bits(first + len(self._shared), self._mixed)

    def log_s(self) -> Floats:
        """Logs of predicted seconds of the configs."""
        model, lot = self._model, self.lot
        log_s = model.forest.sums(self._bits)
        if model.network is not None:
            shared = np.broadcast_to(self._shared[:, None], (len(self._shared), len(lot.configs)))
            log_s = model.network.joined(log_s, np.vstack([lot.features, shared, self._mixed]).T)
        return log_s + self._reference

    def library_log_s(self) -> float:
        """Log of predicted seconds of the library; infinite where there is none."""
        model = self._model
        if not len(model.library.leaves):
            return math.inf
        row = physics.library_features(self._problem, self._device, model.limits, self._shared)
        return float(model.library.predict(row[None])[0]) + self._roofline


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
        forecast: What is predicted, before kernel or library was chosen.
    """

    best: PredictedTime | None
    library_s: float
    gain: float
    by_library: bool
    expected_loss: float
    loss_interval: tuple[float, float]
    time_interval_s: tuple[float, float]
    forecast: Forecast


class _Known(NamedTuple):
    """The configs that an answer is chosen among.

    Attributes:
        at: The model at the problem, asked about them.
        log_s: Logs of their predicted seconds.
        behind: How far behind the fastest each is expected to be by what was timed near by.
        gain: log(library / config) near by.
    """

    at: ModelAt
    log_s: Floats
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
        self._own = {name for name, kernel in kernels.items() if kernel.is_library}
        self._lots: dict[tuple[str, str], Lot] = {}

    def answer(self, problem: Problem) -> Prediction:
        """What to run for a problem.

        Raises:
            InputError: The model does not know such problems.
        """
        (best, forecast), calibration = self.forecast(problem), self.model.calibration
        # What was timed near by may cast doubt on what is predicted: trees extrapolate.
        gain = float(doubted(forecast.gain, forecast.near, calibration.doubt))
        by_library = not gain > calibration.margin and math.isfinite(forecast.library_log_s)
        dims = np.log([size for _, size in problem.shape])
        expected, most, spread = calibration.figures(dims, gain)
        answered = forecast.library_log_s if by_library else forecast.kernel_log_s
        return Prediction(
            best, math.exp(forecast.library_log_s), gain, by_library, expected, (0.0, min(most, 1.0)),
            (math.exp(answered + spread[0]), math.exp(answered + spread[1])), forecast,
        )  # fmt: skip

    def forecast(
        self, problem: Problem, among: Container[Named] | None = None
    ) -> tuple[PredictedTime | None, Forecast]:
        """The config that is predicted to be the fastest, None if none is legal; and what is predicted.

        Args:
            problem: The problem.
            among: Only configs of these count; all when None.

        Raises:
            InputError: The model does not know such problems.
        """
        known = self._known(problem, among)
        library_log_s = known.at.library_log_s()
        if not (fastest := self._fastest(known, 1)):
            return None, Forecast(math.inf, library_log_s, -math.inf)
        [(at, log_s)] = fastest
        return self._candidate(known, at, log_s), Forecast(log_s, library_log_s, float(known.gain[at]))

    def candidates(self, problem: Problem, count: int | None = FIRST) -> list[PredictedTime]:
        """The configs worth trying that are predicted to be the fastest, the best first; all when None.

        Raises:
            InputError: The model does not know such problems.
        """
        known = self._known(problem)
        fastest = self._fastest(known, len(self.model.configs) if count is None else count)
        return [self._candidate(known, at, log_s) for at, log_s in fastest]

    def beside(
        self, problem: Problem, timed: Mapping[Named, float], parents: int, count: int = FIRST
    ) -> list[PredictedTime]:
        """Configs that differ in one or two parameters from the fastest of those timed, the best first.

        The model tells how much faster each is than the one that it differs from, whose time is known: what the
        model is off by at this problem does not count.

        Args:
            problem: The problem.
            timed: Kernel and config of all that was tried -> seconds, infinite for what failed. None of these
                is returned.
            parents: From so many of the fastest the others differ.
            count: How many, at the most.

        Raises:
            InputError: The model does not know such problems.
        """
        expected: dict[Named, float] = {}
        for (name, config), time_s in sorted(timed.items(), key=lambda item: item[1])[:parents]:
            kernel, numbers = self._kernels.get(name), self._choices.points.get(name)
            if kernel is None or numbers is None or not kernel.parameters or math.isinf(time_s):
                continue
            space = Space.at(kernel.parameters, kernel.constraints, problem, self._device, config)
            around = (space[at] for at in space.beside(0, PAIRS).tolist())
            here = [config, *(other for other in around if (name, other) not in timed)]
            lot = self._made([(name, one) for one in here], np.full(len(here), numbers[0]), problem)
            log_s = ModelAt(self.model, problem, self._device, lot).log_s()
            for other, behind in zip(here[1:], (log_s[1:] - log_s[0]).tolist(), strict=True):
                log_time = math.log(time_s) + behind
                expected[name, other] = min(expected.get((name, other), math.inf), log_time)
        best = sorted(expected, key=expected.__getitem__)[:count]
        return [PredictedTime(*named, math.exp(expected[named])) for named in best]

    def _shortlist(self, problem: Problem) -> Lot:
        """All configs of the shortlist."""
        key, model = (problem.dtype, problem.layout), self.model
        if key not in self._lots:
            self._lots[key] = Lot.of(model, model.configs, model.parameters, model.traits[key], self._device)
        return self._lots[key]

    def _made(self, configs: Sequence[Named], origins: Numbers, problem: Problem) -> Lot:
        """Configs that are not of the shortlist; registers, which are not known, are those of their origins."""
        model, kernels = self.model, self._kernels
        registers = model.traits[problem.dtype, problem.layout].row(4)[origins]
        of = physics.traits(kernels, configs, problem, registers)
        return Lot.of(model, configs, parameter_table(kernels, configs, model.order), of, self._device)

    def _known(self, problem: Problem, among: Container[Named] | None = None) -> _Known:
        """What to choose among: legal configs that were good near by, or are like these, else all."""
        model = self.model
        if not model.knows(problem):
            raise InputError(
                f"a model answers for what was surveyed, {model.operation} of {sorted(model.traits)}, "
                f"got {problem}; survey that, too"
            )
        count, kind = len(model.configs), list(model.traits).index((problem.dtype, problem.layout))
        asked = np.ones(count, bool) if among is None else np.array([one in among for one in model.configs])
        behind, gains = model.evidence.around(problem, kind, count)
        if not np.isfinite(model.evidence.library).any():  # there is no library
            gains = np.full(count, np.inf)
        good = self._choices.legal(problem, self._device, np.isfinite(behind) & asked)
        adapted = self._adapted(problem, behind, good).items()
        made = {named: origin for named, origin in adapted if among is None or named in among}
        if not len(good) and not made:
            good, behind = self._choices.legal(problem, self._device, asked), np.zeros(count)
        lot, origins = self._shortlist(problem).some(good), np.array(list(made.values()), np.int64)
        if made:
            lot = lot.and_(self._made(list(made), origins, problem))
        behind = np.append(behind[good], behind[origins] + CHANGED)
        at, gain = ModelAt(model, problem, self._device, lot), np.append(gains[good], gains[origins])
        # The library's own algorithms are slow where it is, as at odd rows, of which trees know less.
        own = np.array([name in self._own for name, _ in lot.configs], bool) & np.isfinite(gain)
        log_s = at.log_s()
        log_s[own] = np.maximum(log_s[own], at.library_log_s() - gain[own])
        return _Known(at, log_s, behind, gain)

    def _adapted(self, problem: Problem, behind: Floats, good: Numbers) -> dict[Named, int]:
        """Configs that were good near by and are illegal here, made legal, of kernels that have few good ones.

        Args:
            problem: Where they are to be legal.
            behind: How far each of the shortlist is behind the fastest by what was timed near by.
            good: Numbers of those that are legal.

        Returns:
            Kernel and config -> number of the config that it was made from.
        """
        configs, is_legal = self.model.configs, np.isin(np.arange(len(behind)), good)
        worth = np.isfinite(behind) & (behind <= behind.min(initial=np.inf) + WORTH) & ~is_legal
        made: dict[Named, int] = {}
        for name, numbers in self._choices.points.items():
            legal, tied = numbers[is_legal[numbers]], numbers[worth[numbers]]
            if len(legal) >= ENOUGH or not len(tied):
                continue
            kernel, known = self._kernels[name], {configs[number] for number in legal.tolist()}
            origins = tied[np.argsort(behind[tied], kind="stable")][:ORIGINS].tolist()
            space = Space.build(kernel.parameters, kernel.constraints, problem, self._device, limit=LOOKED_AT)
            nearest = space.nearest([configs[number][1] for number in origins])
            for index, number in zip(nearest, origins, strict=False):  # nothing is near in an empty space
                if (name, space[index]) not in known:
                    made.setdefault((name, space[index]), number)
        return made

    def _fastest(self, known: _Known, count: int) -> list[tuple[int, float]]:
        """Place among the known and log of seconds of the most promising configs, the best first."""
        model, log_s = self.model, known.log_s
        weight = model.network.weight if model.network else model.evidence.weight
        best = np.argsort(log_s + weight * known.behind, kind="stable")[:count]
        return [(int(at), float(log_s[at])) for at in best]

    def _candidate(self, known: _Known, at: int, log_s: float) -> PredictedTime:
        """A config, with its parameters in its kernel's order, and what is predicted for it."""
        name, config = known.at.lot.configs[at]
        ordered = {parameter.name: config[parameter.name] for parameter in self._kernels[name].parameters}
        return PredictedTime(name, Config(ordered), math.exp(log_s))


def predictor_for(model: Model, kernels: Sequence[Kernel], device: DeviceInfo) -> Predictor:
    """The predictor of a model with these kernels on a device, which is kept with the model."""
    key = (device, *map(id, kernels))  # the predictor keeps the kernels, so that nothing else has their ids
    if key not in model.predictors:
        model.predictors[key] = Predictor(model, {kernel.name: kernel for kernel in kernels}, device)
    return model.predictors[key]
