"""Sentinels and nights in the database: rows that are only added."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tuner.results import codec
from tuner.results.record import ProblemKey, checked_id, new_id, utc_now
from tuner.results.sentinel import Sentinel
from tuner.store import queries, rows, tables

if TYPE_CHECKING:
    from tuner.store import Store
    from tuner.store.reading import Reader

#: A row unpacks to at most so many bytes: a damaged one must not fill the memory.
MOST_BYTES = 1 << 26
#: Events of a night.
BEGUN, ENDED = "begun", "ended"


@dataclass(frozen=True)
class NightEvent:
    """Something that is noted of a night.

    Attributes:
        night: The night's id.
        event: ``begun`` or ``ended``.
        data: What is known of it: of the end, the whole report.
        id: UUID.
        at: ISO 8601, UTC.
    """

    night: str
    event: str
    data: Mapping[str, Any]
    id: str = field(default_factory=new_id)
    at: str = field(default_factory=utc_now)


def add(store: Store, sentinels: Iterable[Sentinel]) -> int:
    """Stores sentinels in one transaction; those whose id is stored already are left as they are.

    Returns:
        How many are new.

    Raises:
        StoreTrouble: The database cannot be written; nothing of this call is stored.
    """
    by_id = {checked_id(sentinel.id): sentinel for sentinel in sentinels}
    numbers: dict[tuple[str, ...], int] = {}
    with store.writing() as connection:
        present = store.present(connection, tables.sentinels, list(by_id))
        fresh = {name: sentinel for name, sentinel in by_id.items() if name not in present}
        for name, sentinel in fresh.items():
            row = {
                "id": name, "night": checked_id(sentinel.night), "process": sentinel.process,
                "regime": sentinel.regime, "data": packed(codec.to_json(sentinel)),
                "measured_at": sentinel.measured_at,
                "problem": store.once(connection, tables.problems, rows.problem_row(sentinel.problem), numbers),
                "device": store.once(connection, tables.devices, rows.device_row(sentinel.device), numbers),
            }  # fmt: skip
            connection.execute(tables.sentinels.insert(), row)
    return len(fresh)


def sentinels(
    store: Reader, problem: ProblemKey | None = None, regime: str = "", night: str = "", since: str = ""
) -> list[Sentinel]:
    """Stored sentinels in order of time; rows that are damaged are left out.

    Args:
        store: The store to read.
        problem: Of this problem only.
        regime: Of this regime only.
        night: Of this night only.
        since: Measured since then; ISO 8601, UTC.
    """
    of = tables.sentinels.c
    wanted = sa.select(of.data).where(
        of.measured_at >= since,
        *([of.problem == queries.number_of(problem)] if problem is not None else []),
        *([of.night == checked_id(night)] if night else []),
        *([of.regime == regime] if regime else []),
    )
    with store.reading() as connection:
        found = connection.execute(wanted.order_by(of.measured_at, of.id)).scalars().all()
    return [codec.from_json(Sentinel, data) for data in map(unpacked, found) if data is not None]


def note(store: Store, event: NightEvent) -> None:
    """Adds an event of a night.

    Raises:
        StoreTrouble: The database cannot be written.
    """
    row = {
        "id": checked_id(event.id), "night": checked_id(event.night), "event": event.event,
        "data": packed(event.data), "at": event.at,
    }  # fmt: skip
    with store.writing() as connection:
        connection.execute(tables.nights.insert(), row)


def events(store: Reader, night: str = "", limit: int = 1000) -> list[NightEvent]:
    """Events of nights, the latest last; rows that are damaged are left out.

    Args:
        store: The store to read.
        night: Of this night only.
        limit: Of the latest, at most so many.
    """
    of = tables.nights.c
    wanted = sa.select(*of).order_by(of.at.desc(), of.number.desc()).limit(limit)
    if night:
        wanted = wanted.where(of.night == checked_id(night))
    with store.reading() as connection:
        found = connection.execute(wanted).all()
    read = [(row, unpacked(row.data)) for row in reversed(found)]
    return [NightEvent(row.night, row.event, data, row.id, row.at) for row, data in read if data is not None]


def packed(data: Any) -> bytes:
    """JSON, packed with a sum of its own."""
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 6)


def unpacked(data: bytes) -> Any:
    """Reads the output of `packed`; None if it is damaged."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, MOST_BYTES)
        return json.loads(text) if unpacking.eof else None
    except (zlib.error, TypeError):
        return None
