"""What a study tries first, and what its search is told from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.lookup.predictor import predictor
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.search import Known, Observation
from tuner.store import Store
from tuner.store.published import champions as published
from tuner.store.reading import Reader
from tuner.study.progress import Request

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
        extra = predictor()
        self._search = extra.search(problem, kernels, device, regime, store) if extra else None
        candidates = self._search.candidates() if self._search else []
        self.starts: list[Named] = [(each.kernel, each.config) for each in candidates[:STARTS]]
        self.elsewhere = [
            Observation(each.kernel, each.config, Outcome.MEASURED, each.time_s) for each in candidates
        ]

    @cached_property
    def further(self) -> list[Observation]:
        """Predicted times of configs beside those to try first, the best first."""
        if self._search is None:
            return []
        kept = [(each.kernel, each.config) for each in self.elsewhere]
        known = dict.fromkeys(kept, math.inf)
        known |= {(each.kernel, each.config): each.time_s or math.inf for each in self.elsewhere[:STARTS]}
        return [
            Observation(each.kernel, each.config, Outcome.MEASURED, each.time_s)
            for each in self._search.beside(known, STARTS, FURTHER)
        ]

    def beside(self, timed: Mapping[Named, float]) -> list[Named]:
        """What to try after some configs: the most promising ones beside the fastest of them, the best first.

        Args:
            timed: Kernel and config -> seconds.
        """
        if self._search is None:
            return []
        return [(each.kernel, each.config) for each in self._search.beside(timed, PARENTS, STARTS)]


#: Number of champions of other problems to start from.
NEIGHBOURS = 5


def starting_points(
    store: Store, kernels: Sequence[Kernel], problem: ProblemKey, device: DeviceInfo
) -> list[tuple[str, Config]]:
    """Returns configs to try first: champions of the nearest problems on such a device, then declared starts.

    Champions go first: a short study has time for few configs, and one that is fast lets slow ones be pruned
    early. The search leaves out illegal ones.
    """
    return [*near_champions(store, kernels, problem, device), *declared_starts(kernels)]


def declared_starts(kernels: Sequence[Kernel]) -> list[Named]:
    """Returns what kernels declare to be tried first; the last step of a ladder goes before the first ones."""
    return [(kernel.name, config) for kernel in reversed(kernels) for config in kernel.first_configs()]


def near_champions(
    store: Store, kernels: Sequence[Kernel], problem: ProblemKey, device: DeviceInfo
) -> list[tuple[str, Config]]:
    """Returns the champions of the nearest problems on such a device, of the store and published ones."""
    competing = {kernel.name for kernel in kernels}
    stored = store.champions(operation=problem.operation, device=device)
    known = [
        each for each in (*stored, *_published(problem, device))
        if _alike(problem, each) and each.record.kernel in competing
    ]  # fmt: skip
    nearest = sorted(known, key=lambda each: _distance(problem, each))[:NEIGHBOURS]
    return [(each.record.kernel, Config(each.record.config)) for each in nearest]


def _published(problem: ProblemKey, device: DeviceInfo) -> list[Champion]:
    """Published champions of the operation on devices of the same name."""
    return [
        each for each in published(problem.operation)
        if (each.record.device.kind, each.record.device.name) == (device.kind, device.name)
    ]  # fmt: skip


def trials_elsewhere(
    store: Store, kernels: Iterable[Kernel], problem: ProblemKey, device: DeviceInfo, regime: str
) -> list[Record]:
    """Returns trials of the same kernels, as they are now, with probably similar times.

    They are those of the nearest other shape on such a device or, if there is none, of the nearest shape on the
    most similar device of the same kind.
    """
    hashes = {kernel.name: kernel.source_hash for kernel in kernels}
    known = [
        each
        for each in store.champions(operation=problem.operation, regime=regime)
        if each.record.device.kind == device.kind
        and (each.record.problem, each.record.device.name) != (problem, device.name)
        and each.record.problem.arithmetic == problem.arithmetic
        and _alike(problem, each)
    ]
    if not known:
        return []
    nearest = min(known, key=lambda each: nearness(problem, device, each))
    record = nearest.record
    return [
        each
        for each in store.records(problem=record.problem, device=record.device, role=Role.TRIAL)
        if each.regime == regime and hashes.get(each.kernel) == each.source_hash
    ]


def nearness(problem: ProblemKey, device: DeviceInfo, champion: Champion) -> tuple[bool, bool, float, float]:
    """Sorts champions, the one on the most similar device at the nearest shape first."""
    return *_unlike(device, champion.record.device), _distance(problem, champion)


def _alike(problem: ProblemKey, champion: Champion) -> bool:
    """False for another operation that once had the same name: authors of kernels change their sizes."""
    return champion.record.problem.dims.keys() == problem.dims.keys()


def _distance(problem: ProblemKey, champion: Champion) -> float:
    """Distance of shapes by the ratios of their dims.

    Another layout is as far as twice the size; another dtype, precision or epilogue is half as far.
    """
    theirs = champion.record.problem
    by_dim = [abs(value - theirs.dims[name]) / max(value, theirs.dims[name]) for name, value in problem.shape]
    return (
        sum(by_dim) + 0.5 * (theirs.layout != problem.layout) + 0.25 * (theirs.arithmetic != problem.arithmetic)
    )


def _unlike(ours: DeviceInfo, theirs: DeviceInfo) -> tuple[bool, bool, float]:
    """Dissimilarity of devices: by model, then architecture, then number of multiprocessors or cores."""
    ours_count, theirs_count = ours.sm_count or ours.cores, theirs.sm_count or theirs.cores
    most = max(ours_count, theirs_count, 1)
    apart = abs(ours_count - theirs_count) / most
    return ours.name != theirs.name, ours.architecture != theirs.architecture, apart


def with_predictions(known: Known, request: Request, device: DeviceInfo, store: Reader) -> Known:
    """What a search is told, with the model's word: its best predictions go first, its times replace others'.

    Args:
        known: What is known without it.
        request: What the study is asked to do.
        device: Where.
        store: May have a model of its own.
    """
    found = Predictions(request.problem, request.kernels, device, request.regime, store)
    if not found.elsewhere:
        return known
    beside = [(each.kernel, each.config) for each in found.further[:STARTS]]
    starts = [*alternating(found.starts, beside), *known.starts]
    return replace(known, starts=starts, elsewhere=[*found.elsewhere, *found.further], foretold=True)


def alternating(kept: Sequence[Named], beside: Sequence[Named]) -> list[Named]:
    """What to try first: two configs that the model keeps, then one beside such and one that it keeps in turn.

    There are far more of the former, so the best of them are more often ones that the model is wrong about.
    """
    found = list(kept[:2])
    for pair in zip_longest(beside, kept[2:]):
        found += [each for each in pair if each is not None]
    return found
