"""Retracts records, and undoes retractions: by id, by time of measurement, by device.

Nothing is deleted. A retraction names an item that no longer counts; undoing it adds a retraction that names
it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from tuner.errors import NothingFound
from tuner.results.record import Champion, Record, Retraction, checked_id, latest_credible
from tuner.store import Store, rows, tables
from tuner.store.reading import Reader

T = TypeVar("T")
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
    ids = _ids(store, chosen)
    gone = retracted(store, ids)
    return _stored(store, [Retraction(name, reason) for name in ids if name not in gone])


def give_back(store: Store, chosen: Chosen, reason: str = "") -> int:
    """Undoes the retraction of the chosen items.

    Returns:
        Number of records and champions.

    Raises:
        NothingFound: No record or champion here has such an id.
        InputError: An id is not a UUID.
    """
    in_force = _in_force(store, _ids(store, chosen))
    _stored(store, [Retraction(retraction.id, reason) for retraction in in_force])
    return len({retraction.of for retraction in in_force})


def _stored(store: Store, retractions: Sequence[Retraction]) -> int:
    return sum(store.add(some) for some in _batches(retractions))


def retracted(store: Reader, ids: Iterable[str]) -> dict[str, Retraction]:
    """Returns those of some records and champions that were themselves retracted, with the first retraction."""
    return {retraction.of: retraction for retraction in reversed(_in_force(store, list(dict.fromkeys(ids))))}


def _in_force(store: Reader, ids: Sequence[str]) -> list[Retraction]:
    """Returns the retractions of some items that were not undone, in order of time."""
    made, in_force = tables.retractions.c, list[Retraction]()
    if store.read(sa.select(made.number).limit(1)):
        for some in _batches(ids):
            in_force += store.read(sa.select(made.data).where(made.of.in_(some), rows.in_force()))
    return sorted(in_force, key=lambda retraction: (retraction.made_at, retraction.id))


#: Remedy for records dated in the future.
AHEAD_REMEDY = "correct the clock, or take them back with `tuner records forget --after DATE`"


def ahead(store: Reader) -> str | None:
    """Says which records are dated in the future; None if there are none."""
    of = tables.records.c
    devices = sa.select(sa.func.max(of.measured_at)).group_by(of.device)
    # The index by device and time shows at once if there are none.
    if max(store.read(devices), default="") <= latest_credible():
        return None
    late = sa.select(of.measured_at).where(of.measured_at > latest_credible(), rows.stands())
    times = sorted(store.read(late))
    if not times:
        return None
    return (
        f"{len(times)} records are dated in the future ({times[0][:10]} to {times[-1][:10]}): a clock was "
        "ahead when they were measured, or this one is behind"
    )


def _ids(store: Store, chosen: Chosen) -> list[str]:
    """Returns the ids of the chosen items, whether they count or not."""
    if chosen.ids:
        return list(dict.fromkeys(one for name in chosen.ids for one in _meant(store, name, chosen.alone)))
    ids: list[str] = []
    for table in (tables.records, tables.surveys):
        of, named = table.c, rows.fits(table, device=chosen.device)
        named += [of.measured_at < chosen.before] if chosen.before else []
        named += [of.measured_at > chosen.after] if chosen.after else []
        ids += store.read(sa.select(of.id).where(*named).order_by(of.id))
    return ids


def _meant(store: Store, text: str, alone: bool) -> list[str]:
    """Returns the ids that an id stands for."""
    named = checked_id(text)
    record = store.record(named)
    if record is None:
        surveys, crowned = tables.surveys.c, tables.champions.c
        if store.read(sa.select(surveys.id).where(surveys.id == named)):
            return [named]
        champions: list[Champion] = store.read(sa.select(crowned.data).where(crowned.id == named))
        if not champions:
            raise NothingFound(
                f"no record or champion here has the id {named}; `tuner records list` shows some"
            )
        record = champions[0].record
    return [named] if alone else list(dict.fromkeys([named, *_of_config(store, record)]))


def _of_config(store: Store, record: Record) -> list[str]:
    """Returns all measurements of a record's config, with its source, for its problem, device and regime."""
    of = tables.records.c
    same = rows.fits(
        tables.records, problem=record.problem, device=record.device, regime=record.regime,
        config=rows.config_text(record.config), kernels={record.kernel: record.source_hash},
    )  # fmt: skip
    return store.read(sa.select(of.id).where(*same).order_by(of.id))


def _batches(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + AT_ONCE] for start in range(0, len(items), AT_ONCE)]
