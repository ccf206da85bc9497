"""Sentinels and nights in the database: rows that are only added, each with its own sum."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tuner.results.record import ProblemKey, new_id, utc_now
from tuner.results.sentinel import Sentinel
from tuner.store import opening, queries, rows, tables

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
    by_id = {rows.checked_id(each.id): each for each in sentinels}
    numbers: dict[tuple[str, ...], int] = {}
    with opening.explained(store._where), store._writing() as connection:
        there = store._there(connection, tables.sentinels, list(by_id))
        fresh = [each for name, each in by_id.items() if name not in there]
        for each in fresh:
            row: dict[str, Any] = {
                "id": rows.checked_id(each.id), "night": rows.checked_id(each.night), "process": each.process,
                "regime": each.regime, "data": packed(each.to_json()), "measured_at": each.measured_at,
            }  # fmt: skip
            row |= {
                "checksum": rows.checksum(row, rows.SENTINEL),
                "problem": store._once(connection, tables.problems, rows.problem_row(each.problem), numbers),
                "device": store._once(connection, tables.devices, rows.device_row(each.device), numbers),
            }
            connection.execute(store._insert(tables.sentinels), row)
    store._remember(numbers, [])
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
    wanted = sa.select(*of).order_by(of.measured_at, of.id)
    if problem is not None:
        wanted = wanted.join(tables.problems, of.problem == tables.problems.c.number)
        wanted = wanted.where(queries.is_problem(problem))
    if night:
        wanted = wanted.where(of.night == rows.checked_id(night))
    wanted = wanted.where(*([of.regime == regime] if regime else []), of.measured_at >= since)
    with opening.reading(store._where), store._engine.connect() as connection:
        found = connection.execute(wanted).mappings().all()
    return [
        Sentinel.from_json(unpacked(row["data"]))
        for row in found
        if row["checksum"] == rows.checksum(dict(row), rows.SENTINEL)
    ]


def note(store: Store, event: NightEvent) -> None:
    """Adds an event of a night.

    Raises:
        StoreTrouble: The database cannot be written.
    """
    row: dict[str, Any] = {
        "id": rows.checked_id(event.id), "night": rows.checked_id(event.night), "event": event.event,
        "data": packed(event.data), "at": event.at,
    }  # fmt: skip
    row["checksum"] = rows.checksum(row, rows.NIGHT)
    with opening.explained(store._where), store._writing() as connection:
        connection.execute(store._insert(tables.nights), row)


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
        wanted = wanted.where(of.night == rows.checked_id(night))
    with opening.reading(store._where), store._engine.connect() as connection:
        found = connection.execute(wanted).mappings().all()
    return [
        NightEvent(row["night"], row["event"], unpacked(row["data"]), row["id"], row["at"])
        for row in reversed(found)
        if row["checksum"] == rows.checksum(dict(row), rows.NIGHT)
    ]


def packed(data: Any) -> bytes:
    """JSON, packed."""
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 6)


def unpacked(data: bytes) -> Any:
    """Reads what `packed` wrote.

    Raises:
        ValueError: It is damaged.
    """
    try:
        return json.loads(zlib.decompressobj().decompress(data, MOST_BYTES))
    except zlib.error as error:
        raise ValueError(f"a row is damaged: {error}") from error
