"""The crown log in the database: entries are added, and bar champions from answering.

Entries of confirmations bar nobody; they are read where only confirmed champions are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tuner.results.crowns import Act, Crown, rules_of
from tuner.store import checksum, opening, queries, rows, tables

if TYPE_CHECKING:
    from tuner.store import Store
    from tuner.store.reading import Reader

#: Entries that change who answers.
RULING = (Act.PIN, Act.UNPIN, Act.ROLLBACK, Act.FREEZE, Act.UNFREEZE)


def enter(store: Store, crowns: Crown | Iterable[Crown]) -> int:
    """Adds entries in one transaction; those whose id is stored already are left as they are.

    Returns:
        How many are new.

    Raises:
        InputError: An id is not a UUID.
        StoreTrouble: The database cannot be written; nothing of this call is stored.
    """
    by_id = {rows.checked_id(each.id): each for each in ([crowns] if isinstance(crowns, Crown) else crowns)}
    numbers: dict[tuple[str, ...], int] = {}
    with opening.explained(store._where), store._writing() as connection:
        there = store._there(connection, tables.crowns, list(by_id))
        fresh = [each for name, each in by_id.items() if name not in there]
        for crown in fresh:
            row: dict[str, Any] = rows.crown_row(crown)
            problem: dict[str, Any] = dict.fromkeys(("operation", "shape", "dtype", "layout"))
            number = None
            if crown.problem is not None:
                problem = rows.problem_row(crown.problem)
                number = store._once(connection, tables.problems, problem, numbers)
            row |= {"checksum": checksum.checksum(row | problem, checksum.CROWN), "problem": number}
            connection.execute(store._insert(tables.crowns), row)
    store._remember(numbers, fresh)
    return len(fresh)


def log(store: Reader, acts: Iterable[Act] = tuple(Act)) -> list[Crown]:
    """All entries of some kinds, in the order of their ids."""
    with opening.reading(store._where), store._engine.connect() as connection:
        return _log(connection, acts)


def _log(connection: sa.Connection, acts: Iterable[Act]) -> list[Crown]:
    of, problem = tables.crowns, tables.problems.c
    joined = of.outerjoin(tables.problems, of.c.problem == problem.number)
    wanted = sa.select(*of.c, problem.operation, problem.shape, problem.dtype, problem.layout)
    wanted = wanted.select_from(joined).where(of.c.act.in_([each.value for each in acts])).order_by(of.c.id)
    return [rows.crown_of(dict(row)) for row in connection.execute(wanted).mappings()]


def confirmed(store: Reader) -> set[str]:
    """UUIDs of the champions that won again in a fresh process."""
    rules = rules_of(log(store, (Act.CONFIRM, Act.DOUBT)), ())
    return rules.confirmed


@dataclass(frozen=True)
class Ruling:
    """What pins, rollbacks and freezes come to.

    Attributes:
        barred: UUIDs of the champions that may not answer.
        chosen: Of those that may where there is such an entry: nothing published comes before them.
    """

    barred: tuple[str, ...] = ()
    chosen: frozenset[str] = frozenset()


def barred(store: Reader) -> tuple[str, ...]:
    """UUIDs of the champions that may not answer, by pins, rollbacks and freezes."""
    return ruling(store).barred


def ruling(store: Reader) -> Ruling:
    """What the log rules; worked out once until it or the champions change."""
    of, champion = tables.crowns.c, tables.champions.c
    newest = sa.select(
        sa.select(sa.func.max(of.number)).where(of.act.in_([each.value for each in RULING])).scalar_subquery(),
        sa.select(sa.func.max(champion.number)).scalar_subquery(),
    )
    with opening.reading(store._where), store._engine.connect() as connection:
        stamp = tuple(connection.execute(newest).one())
        if stamp[0] is None:
            return Ruling()
        if store._ruling[0] != stamp:
            store._ruling = stamp, _ruling(connection)
    return store._ruling[1]


def _ruling(connection: sa.Connection) -> Ruling:
    champion, device, problem = tables.champions.c, tables.devices.c, tables.problems
    every = (
        sa.select(champion.id, champion.crowned_at, champion.regime, device.kind, device.name, *problem.c)
        .join(problem, champion.problem == problem.c.number)
        .join(tables.devices, champion.device == device.number)
        .where(queries.reigns())
    )
    histories: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for row in connection.execute(every).mappings():
        place = rows.problem_of(dict(row)), row["kind"], row["name"], row["regime"]
        histories.setdefault(place, []).append((row["id"], row["crowned_at"]))
    entries = _log(connection, RULING)
    out: set[str] = set()
    chosen: set[str] = set()
    for place, history in histories.items():
        rules = rules_of([each for each in entries if each.holds_for(*place)], history)
        if rules.pinned or rules.out or rules.frozen_at:
            allowed = rules.allowed(history)
            chosen |= allowed
            out |= {each for each, _ in history} - allowed
    return Ruling(tuple(sorted(out)), frozenset(chosen))


def newest(store: Reader) -> int:
    """A number that grows with every entry that changes who answers."""
    of = tables.crowns.c
    wanted = sa.select(sa.func.coalesce(sa.func.max(of.number), 0)).where(
        of.act.in_([each.value for each in RULING])
    )
    with opening.reading(store._where), store._engine.connect() as connection:
        return int(connection.execute(wanted).scalar_one())
