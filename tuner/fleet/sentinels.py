"""Sentinels of a night on a fleet: each worker times them on its own board, all boards at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.errors import DeviceTrouble, EnvironmentTrouble
from tuner.fleet.orders import ItemTold, Told, WatchOrder
from tuner.night.work import Place
from tuner.results.sentinel import Sentinel

if TYPE_CHECKING:
    from tuner.devices.detect import DetectedDevice
    from tuner.fleet.night import FleetNight
    from tuner.night.sentinels import Pass, SentinelCode, Timed, Watched

#: Seconds that a pass over sentinels may take: to begin, for each problem beside its rounds, and as a multiple.
BEGIN_S, BESIDE_S, SLACK = 60.0, 10.0, 3.0
#: Seconds beyond these that a worker may take to start its study process.
START_LIMIT_S = 180.0


class Workers:
    """The workers of a fleet that are free at a night's start and have one model of device."""

    def __init__(self, night: FleetNight, places: Sequence[Place]) -> None:
        """Times nothing yet.

        Args:
            night: The night, whose workers have been greeted.
            places: The workers' boards, of one model.
        """
        self._night, self._places = night, {each.name: each for each in places}

    @property
    def info(self) -> DeviceInfo:
        """See `tuner.night.sentinels.Boards`."""
        return next(iter(self._places.values())).info

    @property
    def names(self) -> Sequence[str]:
        """See `tuner.night.sentinels.Boards`."""
        return list(self._places)

    def timed(self, wanted: Mapping[str, Sequence[Watched]], passes: Sequence[Pass]) -> dict[str, Timed]:
        """See `tuner.night.sentinels.Boards`; all boards at once, and each by its own worker."""
        orders = {
            self._places[name].name: WatchOrder(
                self._night.ledger.night, tuple(map(_told, problems)),
                tuple((each.night, each.process, each.terms, each.processes) for each in passes),
                sum(_limit_s(each, len(problems)) for each in passes),
            )
            for name, problems in wanted.items()
        }  # fmt: skip
        found = self._asked(orders)
        return {name: _timed(name, found.get(name)) for name in wanted}

    def _asked(self, orders: Mapping[str, WatchOrder]) -> dict[str, Any]:
        """Has free workers time sentinels, and waits: worker -> a list for each pass, or why it has none."""
        runner = self._night.runner
        asked = [place for place in runner.free() if place.name in orders]
        for place in asked:
            runner.ask(place, orders[place.name])
        # A worker ends what takes longer, so that this is for one that says nothing.
        until_s = (
            time.monotonic() + START_LIMIT_S + max((each.limit_s for each in orders.values()), default=0.0)
        )
        while (runner.timing or runner.checking) and time.monotonic() < until_s:
            self._night.pause()
        return {place.name: runner.timed[place.name] for place in asked if place.name in runner.timed}


def of_models(night: FleetNight) -> list[Workers]:
    """The workers that are free, by model of device."""
    models: dict[str, list[Place]] = {}
    for place in night.runner.free():
        models.setdefault(place.info.name, []).append(place)
    return [Workers(night, places) for places in models.values()]


def _limit_s(one: Pass, problems: int) -> float:
    return SLACK * (one.processes * (BEGIN_S + problems * BESIDE_S) + problems * one.terms.budget_s)


def _timed(name: str, result: Any) -> Timed:
    if isinstance(result, list):
        return result
    return DeviceTrouble(f"{name} timed no sentinels: {result or 'it vanished'}")


def _told(watched: Watched) -> Told:
    """Names a problem and who takes part: kernels never travel."""
    problem, (first, *_) = watched.problem, watched.contenders
    item = ItemTold(
        problem.operation.name, str(problem.operation.origin or ""), dict(problem.shape), problem.dtype,
        problem.layout, problem.precision, problem.epilogue, watched.regime, (first.kernel.name,), None,
        ("time",), None,
    )  # fmt: skip
    return item, tuple((each.name, each.kernel.name, dict(each.config)) for each in watched.contenders)


def time_here(
    found: DetectedDevice, order: WatchOrder, known: dict[str, Catalogue], code: SentinelCode | None
) -> tuple[list[list[Sentinel]], SentinelCode]:
    """Times sentinels on a worker's board.

    Args:
        found: The board.
        order: What to time.
        known: File -> what it declares; filled as files are read.
        code: Machine code of earlier orders; None for none.

    Raises:
        EnvironmentTrouble: Problem or kernel are not in this machine's files.
        DeviceTrouble: The board cannot be used.
    """
    from tuner.night.sentinels import Pass, SentinelCode

    code = code or SentinelCode(found.opening)
    problems = [_found(each, known, found.target) for each in order.problems]
    passes = [Pass(*each) for each in order.passes]
    return [each.over(found, code, problems) for each in passes], code


def _found(told: Told, known: dict[str, Catalogue], target: str) -> Watched:
    from tuner.declare.space import Config
    from tuner.night.sentinels import Contender, Watched

    item, named = told
    plan_item = item.found(known)
    problem = plan_item.problem
    kernels = {each.name: each for each in plan_item.catalogue.of(problem.operation.name, target)}
    lacking = sorted({kernel for _, kernel, _ in named} - kernels.keys())
    if lacking:
        raise EnvironmentTrouble(
            f"a worker's kernels are the coordinator's: here {problem.operation.name} has no kernel "
            f"{', '.join(lacking)}; use the same files"
        )
    contenders = tuple(Contender(name, kernels[kernel], Config(config)) for name, kernel, config in named)
    return Watched(problem, item.regime, contenders)
