"""Reads rows only after checking them against their checksums."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from tuner.errors import InputError
from tuner.results.record import Champion, Record, Retraction
from tuner.results.survey import Kept, SurveyPart
from tuner.store import lines, opening, rows, surveys
from tuner.store.rows import CHAMPION, RECORD, RETRACTION, SURVEY, checksum

#: Exceptions raised by reading a damaged row.
DAMAGE = (*opening.DAMAGE, InputError)


def record_of(row: Mapping[str, Any]) -> Record | None:
    """Returns the record of a row joined with all its references; None if it is damaged.

    A row of an old schema without checksums is trusted if it can be read.
    """
    try:
        row = _typed(row)
        if "checksum" in row and row["checksum"] != checksum(row, RECORD):
            return None
        found = rows.record_of(row, rows.device_of(row["info"]))
        return found if "checksum" in row or _is_plain(found) else None
    except DAMAGE:
        return None


def _typed(row: Mapping[str, Any], packed: str = "samples") -> dict[str, Any]:
    """Returns the row with texts as texts: a flipped bit may turn a text into bytes, or the reverse."""
    told = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in row.items()
        if name != packed
    }
    data = row.get(packed)
    return told | {packed: data.encode() if isinstance(data, str) else data}


def _is_plain(found: Kept) -> bool:
    """True if each part has its type; a row without a checksum may hold anything."""
    lines.parsed(lines.line_of(found))
    return True


def id_of(row: Mapping[str, Any]) -> str | None:
    """Returns the id of a joined record's row; None if it is damaged. This is quicker than reading it."""
    try:
        return str(row["id"]) if row["checksum"] == checksum(row, RECORD) else None
    except DAMAGE:
        return None


def champion_of(row: Mapping[str, Any], record: Record, baseline: Record | None) -> Champion | None:
    """Returns the champion of a row; None if it is damaged."""
    try:
        row = _typed(row)
        told = dict(row) | {"record_id": record.id, "baseline_id": baseline.id if baseline else None}
        if "checksum" in row and row["checksum"] != checksum(told, CHAMPION):
            return None
        found = rows.champion_of(row, record, baseline)
        return found if "checksum" in row or _is_plain(found) else None
    except DAMAGE:
        return None


def survey_of(row: Mapping[str, Any]) -> SurveyPart | None:
    """The part of a survey of a row that is joined with its run and device; None where it is damaged."""
    try:
        row = _typed(row, "data")
        return (
            surveys.part_of(row, rows.device_of(row["info"]))
            if row["checksum"] == checksum(row, SURVEY)
            else None
        )
    except (*DAMAGE, zlib.error):
        return None


def retraction_of(row: Mapping[str, Any]) -> Retraction | None:
    """Returns the retraction of a row; None if it is damaged."""
    try:
        row = _typed(row)
        return rows.retraction_of(row) if row["checksum"] == checksum(row, RETRACTION) else None
    except DAMAGE:
        return None
