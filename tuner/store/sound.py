"""Rows that are still what they were: checked against their sums, and only then read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.errors import InputError
from tuner.record import Champion, Record
from tuner.store import rows
from tuner.store.checksum import CHAMPION, RECORD, checksum

#: What reading a damaged row raises.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, InputError)


def record_of(row: Mapping[str, Any]) -> Record | None:
    """The record of a row that is joined with all it refers to; None where it is damaged.

    A row without a sum, from before there were any, is believed when it can be read.
    """
    try:
        if row["checksum"] not in (None, checksum(row, RECORD)):
            return None
        return rows.record_of(row, rows.device_of(row["info"]))
    except DAMAGE:
        return None


def id_of(row: Mapping[str, Any]) -> str | None:
    """The id of a record's row, joined as above; None where it is damaged. Quicker than reading it."""
    if row["checksum"] is not None:
        return str(row["id"]) if row["checksum"] == checksum(row, RECORD) else None
    found = record_of(row)
    return found.id if found else None


def champion_of(row: Mapping[str, Any], record: Record, baseline: Record | None) -> Champion | None:
    """The champion of a row; None where it is damaged."""
    try:
        told = dict(row) | {"record_id": record.id, "baseline_id": baseline.id if baseline else None}
        if row["checksum"] not in (None, checksum(told, CHAMPION)):
            return None
        return rows.champion_of(row, record, baseline)
    except DAMAGE:
        return None
