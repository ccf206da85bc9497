"""A store whose rows no longer change, and which therefore remembers where its champions are.

Building and running the general queries of a store takes several milliseconds for each problem; a service
answers hundreds of problems a second.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.results.record import Champion, ProblemKey, Record, Role, rank_in_time
from tuner.store import Store, opening, queries, rows, tables


class _Reigning(NamedTuple):
    """A champion that was not retracted."""

    number: int
    id: str
    crowned_at: str
    kernel: str
    device: DeviceInfo


class _Index(NamedTuple):
    """What is known of each problem.

    Attributes:
        champions: Problem and regime -> champions.
        recorded: Problems and regimes that have a time of any kind.
        confirmed: UUIDs of the champions that won again in a fresh process.
        chosen: UUIDs of those that answer because of a pin, a rollback or a freeze.
    """

    champions: Mapping[tuple[ProblemKey, str], list[_Reigning]]
    recorded: frozenset[tuple[ProblemKey, str]]
    confirmed: frozenset[str]
    chosen: frozenset[str]


#: One champion by its number, with placeholders: compiled once.
_ONE = queries.champions_joined().where(tables.champions.c.number == sa.bindparam("of"))
_RECORDS = queries.records_joined().where(tables.records.c.number.in_(sa.bindparam("of", expanding=True)))


class FrozenStore(Store):
    """A store for reading, at a snapshot; see `tuner.store.snapshots.as_of`."""

    def __init__(self, engine: sa.Engine, where: str) -> None:
        super().__init__(engine, where)
        self._reading = threading.Lock()
        self._known: _Index | None = None

    def warm(self) -> None:
        """Reads what would otherwise be read for the first question."""
        self._index()

    def champion(
        self,
        problem: ProblemKey,
        device: DeviceInfo | str,
        regime: str,
        kernel: str | None = None,
        *,
        confirmed: bool = False,
    ) -> Champion | None:
        """As `Reader.champion`."""
        index = self._index()
        found = [
            each
            for each in index.champions.get((problem, regime), [])
            if kernel in (None, each.kernel) and (not confirmed or each.id in index.confirmed)
        ]
        uuid = device if isinstance(device, str) else device.uuid
        boards = [each for each in found if uuid and each.device.uuid == uuid]
        alike = boards or [each for each in found if _is_like(each.device, device)]
        if not alike:
            return None
        return self._champion(max(alike, key=lambda each: (rank_in_time(each.crowned_at), each.id)).number)

    def has_champion(self, problem: ProblemKey, regime: str) -> bool:
        """Whether a problem has a champion that may answer, on whatever device."""
        return (problem, regime) in self._index().champions

    def best_record(
        self,
        problem: ProblemKey,
        device: DeviceInfo | str,
        regime: str,
        *,
        role: Role | None = None,
        kernels: Mapping[str, str] | None = None,
    ) -> Record | None:
        """As `Reader.best_record`."""
        if (problem, regime) not in self._index().recorded:
            return None
        return super().best_record(problem, device, regime, role=role, kernels=kernels)

    def is_chosen(self, champion: Champion) -> bool:
        """As `Reader.is_chosen`."""
        return champion.id in self._index().chosen

    def _champion(self, number: int) -> Champion:
        with opening.reading(self._where), self._engine.connect() as connection:
            row = connection.execute(_ONE, {"of": number}).one()
            wanted = [each for each in (row.record, row.baseline) if each is not None]
            found = connection.execute(_RECORDS, {"of": wanted}).all()
            records = {each.number: self._record_of(connection, each) for each in found}
            return rows.champion_of(dict(row._mapping), records[row.record], records.get(row.baseline))

    def _index(self) -> _Index:
        if self._known is None:
            with self._reading:
                if self._known is None:
                    self._known = self._read_index()
        return self._known

    def _read_index(self) -> _Index:
        of, record = tables.champions, tables.records.c
        ruling, confirmed = self.rulings.now(), frozenset(self.rulings.confirmed())
        crowned = (
            sa.select(
                of.c.number, of.c.id, of.c.crowned_at, of.c.problem, of.c.device, of.c.regime,
                tables.kernels.c.name,
            )
            .join(tables.records, of.c.record == record.number)
            .join(tables.kernels, record.kernel == tables.kernels.c.number)
            .where(queries.reigns(), of.c.id.not_in(ruling.barred))
        )  # fmt: skip
        recorded = sa.select(record.problem, record.regime).distinct()
        with opening.reading(self._where), self._engine.connect() as connection:
            keys = {
                row["number"]: rows.problem_of(dict(row))
                for row in connection.execute(sa.select(tables.problems)).mappings()
            }
            device = tables.devices.c
            infos: dict[int, DeviceInfo] = {
                number: rows.device_of(info)
                for number, info in connection.execute(sa.select(device.number, device.info))
            }
            champions: dict[tuple[ProblemKey, str], list[_Reigning]] = {}
            for number, name, when, problem, board, regime, kernel in connection.execute(crowned):
                told = _Reigning(number, name, when, kernel, infos[board])
                champions.setdefault((keys[problem], regime), []).append(told)
            seen = frozenset((keys[problem], regime) for problem, regime in connection.execute(recorded))
        return _Index(champions, seen, confirmed, ruling.chosen)


def _is_like(there: DeviceInfo, asked: DeviceInfo | str) -> bool:
    """As `queries.devices_like`."""
    if isinstance(asked, str):
        return asked in (there.name, there.uuid or there.name)
    return (there.kind, there.name) == (asked.kind, asked.name)
