"""The crown log in the database, and which champions may answer by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tuner.results.crowns import Act, Crown, rules_of
from tuner.store import queries, rows, tables

#: Entries that change who answers; those of confirmations do not.
RULING = (Act.PIN, Act.UNPIN, Act.ROLLBACK, Act.FREEZE, Act.UNFREEZE)
_NEWEST = sa.select(sa.func.coalesce(sa.func.max(tables.crowns.c.number), 0)).where(
    tables.crowns.c.act.in_([act.value for act in RULING])
)


@dataclass(frozen=True)
class Ruling:
    """What pins, rollbacks and freezes come to.

    Attributes:
        barred: UUIDs of the champions that may not answer.
        chosen: Of those that may where there is such an entry: nothing published comes before them.
    """

    barred: tuple[str, ...] = ()
    chosen: frozenset[str] = frozenset()


class Rulings:
    """The rulings of one database, worked out once until its log or its champions change."""

    def __init__(self, reading: Callable[[], AbstractContextManager[sa.Connection]]) -> None:
        """Reads nothing yet.

        Args:
            reading: Connects to the database.
        """
        self._reading = reading
        self._known: tuple[tuple[Any, ...], Ruling] = (), Ruling()

    def now(self) -> Ruling:
        """What the log rules."""
        newest = sa.select(
            _NEWEST.scalar_subquery(), sa.select(sa.func.max(tables.champions.c.number)).scalar_subquery()
        )
        with self._reading() as connection:
            stamp = tuple(connection.execute(newest).one())
            if not stamp[0]:
                return Ruling()
            if self._known[0] != stamp:
                self._known = stamp, _ruling(connection)
        return self._known[1]

    def newest(self) -> int:
        """A number that grows with every entry that changes who answers; 0 if there is none."""
        with self._reading() as connection:
            return int(connection.execute(_NEWEST).scalar_one())

    def confirmed(self) -> set[str]:
        """UUIDs of the champions that won again in a fresh process."""
        return rules_of(self.log((Act.CONFIRM, Act.DOUBT)), ()).confirmed

    def log(self, acts: Iterable[Act] = tuple(Act)) -> list[Crown]:
        """All entries of some kinds, in the order of their ids."""
        with self._reading() as connection:
            return _log(connection, acts)


def _log(connection: sa.Connection, acts: Iterable[Act]) -> list[Crown]:
    of = tables.crowns.c
    entries = sa.select(of.data).where(of.act.in_([act.value for act in acts])).order_by(of.id)
    return [rows.item_of(data) for data in connection.execute(entries).scalars()]


def _ruling(connection: sa.Connection) -> Ruling:
    champion, device, problem = tables.champions.c, tables.devices.c, tables.problems
    every = (
        sa.select(champion.id, champion.crowned_at, champion.regime, device.kind, device.name, *problem.c)
        .join(problem, champion.problem == problem.c.number)
        .join(tables.devices, champion.device == device.number)
        .where(queries.reigns())
    )
    histories: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for row in connection.execute(every):
        place = rows.problem_of(row), row.kind, row.name, row.regime
        histories.setdefault(place, []).append((row.id, row.crowned_at))
    entries = _log(connection, RULING)
    out: set[str] = set()
    chosen: set[str] = set()
    for place, history in histories.items():
        rules = rules_of([entry for entry in entries if entry.holds_for(*place)], history)
        if rules.pinned or rules.out or rules.frozen_at:
            allowed = rules.allowed(history)
            chosen |= allowed
            out |= {name for name, _ in history} - allowed
    return Ruling(tuple(sorted(out)), frozenset(chosen))
