"""Pareto fronts: of a study, of stored records, or of published results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Config
from tuner.errors import NothingFound
from tuner.lookup.asking import known_device
from tuner.lookup.snapshot import Snapshot
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import Front, Point, values_of
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.store import Store
from tuner.store.published import Published
from tuner.study.leaderboard import Leaderboard
from tuner.study.setup import past_records


def front_of(
    leaderboard: Leaderboard,
    wrong: Collection[tuple[str, Config]],
    champion: Champion | None,
    library: tuple[str, Measurement] | None,
    work: Mapping[str, float],
) -> Front:
    """Returns the front of a study's measured configs.

    Args:
        leaderboard: Leaderboard of several objectives.
        wrong: Configs to leave out, because finals found them wrong.
        champion: The study's champion.
        library: Its name and measurement; left out if it lacks an objective.
        work: ``flops`` and ``bytes`` of a run.
    """
    points = {
        each: Point(*each, found) for each, found in leaderboard.with_objectives.items() if each not in wrong
    }
    on_it = leaderboard.front_of(points)
    winner = (champion.record.kernel, Config(champion.record.config)) if champion else None
    has_all = library is not None and values_of(library[1], leaderboard.objectives) is not None
    return Front(
        objectives=leaderboard.objectives,
        points=tuple(points[each] for each in on_it),
        beaten=tuple(leaderboard.values(each) for each in points if each not in on_it),
        champion=points.get(winner) if winner else None,
        library=Point(library[0], Config({}), library[1]) if library and has_all else None,
        work=work,
    )


def found_wrong(finals: Sequence[Record]) -> set[tuple[str, Config]]:
    """Returns configs that finals found wrong, for example at other shapes."""
    return {
        (record.kernel, Config(record.config))
        for record in finals
        if record.measurement.outcome is Outcome.WRONG_RESULT
    }


def known_front(
    store: Store | None,
    problem: ProblemKey,
    device: DeviceInfo | str,
    regime: str,
    objectives: tuple[str, ...],
    published: Path | None = None,
) -> tuple[Front, Champion]:
    """Returns the front of a problem's stored records, or else of its published results.

    Args:
        store: The records; None without a database.
        problem: The problem.
        device: A device, or words of its name.
        regime: How times were taken.
        objectives: Two or more objectives.
        published: Folder of published results; the project's own if None.

    Raises:
        NothingFound: Neither has a champion for it, or all objectives.
        UnknownName: No device, or several devices, have this name.
    """
    snapshot = Snapshot.open(store, published)
    where = known_device(device, snapshot.devices()) if isinstance(device, str) else device
    trouble = _nothing_known(problem, where, regime)
    if store is not None:
        try:
            return stored_front(store, problem, where, regime, objectives)
        except NothingFound as error:
            trouble = error
    for each in snapshot.standing(problem.operation, (where.kind, where.name)):
        record = each.champion.record
        if (record.problem, record.regime) == (problem, regime):
            return _published_front(each, objectives)
    raise trouble


def stored_front(
    store: Store, problem: ProblemKey, device: DeviceInfo | str, regime: str, objectives: tuple[str, ...]
) -> tuple[Front, Champion]:
    """Returns the front of measurements with the champion's driver and compiler, of latest sources.

    Args:
        store: Where the records are.
        problem: The problem.
        device: A device, or its name.
        regime: How times were taken.
        objectives: Two or more objectives.

    Raises:
        NothingFound: The problem has no champion there, or no measurement has all objectives.
    """
    champion = store.champion(problem, device, regime)
    if champion is None:
        raise _nothing_known(problem, device, regime)
    record = champion.record
    trials, finals, libraries = (
        past_records(store, problem, record.device, regime, record.versions, role)
        for role in (Role.TRIAL, Role.FINAL, Role.BASELINE)
    )
    latest = {each.kernel: each.source_hash for each in trials}
    leaderboard = Leaderboard(objectives)
    for each in trials:
        if each.source_hash == latest[each.kernel]:
            leaderboard.add_objectives(each.kernel, Config(each.config), each.measurement)
    wrong = found_wrong([each for each in finals if each.source_hash == latest.get(each.kernel)])
    whole = [each for each in libraries if values_of(each.measurement, objectives) is not None]
    library = (whole[-1].kernel, whole[-1].measurement) if whole else None
    front = front_of(leaderboard, wrong, champion, library, record.work)
    if not front.points:
        raise _no_trial(record, objectives)
    return front, champion


def _published_front(found: Published, objectives: tuple[str, ...]) -> tuple[Front, Champion]:
    """Returns the front of a published champion and the configs published beside it.

    Args:
        found: The problem's published result.
        objectives: Two or more objectives.

    Raises:
        NothingFound: No published config has all objectives.
    """
    champion, leaderboard = found.champion, Leaderboard(objectives)
    record, latest = champion.record, {champion.record.kernel: champion.record.source_hash}
    for each in (record, *(beside.as_record(record) for beside in found.runners_up)):
        if each.source_hash == latest.setdefault(each.kernel, each.source_hash):
            leaderboard.add_objectives(each.kernel, Config(each.config), each.measurement)
    beside = champion.baseline
    front = front_of(
        leaderboard, (), champion, (beside.kernel, beside.measurement) if beside else None, record.work
    )
    if not front.points:
        raise _no_trial(record, objectives)
    return front, champion


def _nothing_known(problem: ProblemKey, device: DeviceInfo | str, regime: str) -> NothingFound:
    """Returns the error for a problem without a champion."""
    where = device if isinstance(device, str) else device.name
    return NothingFound(f"nothing is known of {problem} on {where} ({regime}); run `tuner tune` first")


def _no_trial(record: Record, objectives: Sequence[str]) -> NothingFound:
    return NothingFound(
        f"no trial of {record.problem} on {record.device.name} ({record.regime}) was measured to the end for "
        f"{' and '.join(objectives)}; run `tuner tune ... --objective {','.join(objectives)}` first"
    )
