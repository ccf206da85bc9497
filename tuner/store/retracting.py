"""Retracts records, and undoes retractions: by id, by time of measurement, by device.

Nothing is deleted. A retraction names an item that no longer counts; undoing it adds a retraction that names
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from tuner.errors import NothingFound
from tuner.results.record import Record, Retraction, checked_id, latest_credible
from tuner.store import Store, queries, rows, tables
from tuner.store.reading import Reader

#: Ids in one statement.
AT_ONCE = 500


@dataclass(frozen=True)
class Chosen:
    """Selects records that match all criteria.

    Attributes:
        ids: UUIDs of records, champions or parts of surveys.
        alone: True for these records only; else each stands for all measurements of its config for the problem,
            device and regime, because an error affects trials and finals alike.
        before: Measured before this; ISO 8601, UTC.
        after: Measured after this.
        device: Name or uuid.
    """

    ids: tuple[str, ...] = ()
    alone: bool = False
    before: str = ""
    after: str = ""
    device: str = ""


def take_back(store: Store, chosen: Chosen, reason: str = "") -> int:
    """Retracts the chosen items that still count.

    Returns:
        Number of records and champions.

    Raises:
        NothingFound: No record or champion here has such an id.
        InputError: An id is not a UUID.
    """
    count = 0
    for some in _batches(_ids(store, chosen)):
        gone = retracted(store, some)
        count += store.retract([Retraction(each, reason) for each in some if each not in gone])
    return count


def give_back(store: Store, chosen: Chosen, reason: str = "") -> int:
    """Undoes the retraction of the chosen items.

    Returns:
        Number of records and champions.

    Raises:
        NothingFound: No record or champion here has such an id.
        InputError: An id is not a UUID.
    """
    count = 0
    for some in _batches(_ids(store, chosen)):
        made = _in_force(store, some)
        store.retract([Retraction(each.id, reason) for each in made])
        count += len({each.of for each in made})
    return count


def retracted(store: Reader, ids: Iterable[str]) -> dict[str, Retraction]:
    """Returns those of some records and champions that were themselves retracted, with the first retraction."""
    found: dict[str, Retraction] = {}
    for some in _batches(list(dict.fromkeys(ids))):
        for each in _in_force(store, some):
            found.setdefault(each.of, each)
    return found


def any_retracted(store: Reader) -> bool:
    """True if there is any retraction; a quick query."""
    with store.reading() as connection:
        return connection.execute(sa.select(tables.retractions.c.number).limit(1)).first() is not None


@dataclass(frozen=True)
class Ahead:
    """Records dated in the future: the clock of their machine was ahead, or ours is behind.

    Attributes:
        count: Number of records.
        first: Time of the first, by that clock; ISO 8601, UTC.
        last: Time of the last.
    """

    count: int
    first: str
    last: str

    def __str__(self) -> str:
        return (
            f"{self.count} records are dated in the future ({self.first[:10]} to {self.last[:10]}): a clock "
            "was ahead when they were measured, or this one is behind"
        )


#: Remedy for records dated in the future.
AHEAD_REMEDY = "correct the clock, or take them back with `tuner records forget --after DATE`"


def ahead(store: Reader) -> Ahead | None:
    """Returns the records dated in the future; None if there are none."""
    of = tables.records.c
    devices = sa.select(sa.func.max(of.measured_at)).group_by(of.device)
    wanted = sa.select(sa.func.count(), sa.func.min(of.measured_at), sa.func.max(of.measured_at)).where(
        of.measured_at > latest_credible(), queries.stands()
    )
    with store.reading() as connection:
        # The index by device and time shows at once if there are none.
        latest = max(connection.execute(devices).scalars(), default="")
        if latest <= latest_credible():
            return None
        count, first, last = connection.execute(wanted).one()
    return Ahead(int(count), str(first), str(last)) if count else None


def _in_force(store: Reader, ids: Sequence[str]) -> list[Retraction]:
    made, undone = tables.retractions, tables.retractions.alias("undone")
    is_undone = sa.select(undone.c.number).where(undone.c.of == made.c.id).correlate(made).exists()
    wanted = sa.select(made.c.data).where(made.c.of.in_(ids), ~is_undone)
    return store.read(wanted.order_by(made.c.made_at, made.c.id))


def _ids(store: Store, chosen: Chosen) -> list[str]:
    """Returns the ids of the chosen items, whether they count or not."""
    if chosen.ids:
        return list(dict.fromkeys(one for each in chosen.ids for one in _meant(store, each, chosen.alone)))
    found: list[str] = []
    with store.reading() as connection:
        for of in (tables.records.c, tables.surveys.c):
            fits = [
                *([of.measured_at < chosen.before] if chosen.before else []),
                *([of.measured_at > chosen.after] if chosen.after else []),
                *([of.device.in_(queries.devices_like(chosen.device))] if chosen.device else []),
            ]
            found += connection.execute(sa.select(of.id).where(*fits).order_by(of.id)).scalars()
    return found


def _meant(store: Store, asked: str, alone: bool) -> list[str]:
    """Returns the ids that an id stands for."""
    record, named = store.record(asked), checked_id(asked)
    if record is None and store.survey_part(asked) is not None:
        return [named]
    if record is None:
        record = store.record(_record_of_champion(store, named))
        assert record is not None, "a champion's record is stored with it"
    if alone:
        return [named]
    return [named, *(each for each in _of_config(store, record) if each != named)]


def _record_of_champion(store: Store, champion_id: str) -> str:
    of, record = tables.champions.c, tables.records
    wanted = sa.select(record.c.id).join(tables.champions, of.record == record.c.number)
    with store.reading() as connection:
        found = connection.execute(wanted.where(of.id == champion_id)).scalar()
    if found is None:
        raise NothingFound(
            f"no record or champion here has the id {champion_id}; `tuner records list` shows some"
        )
    return str(found)


def _of_config(store: Store, record: Record) -> list[str]:
    """Returns all measurements of a record's config, with its source, for its problem, device and regime."""
    of, kernel = tables.records, tables.kernels
    wanted = (
        sa.select(of.c.id)
        .join(kernel, of.c.kernel == kernel.c.number)
        .where(
            of.c.problem == queries.number_of(record.problem),
            of.c.device.in_(queries.devices_like(record.device)), of.c.regime == record.regime,
            of.c.config == rows.config_text(record.config), kernel.c.name == record.kernel,
            kernel.c.source_hash == record.source_hash,
        )
        .order_by(of.c.id)
    )  # fmt: skip
    with store.reading() as connection:
        return list(connection.execute(wanted).scalars())


def _batches(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[start : start + AT_ONCE] for start in range(0, len(ids), AT_ONCE)]
