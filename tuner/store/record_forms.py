"""Records of a database as JSON: single ones, the latest, counts."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tuner.errors import InputError, NothingFound

if TYPE_CHECKING:
    from tuner.results.record import Record, Retraction
    from tuner.store.reading import Reader
    from tuner.store.streams import Selection


def selection(operation: str = "", shape: str = "", device: str = "", regime: str = "") -> Selection:
    """Which records.

    Args:
        operation: Name; any if empty.
        shape: Sizes such as ``1024,1024,512``; any if empty.
        device: Name or uuid; any if empty.
        regime: How time was taken; any if empty.

    Raises:
        InputError: The shape is none.
    """
    from tuner.store.streams import Selection

    try:
        sizes = tuple(int(size) for size in shape.replace("x", ",").split(",") if size)
    except ValueError:
        raise InputError(f"a shape is whole numbers such as 1024,1024,512, got {shape!r}") from None
    return Selection(operation, sizes, device, regime)


def record_id(text: str) -> str:
    """An id in the form in which it is stored.

    Raises:
        InputError: The text is no UUID.
    """
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise InputError(
            f"a record is named by its id, a UUID such as {uuid.UUID(int=0)}, got {text!r}; `tuner "
            f"records list` shows ids in its last column"
        ) from None


def record_json(record: Record, retraction: Retraction | None) -> dict[str, Any]:
    """Everything stored about a record, and whether it was taken back."""
    from tuner.store import lines

    told: dict[str, Any] = json.loads(lines.line_of(record))["record"]
    return told | taken_back(retraction)


def taken_back(retraction: Retraction | None) -> dict[str, str | None]:
    """When and why a record was taken back."""
    if retraction is None:
        return {"taken_back": None}
    return {"taken_back": f"{retraction.made_at} {retraction.reason}".rstrip()}


def found_record(store: Reader, text: str, where: str) -> tuple[Record, Retraction | None]:
    """The record of an id, and its retraction.

    Raises:
        InputError: The text is no id.
        NothingFound: No record has it.
    """
    from tuner.store import retracting

    named = record_id(text)
    record = store.record(named)
    if record is None:
        raise NothingFound(f"no record of {where} has the id {named}; `tuner records list` shows some")
    return record, retracting.retracted(store, [named]).get(named)


def latest(store: Reader, wanted: Selection, limit: int) -> list[tuple[Record, Retraction | None]]:
    """The records stored last, newest first, each with its retraction."""
    from tuner.store import retracting, streams

    found = streams.recent(store, wanted, limit)
    gone = retracting.retracted(store, [record.id for record in found])
    return [(record, gone.get(record.id)) for record in found]


def tallies_json(store: Reader) -> list[dict[str, Any]]:
    """Counts of records by operation and device, then those of surveys."""
    from tuner.store import streams

    records = [asdict(each) for each in streams.tallies(store)]
    return records + [asdict(each) for each in streams.survey_tallies(store)]
