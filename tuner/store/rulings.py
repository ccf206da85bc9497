"""Which champions may answer by the crown log: what its entries come to, worked out once until it changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tuner.results.crowns import Act, Crown, rules_of
from tuner.store import opening, queries, rows, tables

#: Entries that change who answers; those of confirmations do not.
RULING = (Act.PIN, Act.UNPIN, Act.ROLLBACK, Act.FREEZE, Act.UNFREEZE)


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
    """The rulings of one database."""

    def __init__(self, engine: sa.Engine, where: str) -> None:
        """Reads nothing yet.

        Args:
            engine: The database.
            where: Its name in messages.
        """
        self._engine, self._where = engine, where
        self._known: tuple[tuple[Any, ...], Ruling] = (), Ruling()

    def now(self) -> Ruling:
        """What the log rules."""
        newest = sa.select(
            _newest().scalar_subquery(), sa.select(sa.func.max(tables.champions.c.number)).scalar_subquery()
        )
        with opening.reading(self._where), self._engine.connect() as connection:
            stamp = tuple(connection.execute(newest).one())
            if not stamp[0]:
                return Ruling()
            if self._known[0] != stamp:
                self._known = stamp, _ruling(connection)
        return self._known[1]

    def newest(self) -> int:
        """A number that grows with every entry that changes who answers; 0 if there is none."""
        with opening.reading(self._where), self._engine.connect() as connection:
            return int(connection.execute(_newest()).scalar_one())

    def confirmed(self) -> set[str]:
        """UUIDs of the champions that won again in a fresh process."""
        return rules_of(self.log((Act.CONFIRM, Act.DOUBT)), ()).confirmed

    def log(self, acts: Iterable[Act] = tuple(Act)) -> list[Crown]:
        """All entries of some kinds, in the order of their ids."""
        with opening.reading(self._where), self._engine.connect() as connection:
            return _log(connection, acts)


def _newest() -> sa.Select[Any]:
    of = tables.crowns.c
    return sa.select(sa.func.coalesce(sa.func.max(of.number), 0)).where(of.act.in_([e.value for e in RULING]))


def _log(connection: sa.Connection, acts: Iterable[Act]) -> list[Crown]:
    of, problem = tables.crowns, tables.problems.c
    joined = of.outerjoin(tables.problems, of.c.problem == problem.number)
    wanted = sa.select(*of.c, problem.operation, problem.shape, problem.dtype, problem.layout)
    wanted = wanted.select_from(joined).where(of.c.act.in_([each.value for each in acts])).order_by(of.c.id)
    return [rows.crown_of(dict(row)) for row in connection.execute(wanted).mappings()]


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
