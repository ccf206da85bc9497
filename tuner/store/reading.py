"""Reads records and champions that match a query, in a reproducible order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.results.survey import SurveyPart
from tuner.store import opening, queries, rows, surveys, tables
from tuner.store.rulings import Rulings


class Reader:
    """The queries of a store.

    A device is found by its uuid, or by kind and name, because results of one board hold for others of its
    kind. A text is a uuid or a name.

    Attributes:
        rulings: Which champions may answer by the crown log.
    """

    def __init__(self, engine: sa.Engine, where: str) -> None:
        self._engine = engine
        self._where = where
        self._infos: dict[int, DeviceInfo] = {}
        #: `tuner.store.models.StoredModel`s of an earlier state; the database has only the latest.
        self.kept_models: Sequence[Any] | None = None
        self.rulings = Rulings(engine, where)

    def record(self, record_id: str) -> Record | None:
        """Returns the record with this id, even if it was retracted; see `retracted`."""
        found = self._read(queries.records_joined().where(tables.records.c.id == rows.checked_id(record_id)))
        return found[0] if found else None

    def records(
        self,
        *,
        study: str | None = None,
        session: str | None = None,
        problem: ProblemKey | None = None,
        device: DeviceInfo | str | None = None,
        role: Role | None = None,
    ) -> list[Record]:
        """Returns records that match all arguments and were not retracted, in order of measurement."""
        wanted = queries.records_joined().where(queries.stands())
        if study is not None:
            wanted = wanted.where(tables.runs.c.study == study)
        if session is not None:
            wanted = wanted.where(tables.runs.c.session == session)
        if problem is not None:
            wanted = wanted.where(queries.is_problem(problem))
        if device is not None:
            wanted = wanted.where(tables.records.c.device.in_(queries.devices_like(device)))
        if role is not None:
            wanted = wanted.where(tables.records.c.role == role.value)
        return self._read(wanted.order_by(tables.records.c.measured_at, tables.records.c.id))

    def best_record(
        self,
        problem: ProblemKey,
        device: DeviceInfo | str,
        regime: str,
        *,
        role: Role | None = None,
        kernels: Mapping[str, str] | None = None,
    ) -> Record | None:
        """Returns the fastest measured record, for use without finals; by default of kernels.

        Args:
            problem: What is computed.
            device: Where, by uuid or by kind and name.
            regime: How time was taken.
            role: Records of this role only; ``Role.BASELINE`` finds the library's.
            kernels: Kernel -> source hash: only these sources; an empty hash stands for any.
        """
        of = tables.records.c
        # One device number at a time: the index then returns them fastest first, and the first match ends it.
        fastest = (
            sa.select(of.number, of.time_s, of.measured_at, of.id)
            .where(
                of.problem
                == sa.select(tables.problems.c.number).where(queries.is_problem(problem)).scalar_subquery(),
                of.regime == regime,
                of.device == sa.bindparam("number"),
                of.time_s.is_not(None),
                of.outcome == Outcome.MEASURED.value,
                queries.stands(),
                of.role == role.value if role else of.role != Role.BASELINE.value,
            )
            .order_by(of.time_s, of.measured_at, of.id)
            .limit(1)
        )
        if kernels is not None:
            fastest = fastest.where(of.kernel.in_(queries.kernels_like(kernels)))
        with opening.reading(self._where), self._engine.connect() as connection:
            numbers = connection.execute(queries.devices_like(device)).scalars().all()
            found = [connection.execute(fastest, {"number": number}).one_or_none() for number in numbers]
        best = min((row for row in found if row is not None), key=lambda row: tuple(row)[1:], default=None)
        if best is None:
            return None
        return self._read(queries.records_joined().where(of.number == best.number))[0]

    def counts(self, problem: ProblemKey, device: DeviceInfo | str, regime: str) -> dict[str, int]:
        """Counts trials: ``total``, ``measured``, ``failed`` and one count per outcome."""
        of = tables.records.c
        wanted = (
            sa.select(of.outcome, sa.func.count())
            .where(
                of.problem.in_(sa.select(tables.problems.c.number).where(queries.is_problem(problem))),
                of.regime == regime,
                of.device.in_(queries.devices_like(device)),
                of.role == Role.TRIAL.value,
                queries.stands(),
            )
            .group_by(of.outcome)
            .order_by(of.outcome)
        )
        with opening.reading(self._where), self._engine.connect() as connection:
            by_outcome = {str(outcome): int(count) for outcome, count in connection.execute(wanted)}
        failed = sum(count for outcome, count in by_outcome.items() if Outcome(outcome).failed)
        measured = by_outcome.get(Outcome.MEASURED.value, 0)
        return {"total": sum(by_outcome.values()), "measured": measured, "failed": failed, **by_outcome}

    def champion(
        self,
        problem: ProblemKey,
        device: DeviceInfo | str,
        regime: str,
        kernel: str | None = None,
        *,
        confirmed: bool = False,
    ) -> Champion | None:
        """Returns the latest champion; one of this very board (same uuid) before one of its kind.

        Retracted champions do not count, nor those that the crown log bars, and champions dated in the future
        only if there is no other.

        Args:
            problem: What is computed.
            device: Where; a text is a uuid or a name.
            regime: How time was taken.
            kernel: Only champions of this kernel.
            confirmed: True for champions only that won again in a fresh process.
        """
        crowned = tables.champions.c
        wanted = queries.champions_joined().where(
            queries.is_problem(problem), crowned.regime == regime, queries.reigns(),
            crowned.id.not_in(self.rulings.now().barred),
        )  # fmt: skip
        if confirmed:
            wanted = wanted.where(crowned.id.in_(self.rulings.confirmed()))
        if kernel is not None:
            wanted = wanted.where(tables.kernels.c.name == kernel)
        last = queries.rank_in_time(crowned.crowned_at).desc(), crowned.id.desc()
        wanted = wanted.order_by(*last).limit(1)
        uuid = device if isinstance(device, str) else device.uuid
        boards = [queries.boards(uuid)] if uuid else []
        for numbers in (*boards, queries.devices_like(device)):
            found = self._read_champions(wanted.where(crowned.device.in_(numbers)))
            if found:
                return found[0]
        return None

    def is_chosen(self, champion: Champion) -> bool:
        """True if it answers because of a pin, a rollback or a freeze: nothing published comes before it."""
        return champion.id in self.rulings.now().chosen

    def crowned(self, device: DeviceInfo | str) -> set[tuple[ProblemKey, str]]:
        """Returns the problems and regimes that have a champion on a device, in one query."""
        of = tables.champions.c
        uuid = device if isinstance(device, str) else device.uuid
        boards = [of.device.in_(queries.boards(uuid))] if uuid else []
        wanted = (
            sa.select(*tables.problems.c, of.regime)
            .join(tables.champions, of.problem == tables.problems.c.number)
            .where(sa.or_(of.device.in_(queries.devices_like(device)), *boards), queries.reigns())
            .distinct()
        )
        with opening.reading(self._where), self._engine.connect() as connection:
            found = connection.execute(wanted).mappings().all()
            return {(rows.problem_of(dict(row)), str(row["regime"])) for row in found}

    def champions(
        self,
        operation: str | None = None,
        device: DeviceInfo | str | None = None,
        regime: str | None = None,
        *,
        history: bool = False,
    ) -> list[Champion]:
        """Returns champions that match all arguments and were not retracted, by problem, device and regime.

        Args:
            operation: Name.
            device: Where; a text is a uuid or a name.
            regime: How time was taken.
            history: True for all champions ever crowned, oldest first; else the one that answers for each
                problem, kind of device and regime.
        """
        wanted = queries.champions_joined().where(queries.reigns())
        if not history:
            wanted = wanted.where(tables.champions.c.id.not_in(self.rulings.now().barred))
        if operation is not None:
            wanted = wanted.where(tables.problems.c.operation == operation)
        if device is not None:
            wanted = wanted.where(tables.champions.c.device.in_(queries.devices_like(device)))
        if regime is not None:
            wanted = wanted.where(tables.champions.c.regime == regime)
        crowned_at = tables.champions.c.crowned_at
        when = crowned_at if history else queries.rank_in_time(crowned_at)
        ordered = wanted.order_by(when, tables.champions.c.id)
        found = sorted(self._read_champions(ordered), key=queries.place)
        return found if history else list({queries.place(champion): champion for champion in found}.values())

    def devices(self) -> list[DeviceInfo]:
        """Returns every device with records or surveys, by kind, name and uuid, as of its latest use."""
        device = tables.devices.c
        latest = sa.select(sa.func.max(tables.records.c.measured_at)).where(
            tables.records.c.device == device.number
        )
        known = sa.select(tables.records.c.number).where(
            tables.records.c.device == device.number, queries.stands()
        )
        surveyed = sa.select(tables.surveys.c.number).where(
            tables.surveys.c.device == device.number, ~queries.withdrawn(tables.surveys.c.id)
        )
        there = sa.select(device.info).where(sa.or_(known.exists(), surveyed.exists()))
        ordered = there.order_by(sa.func.coalesce(latest.scalar_subquery(), ""), device.digest)
        with opening.reading(self._where), self._engine.connect() as connection:
            found = [rows.device_of(info) for (info,) in connection.execute(ordered)]
        last = {(device.kind, device.name, device.uuid): device for device in found}
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
        wanted = queries.surveys_joined().where(
            of.operation == operation, of.regime == regime, of.device.in_(queries.devices_like(device)),
            ~queries.withdrawn(of.id),
        )  # fmt: skip
        if study is not None:
            wanted = wanted.where(tables.runs.c.study == study)
        return self._read_surveys(wanted.order_by(of.measured_at, of.id))

    def survey_part(self, part_id: str) -> SurveyPart | None:
        """The part of that id, also where it was taken back."""
        wanted = queries.surveys_joined().where(tables.surveys.c.id == rows.checked_id(part_id))
        return next(iter(self._read_surveys(wanted)), None)

    def _read_surveys(self, wanted: sa.Select[Any]) -> list[SurveyPart]:
        with opening.reading(self._where), self._engine.connect() as connection:
            found = connection.execute(wanted).mappings().all()
            return [surveys.part_of(dict(row), rows.device_of(row["info"])) for row in found]

    def _read(self, wanted: sa.Select[Any]) -> list[Record]:
        with opening.reading(self._where), self._engine.connect() as connection:
            return [self._record_of(connection, row) for row in connection.execute(wanted).all()]

    def _read_champions(self, wanted: sa.Select[Any]) -> list[Champion]:
        with opening.reading(self._where), self._engine.connect() as connection:
            found = connection.execute(wanted).all()
            numbers = {row.record for row in found} | {row.baseline for row in found} - {None}
            by_number = self._by_number(connection, sorted(numbers))
            return [
                rows.champion_of(dict(row._mapping), by_number[row.record], by_number.get(row.baseline))
                for row in found
            ]

    def _by_number(self, connection: sa.Connection, numbers: Sequence[int]) -> dict[int, Record]:
        """Reads records by number, a few hundred at a time: a statement takes few values."""
        found = {}
        for start in range(0, len(numbers), 500):
            some = queries.records_joined().where(tables.records.c.number.in_(numbers[start : start + 500]))
            for row in connection.execute(some).all():
                found[row.number] = self._record_of(connection, row)
        return found

    def _record_of(self, connection: sa.Connection, row: sa.Row[Any]) -> Record:
        number = row.device
        if number not in self._infos:
            info = sa.select(tables.devices.c.info).where(tables.devices.c.number == number)
            self._infos[number] = rows.device_of(connection.execute(info).scalar_one())
        return rows.record_of(dict(row._mapping), self._infos[number])
