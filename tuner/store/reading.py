"""Reads records and champions that match a query, in a reproducible order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role, checked_id
from tuner.results.survey import SurveyPart
from tuner.store import opening, queries, rows, tables
from tuner.store.crown_log import Rulings


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
        self.rulings = Rulings(self.reading)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Connects for reading.

        Raises:
            StoreTrouble: The database cannot be read, or a row is damaged.
        """
        with opening.reading(self._where), self._engine.connect() as connection:
            yield connection

    def record(self, record_id: str) -> Record | None:
        """Returns the record with this id, even if it was retracted; see `retracted`."""
        of = tables.records.c
        return next(iter(self.read(sa.select(of.data).where(of.id == checked_id(record_id)))), None)

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
        of, run = tables.records.c, tables.runs.c
        wanted = sa.select(of.data).where(queries.stands())
        for column, value in ((run.study, study), (run.session, session)):
            if value is not None:
                wanted = wanted.where(of.run.in_(sa.select(run.number).where(column == value)))
        if problem is not None:
            wanted = wanted.where(of.problem == queries.number_of(problem))
        if device is not None:
            wanted = wanted.where(of.device.in_(queries.devices_like(device)))
        if role is not None:
            wanted = wanted.where(of.role == role.value)
        return self.read(wanted.order_by(of.measured_at, of.id))

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
            sa.select(of.time_s, of.measured_at, of.id, of.data)
            .where(
                of.problem == queries.number_of(problem),
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
        with self.reading() as connection:
            numbers = connection.execute(queries.devices_like(device)).scalars().all()
            found = [connection.execute(fastest, {"number": number}).one_or_none() for number in numbers]
            best = min((row for row in found if row is not None), key=lambda row: tuple(row)[:3], default=None)
            return rows.item_of(best.data) if best is not None else None

    def counts(self, problem: ProblemKey, device: DeviceInfo | str, regime: str) -> dict[str, int]:
        """Counts trials: ``total``, ``measured``, ``failed`` and one count per outcome."""
        of = tables.records.c
        wanted = (
            sa.select(of.outcome, sa.func.count())
            .where(
                of.problem == queries.number_of(problem),
                of.regime == regime,
                of.device.in_(queries.devices_like(device)),
                of.role == Role.TRIAL.value,
                queries.stands(),
            )
            .group_by(of.outcome)
            .order_by(of.outcome)
        )
        with self.reading() as connection:
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
        of, record = tables.champions.c, tables.records.c
        wanted = sa.select(of.data).where(
            of.problem == queries.number_of(problem), of.regime == regime, queries.reigns(),
            of.id.not_in(self.rulings.now().barred),
        )  # fmt: skip
        if confirmed:
            wanted = wanted.where(of.id.in_(self.rulings.confirmed()))
        if kernel is not None:
            wanted = wanted.join(tables.records, of.record == record.number).where(
                record.kernel.in_(queries.kernels_like({kernel: ""}))
            )
        wanted = wanted.order_by(queries.rank_in_time(of.crowned_at).desc(), of.id.desc()).limit(1)
        uuid = device if isinstance(device, str) else device.uuid
        boards = [queries.boards(uuid)] if uuid else []
        for numbers in (*boards, queries.devices_like(device)):
            found: list[Champion] = self.read(wanted.where(of.device.in_(numbers)))
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
        with self.reading() as connection:
            return {(rows.problem_of(row), str(row.regime)) for row in connection.execute(wanted)}

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
        of, problem = tables.champions.c, tables.problems.c
        wanted = sa.select(of.data).where(queries.reigns())
        if not history:
            wanted = wanted.where(of.id.not_in(self.rulings.now().barred))
        if operation is not None:
            wanted = wanted.where(
                of.problem.in_(sa.select(problem.number).where(problem.operation == operation))
            )
        if device is not None:
            wanted = wanted.where(of.device.in_(queries.devices_like(device)))
        if regime is not None:
            wanted = wanted.where(of.regime == regime)
        when = of.crowned_at if history else queries.rank_in_time(of.crowned_at)
        found: list[Champion] = sorted(self.read(wanted.order_by(when, of.id)), key=queries.place)
        return found if history else list({queries.place(champion): champion for champion in found}.values())

    def devices(self) -> list[DeviceInfo]:
        """Returns every device with records or surveys, by kind, name and uuid, as of its latest use."""
        device, record, survey = tables.devices.c, tables.records.c, tables.surveys.c
        latest = sa.select(sa.func.max(record.measured_at)).where(record.device == device.number)
        known = sa.select(record.number).where(record.device == device.number, queries.stands())
        surveyed = sa.select(survey.number).where(survey.device == device.number, ~queries.withdrawn(survey.id))
        used = sa.select(device.info).where(sa.or_(known.exists(), surveyed.exists()))
        ordered = used.order_by(sa.func.coalesce(latest.scalar_subquery(), ""), device.digest)
        with self.reading() as connection:
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
        of, run = tables.surveys.c, tables.runs.c
        wanted = sa.select(of.data).where(
            of.operation == operation, of.regime == regime, of.device.in_(queries.devices_like(device)),
            ~queries.withdrawn(of.id),
        )  # fmt: skip
        if study is not None:
            wanted = wanted.where(of.run.in_(sa.select(run.number).where(run.study == study)))
        return self.read(wanted.order_by(of.measured_at, of.id))

    def survey_part(self, part_id: str) -> SurveyPart | None:
        """The part of that id, also where it was taken back."""
        of = tables.surveys.c
        return next(iter(self.read(sa.select(of.data).where(of.id == checked_id(part_id)))), None)

    def read(self, wanted: sa.Select[Any]) -> list[Any]:
        """Returns what the ``data`` of some rows holds."""
        with self.reading() as connection:
            return [rows.item_of(data) for data in connection.execute(wanted).scalars()]
