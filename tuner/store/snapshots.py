"""Snapshots: numbered manifests of what answers rest on, and a store as it was at one of them.

A manifest tells the last row of each table that answers rest on. Rows are only ever added, so the rows up to
there are the same at any later time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.results.record import Champion, ProblemKey, Record, Role, rank_in_time, utc_now
from tuner.store import Store, opening, queries, rows, tables
from tuner.store.reading import Reader


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
        last = max(alike, key=lambda reigning: (rank_in_time(reigning.crowned_at), reigning.id))
        of = tables.champions.c
        found_champions: list[Champion] = self.read(sa.select(of.data).where(of.number == last.number))
        return found_champions[0]

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
        with self.reading() as connection:
            keys, infos = queries.problems_and_devices(connection)
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


#: The tables that answers rest on.
TABLES = (
    tables.records, tables.champions, tables.retractions, tables.surveys, tables.crowns, tables.models,
)  # fmt: skip


@dataclass(frozen=True)
class Manifest:
    """What the answers of a snapshot rest on.

    Attributes:
        number: Its number in this database.
        made_at: ISO 8601, UTC.
        positions: Table -> number of its last row.
        published: Digest of the published results and models.
        code: Version of tile-tuner, and a digest of the kernels' files.
    """

    number: int
    made_at: str
    positions: Mapping[str, int]
    published: str
    code: str

    def to_json(self) -> dict[str, Any]:
        """The manifest as a JSON object."""
        positions = {name.removeprefix("tuner_"): last for name, last in self.positions.items()}
        return {
            "snapshot": self.number, "made_at": self.made_at, **positions, "published": self.published,
            "code": self.code,
        }  # fmt: skip


def positions(store: Reader) -> dict[str, int]:
    """The number of the last row of each table that answers rest on; a quick query."""
    with store.reading() as connection:
        return _positions(connection)


def _positions(connection: sa.Connection) -> dict[str, int]:
    last = [
        sa.select(sa.func.coalesce(sa.func.max(table.c.number), 0)).scalar_subquery().label(table.name)
        for table in TABLES
    ]
    return {name: int(number) for name, number in connection.execute(sa.select(*last)).one()._mapping.items()}


def take(store: Store, published: str, code: str) -> Manifest:
    """The snapshot of what is there now: the last one if nothing has changed since, else a new one.

    Writers take turns, so no row before the last one can appear afterwards.

    Args:
        store: The store.
        published: Digest of the published results and models.
        code: Version of the code.

    Raises:
        StoreTrouble: The database cannot be written.
    """
    of = tables.snapshots
    with store.writing() as connection:
        now = {"positions": json.dumps(_positions(connection)), "published": published, "code": code}
        last = connection.execute(sa.select(of).order_by(of.c.number.desc()).limit(1)).one_or_none()
        if last is not None and all(last._mapping[name] == value for name, value in now.items()):
            return _manifest(last)
        row = now | {"made_at": utc_now()}
        return _manifest(connection.execute(sa.insert(of).values(**row).returning(of)).one())


def latest(store: Reader) -> Manifest | None:
    """The last snapshot; None before the first."""
    of = tables.snapshots
    with store.reading() as connection:
        found = connection.execute(sa.select(of).order_by(of.c.number.desc()).limit(1)).one_or_none()
        return _manifest(found) if found is not None else None


def manifest(store: Reader, number: int) -> Manifest | None:
    """A snapshot by its number; None if there is none."""
    of = tables.snapshots
    with store.reading() as connection:
        found = connection.execute(sa.select(of).where(of.c.number == number)).one_or_none()
        return _manifest(found) if found is not None else None


def _manifest(row: sa.Row[Any]) -> Manifest:
    told = row._mapping
    return Manifest(
        int(told["number"]), told["made_at"], json.loads(told["positions"]), told["published"], told["code"]
    )


@dataclass(frozen=True)
class Came:
    """What came after earlier positions.

    Attributes:
        recorded: Problems with new records.
        crowned: Problems with new champions, or new entries in the crown log.
        ruled_for_all: True if an entry of the crown log is about no problem in particular.
    """

    recorded: frozenset[ProblemKey]
    crowned: frozenset[ProblemKey]
    ruled_for_all: bool


def problems_since(store: Reader, before: Mapping[str, int]) -> Came:
    """The problems about which something came after earlier positions."""
    problem, found = tables.problems, []
    crown = tables.crowns.c
    general = crown.problem.is_(None) & (crown.number > before.get(tables.crowns.name, 0))
    with store.reading() as connection:
        for table in (tables.records, tables.champions, tables.crowns):
            later = sa.select(table.c.problem).where(table.c.number > before.get(table.name, 0)).distinct()
            rows_of = connection.execute(sa.select(problem).where(problem.c.number.in_(later))).mappings()
            found.append(frozenset(rows.problem_of(row) for row in rows_of))
        for_all = bool(connection.execute(sa.select(sa.func.count()).where(general)).scalar_one())
    return Came(found[0], found[1] | found[2], for_all)


def as_of(url: str, manifest: Manifest, patience_s: float = 30.0) -> FrozenStore:
    """Opens a database, for reading, as it was at a snapshot.

    Temporary views of the connection, which have the names of the tables, end at the snapshot's last rows. Both
    databases look for temporary relations first, so every query of a store works unchanged.

    Args:
        url: The database.
        manifest: The snapshot.
        patience_s: Seconds to wait for another process that writes.

    Raises:
        StoreTrouble: The database cannot be used.
    """
    parts = opening.parsed(url)
    where = parts.render_as_string(hide_password=True)
    engine = opening.make_engine(parts, read_only=True, patience_s=patience_s)
    server = engine.dialect.name == "postgresql"

    def connected(connection: Any, _: Any) -> None:
        cursor, schema = connection.cursor(), "main"
        if server:
            cursor.execute("SET TRANSACTION READ WRITE")  # of nothing but the connection's own views
            cursor.execute("SELECT quote_ident(current_schema())")
            schema = cursor.fetchone()[0]
        for table in TABLES:
            last = int(manifest.positions.get(table.name, 0))
            cursor.execute(
                f"CREATE TEMP VIEW {table.name} AS SELECT * FROM {schema}.{table.name} WHERE number <= {last}"
            )
        cursor.close()
        if server:
            connection.commit()

    sa.event.listen(engine, "connect", connected)
    return FrozenStore(engine, where)
