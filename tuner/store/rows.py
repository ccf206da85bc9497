"""What is kept as rows: the columns by which it is searched, and what it shares with others."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.results.codec import storable
from tuner.results.crowns import Crown
from tuner.results.record import Champion, ProblemKey, Record, Retraction, checked_id, latest_hash
from tuner.results.survey import Kept, SurveyPart
from tuner.store import lines, tables
from tuner.store.lines import text_of

#: What is kept -> its table, in the order in which it is read: retractions are known before their targets.
TABLES: Mapping[type, sa.Table] = {
    Retraction: tables.retractions, Record: tables.records, Champion: tables.champions,
    SurveyPart: tables.surveys, Crown: tables.crowns,
}  # fmt: skip


def columns_of(item: Kept) -> dict[str, Any]:
    """The columns by which something is searched, but for its references."""
    match item:
        case Record():
            columns: dict[str, Any] = {
                "regime": item.regime, "role": item.role.value, "outcome": item.measurement.outcome.value,
                "time_s": item.measurement.time_s, "config": config_text(item.config),
                "measured_at": item.measured_at,
            }  # fmt: skip
        case Champion():
            columns = {
                "regime": item.record.regime, "speedup": item.speedup, "crowned_at": item.crowned_at,
            }  # fmt: skip
        case Retraction():
            columns = {"of": checked_id(item.of), "made_at": item.made_at}
        case SurveyPart():
            columns = {
                "operation": item.operation, "regime": item.regime, "timings": len(item.timings),
                "measured_at": item.measured_at,
            }  # fmt: skip
        case Crown():
            columns = {"act": item.act.value}
    return columns | {"id": checked_id(item.id)}


def references_of(item: Kept) -> dict[str, tuple[sa.Table, Mapping[str, str]]]:
    """What something shares with others: column -> the table that it refers to, and the row there."""
    match item:
        case Record():
            kernel = {"name": item.kernel, "source_hash": item.source_hash, "origin": storable(item.origin)}
            return {
                "problem": (tables.problems, problem_row(item.problem)),
                "device": (tables.devices, device_row(item.device)),
                "kernel": (tables.kernels, kernel), "run": (tables.runs, run_row(item)),
            }  # fmt: skip
        case Champion():
            record = references_of(item.record)
            return {"problem": record["problem"], "device": record["device"]}
        case SurveyPart():
            return {
                "device": (tables.devices, device_row(item.device)), "run": (tables.runs, run_row(item)),
            }  # fmt: skip
        case Crown() if item.problem is not None:
            return {"problem": (tables.problems, problem_row(item.problem))}
    return {}


def item_of(data: bytes) -> Any:
    """Reads a row's ``data``; source hashes are those of today if equivalent ones were stored.

    Raises:
        ValueError: It is damaged.
    """
    item = lines.unpacked(data)
    if isinstance(item, Record):
        return _as_of_today(item)
    if isinstance(item, Champion):
        library = item.baseline and _as_of_today(item.baseline)
        return replace(item, record=_as_of_today(item.record), baseline=library)
    return item


def _as_of_today(record: Record) -> Record:
    now = latest_hash(record.source_hash)
    return record if now == record.source_hash else replace(record, source_hash=now)


def config_text(config: Mapping[str, Any]) -> str:
    """A config as JSON text, its parameters in their order."""
    return json.dumps(dict(config), separators=(",", ":"), default=lambda scalar: scalar.item())


def problem_row(problem: ProblemKey) -> dict[str, str]:
    """Columns of a problem; its precision stands behind the dtype."""
    return {name: value if name != "shape" else text_of(value) for name, value in problem.to_json().items()}


def problem_of(row: Any) -> ProblemKey:
    """The problem of a row that has its columns."""
    data = {name: getattr(row, name) for name in tables.PROBLEM}
    return ProblemKey.from_json(data | {"shape": json.loads(row.shape)})


@functools.lru_cache(maxsize=256)
def device_row(device: DeviceInfo) -> Mapping[str, str]:
    """Columns of a device; a change of any field, e.g. the driver's version, makes another row."""
    info = text_of(device.to_json())
    name = {"kind": device.kind, "name": device.name, "uuid": device.uuid}
    return {"digest": _digest_of(info), "info": info, **name}


def device_of(info: str) -> DeviceInfo:
    """The device of a row's ``info``."""
    return DeviceInfo.from_json(json.loads(info))


def run_row(item: Record | SurveyPart) -> dict[str, str]:
    """Columns that the records of a run, or the parts of a survey, share."""
    versions = text_of(dict(item.versions))
    digest = _digest_of(item.study, item.session, versions)
    return {"digest": digest, "study": item.study, "session": item.session, "versions": versions}


def _digest_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
