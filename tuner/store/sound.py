"""Rows that are still what they were: checked against their sums, and only then read."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from tuner.errors import InputError
from tuner.results.kept import Kept
from tuner.results.record import Champion, Record, Retraction
from tuner.results.survey import SurveyPart
from tuner.store import lines, opening, rows, surveys
from tuner.store.checksum import CHAMPION, RECORD, RETRACTION, SURVEY, checksum

#: What reading a damaged row raises.
DAMAGE = (*opening.DAMAGE, InputError)


def record_of(row: Mapping[str, Any]) -> Record | None:
    """The record of a row that is joined with all it refers to; None where it is damaged.

    A row without a column for its sum, from before there were any, is believed when it can be read.
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
    """The row with texts as texts: a flipped bit may make bytes of a text, or the reverse."""
    told = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in row.items()
        if name != packed
    }
    data = row.get(packed)
    return told | {packed: data.encode() if isinstance(data, str) else data}


def _is_plain(found: Kept) -> bool:
    """Whether each part is of its type: what has no sum may hold anything."""
    lines.parsed(lines.line_of(found))
    return True


def id_of(row: Mapping[str, Any]) -> str | None:
    """The id of a record's row, joined as above; None where it is damaged. Quicker than reading it."""
    try:
        return str(row["id"]) if row["checksum"] == checksum(row, RECORD) else None
    except DAMAGE:
        return None


def champion_of(row: Mapping[str, Any], record: Record, baseline: Record | None) -> Champion | None:
    """The champion of a row; None where it is damaged."""
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
    """The retraction of a row; None where it is damaged."""
    try:
        row = _typed(row)
        return rows.retraction_of(row) if row["checksum"] == checksum(row, RETRACTION) else None
    except DAMAGE:
        return None
