"""Reads records and champions that match a query, in a reproducible order; and which may answer."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.results.measurement import Outcome, totals
from tuner.results.record import Champion, ProblemKey, Record, Role, checked_id
from tuner.results.survey import SurveyPart
from tuner.results.verdict import Act, Crown, rules_of
from tuner.store import opening, rows, tables

#: Entries that change who answers; those of confirmations do not.
RULING = (Act.PIN, Act.UNPIN, Act.ROLLBACK, Act.FREEZE, Act.UNFREEZE, Act.BEHIND)
_NEWEST = sa.select(sa.func.coalesce(sa.func.max(tables.crowns.c.number), 0)).where(
    tables.crowns.c.act.in_([act.value for act in RULING])
)
#: What a ruling rests on.
_RESTS_ON = sa.select(
    _NEWEST.scalar_subquery(), sa.select(sa.func.max(tables.champions.c.number)).scalar_subquery()
)


def _latest_champion() -> sa.Select[Any]:
    """Selects what `Reader.champion` returns, by parameters; an empty kind stands for any."""
    of, problem, device = tables.champions.c, tables.problems.c, tables.devices.c
    kind, name, uuid = (sa.bindparam(word, type_=sa.Text) for word in ("kind", "name", "uuid"))
    same = sa.select(problem.number).where(*(problem[word] == sa.bindparam(word) for word in tables.PROBLEM))
    boards = sa.select(device.number).where(device.uuid == uuid, uuid != "")
    alike = sa.select(device.number).where(device.name == name, (kind == "") | (device.kind == kind))
    here = of.device.in_(boards)
    return (
        sa.select(of.data)
        .where(of.problem == same.scalar_subquery(), of.regime == sa.bindparam("regime"), rows.reigns())
        .where(here | of.device.in_(alike))
        .order_by(here.desc(), rows.rank_in_time(of.crowned_at).desc(), of.id.desc())
        .limit(1)
    )


#: To put it together takes longer than to run it.
_LATEST_CHAMPION = _latest_champion()


@dataclass(frozen=True)
class Ruling:
    """What pins, rollbacks and freezes come to.

    Attributes:
        barred: UUIDs of the champions that may not answer.
        chosen: Of those that may where there is such an entry: nothing published comes before them.
        behind: Champions in whose place the library answers.
    """

    barred: tuple[str, ...] = ()
    chosen: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()


def _log(connection: sa.Connection, acts: Iterable[Act]) -> list[Crown]:
    of = tables.crowns.c
    entries = sa.select(of.data).where(of.act.in_([act.value for act in acts])).order_by(of.id)
    return list(connection.execute(entries).scalars())


def _ruling(connection: sa.Connection) -> Ruling:
    champion, device, problem = tables.champions.c, tables.devices.c, tables.problems
    every = (
        sa.select(champion.id, champion.crowned_at, champion.regime, device.kind, device.name, *problem.c)
        .join(problem, champion.problem == problem.c.number)
        .join(tables.devices, champion.device == device.number)
        .where(rows.reigns())
    )
    histories: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for row in connection.execute(every):
        place = rows.problem_of(row), row.kind, row.name, row.regime
        histories.setdefault(place, []).append((row.id, row.crowned_at))
    entries = _log(connection, RULING)
    out: set[str] = set()
    chosen: set[str] = set()
    behind: set[str] = set()
    for place, history in histories.items():
        rules = rules_of([entry for entry in entries if entry.holds_for(*place)], history)
        behind |= rules.behind - {rules.pinned}
        if rules.pinned or rules.out or rules.frozen_at:
            allowed = rules.allowed(history)
            chosen |= allowed
            out |= {name for name, _ in history} - allowed
    return Ruling(tuple(sorted(out)), frozenset(chosen), frozenset(behind))


class Reader:
    """The queries of a store.

    A device is found by its uuid, or by kind and name, because results of one board hold for others of its
    kind. A text is a uuid or a name.
    """

    def __init__(self, engine: sa.Engine, where: str) -> None:
        self._engine = engine
        self._where = where
        #: What lookups have read of it, by folder of published results (`tuner.lookup.snapshot`).
        self.snapshots: dict[Any, Any] = {}
        self._ruling: tuple[object, Ruling] = (), Ruling()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Connects for reading.

        Raises:
            StoreTrouble: The database cannot be read, or a row is damaged.
        """
        with opening.reading(self._where), self._engine.connect() as connection:
            yield connection

    def crown_log(self, acts: Iterable[Act] = tuple(Act)) -> list[Crown]:
        """All entries of some kinds, in the order of their ids."""
        with self.reading() as connection:
            return _log(connection, acts)

    def newest_ruling(self) -> int:
        """A number that grows with every entry that changes who answers; 0 if there is none."""
        (newest,) = self.read(_NEWEST)
        return int(newest)

    def ruling(self) -> Ruling:
        """What the crown log rules; worked out again once its entries or the champions change."""
        with self.reading() as connection:
            return self._ruled(connection)

    def _ruled(self, connection: sa.Connection) -> Ruling:
        stamp = connection.execute(_RESTS_ON).one()
        if self._ruling[0] != stamp:
            self._ruling = stamp, _ruling(connection) if stamp[0] else Ruling()
        return self._ruling[1]

    def problems(self) -> set[ProblemKey]:
        """Every problem of which anything was ever stored, on whatever device."""
        return set(map(rows.problem_of, self.rows(sa.select(tables.problems))))

    def record(self, record_id: str) -> Record | None:
        """Returns the record with this id, even if it was retracted; see `retracted`."""
        named = rows.fits(tables.records, id=checked_id(record_id))
        return next(iter(self.read(sa.select(tables.records.c.data).where(*named))), None)

    def records(
        self, *, study: str | None = None, problem: ProblemKey | None = None,
        device: DeviceInfo | str | None = None, role: Role | None = None, regime: str | None = None,
    ) -> list[Record]:  # fmt: skip
        """Returns records that match all arguments and were not retracted, in order of measurement."""
        of = tables.records.c
        place = {"problem": problem, "device": device, "regime": regime}
        fitting = rows.fits(tables.records, **place, study=study, role=role)
        wanted = sa.select(of.data).where(rows.stands(), *fitting)
        return self.read(wanted.order_by(of.measured_at, of.id))

    def best_record(
        self, problem: ProblemKey, device: DeviceInfo | str, regime: str, *, role: Role | None = None,
        kernels: Mapping[str, str] | None = None,
    ) -> Record | None:  # fmt: skip
        """Returns the fastest measured record, for use without finals; by default of kernels.

        Args:
            problem: What is computed.
            device: Where, by uuid or by kind and name.
            regime: How time was taken.
            role: Records of this role only; ``Role.BASELINE`` finds the library's.
            kernels: Kernel -> source hash: only these sources; an empty hash stands for any.
        """
        of = tables.records.c
        measured = rows.fits(
            tables.records, problem=problem, device=device, regime=regime, outcome=Outcome.MEASURED, role=role,
            kernels=kernels,
        )  # fmt: skip
        measured += [] if role else [of.role != Role.BASELINE.value]
        fastest = sa.select(of.data).where(*measured, of.time_s.is_not(None), rows.stands())
        return next(iter(self.read(fastest.order_by(of.time_s, of.measured_at, of.id).limit(1))), None)

    def counts(self, problem: ProblemKey, device: DeviceInfo | str, regime: str) -> dict[str, int]:
        """Counts trials, as `tuner.results.measurement.totals` does."""
        of = tables.records.c
        trials = rows.fits(tables.records, problem=problem, device=device, regime=regime, role=Role.TRIAL)
        wanted = sa.select(of.outcome, sa.func.count()).where(*trials, rows.stands())
        with self.reading() as connection:
            counted = connection.execute(wanted.group_by(of.outcome).order_by(of.outcome))
            return totals({str(outcome): int(count) for outcome, count in counted})

    def champion(
        self, problem: ProblemKey, device: DeviceInfo | str, regime: str, kernel: str | None = None, *,
        confirmed: bool = False, ruling: Ruling | None = None,
    ) -> Champion | None:  # fmt: skip
        """Returns the latest champion; one of this very board (same uuid) before one of its kind.

        Retracted champions do not count, nor those that the crown log bars, and champions dated in the future
        only if there is no other.

        Args:
            problem: What is computed.
            device: Where; a text is a uuid or a name.
            regime: How time was taken.
            kernel: Only champions of this kernel.
            confirmed: True for champions only that won again in a fresh process.
            ruling: What the crown log rules, where that is known; else it is read.
        """
        of, record, wanted = tables.champions.c, tables.records.c, _LATEST_CHAMPION
        if confirmed:
            wanted = wanted.where(of.id.in_(rules_of(self.crown_log((Act.CONFIRM, Act.DOUBT)), ()).confirmed))
        if kernel is not None:
            of_kernel = rows.fits(tables.records, kernels={kernel: ""})
            wanted = wanted.join(tables.records, of.record == record.number).where(*of_kernel)
        named = isinstance(device, str)
        place = {"kind": "", "name": device, "uuid": device} if named else rows.device_row(device)
        values: dict[str, Any] = {**rows.problem_row(problem), **place, "regime": regime}
        with self.reading() as connection:
            if barred := (ruling or self._ruled(connection)).barred:
                wanted = wanted.where(of.id.not_in(barred))
            return connection.execute(wanted, values).scalar_one_or_none()

    def is_behind(self, champion: Champion) -> bool:
        """True if the library was seen to be faster than a champion, and nobody pinned it."""
        return champion.id in self.ruling().behind

    def champions(
        self, operation: str | None = None, device: DeviceInfo | str | None = None, regime: str | None = None,
        *, history: bool = False,
    ) -> list[Champion]:  # fmt: skip
        """Returns champions that match all arguments and were not retracted, by problem, device and regime.

        Args:
            operation: Name.
            device: Where; a text is a uuid or a name.
            regime: How time was taken.
            history: True for all champions ever crowned, oldest first; else the one that answers for each
                problem, kind of device and regime.
        """
        of = tables.champions.c
        named = rows.fits(tables.champions, operation=operation, device=device, regime=regime)
        barred = [] if history else [of.id.not_in(self.ruling().barred)]
        when = of.crowned_at if history else rows.rank_in_time(of.crowned_at)
        wanted = sa.select(of.data).where(*named, rows.reigns(), *barred).order_by(when, of.id)
        champions = sorted(self.read(wanted), key=lambda champion: champion.place)
        return champions if history else list({champion.place: champion for champion in champions}.values())

    def devices(self) -> list[DeviceInfo]:
        """Returns every device with records or surveys, by kind, name and uuid, as of its latest use."""
        device, record, survey = tables.devices.c, tables.records.c, tables.surveys.c
        latest = sa.select(sa.func.max(record.measured_at)).where(record.device == device.number)
        known = sa.select(record.number).where(record.device == device.number, rows.stands())
        surveyed = sa.select(survey.number).where(survey.device == device.number, rows.stands(tables.surveys))
        used = sa.select(device.info).where(sa.or_(known.exists(), surveyed.exists()))
        ordered = used.order_by(sa.func.coalesce(latest.scalar_subquery(), ""), device.digest)
        known_devices = map(rows.device_of, self.read(ordered))
        last = {(device.kind, device.name, device.uuid): device for device in known_devices}
        return [last[key] for key in sorted(last)]

    def survey_parts(
        self, operation: str, device: DeviceInfo | str, regime: str, study: str | None = None
    ) -> list[SurveyPart]:
        """Parts of surveys that were not taken back, in the order measured.

        Args:
            operation: Name.
            device: Where; a text is a uuid or a name.
            regime: How time was taken.
            study: Of this survey only.
        """
        of = tables.surveys.c
        named = {"operation": operation, "device": device, "regime": regime, "study": study}
        wanted = sa.select(of.data).where(*rows.fits(tables.surveys, **named), rows.stands(tables.surveys))
        return self.read(wanted.order_by(of.measured_at, of.id))

    def positions(self) -> dict[str, int]:
        """The number of the last row of each table that answers rest on; a quick query."""
        with self.reading() as connection:
            return rows.positions(connection)

    def rows(self, wanted: sa.Executable) -> Sequence[sa.Row[Any]]:
        """Returns some rows."""
        with self.reading() as connection:
            return connection.execute(wanted).all()

    def read(self, wanted: sa.Executable) -> list[Any]:
        """Returns what the selected column of some rows holds."""
        with self.reading() as connection:
            return list(connection.execute(wanted).scalars())
