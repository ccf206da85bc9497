"""Tables of the store. Other programs may have tables in the same database: every name here has a prefix.

What is kept for good lies in ``data``, packed; queries search the columns beside it. A column whose type is
defined here is read as what it holds. Problems, devices, kernels and runs, by which records are searched, are
stored once and referred to by number. Numbers are local to a database; what travels is named by UUID.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Index, Table, Text

from tuner.results.record import Champion, Record, latest_hash
from tuner.results.survey import Kept
from tuner.store import lines

#: The schema.
SCHEMA = "0006"

METADATA = sa.MetaData()
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_UUID: sa.Uuid[str] = sa.Uuid(as_uuid=False)
#: Column -> what it refers to, if that has another name.
_REFERS_TO = {"baseline": "record"}


def _coded(kind: Any, write: Callable[[Any], Any], read: Callable[[Any], Any]) -> Any:
    """A type of columns whose values are written and read by functions."""

    class Coded(sa.TypeDecorator[Any]):
        impl, cache_ok = kind, True

        def process_bind_param(self, value: Any, dialect: Any) -> Any:
            return write(value)

        def process_result_value(self, value: Any, dialect: Any) -> Any:
            return read(value)

    return Coded


def _item_of(data: bytes) -> Kept:
    """Reads what is kept for good; source hashes are those of today if equivalent ones were stored.

    Raises:
        ValueError: It is damaged.
    """
    item = lines.unpacked(data)
    if isinstance(item, Champion):
        library = item.baseline and _as_of_today(item.baseline)
        return replace(item, record=_as_of_today(item.record), baseline=library)
    return _as_of_today(item) if isinstance(item, Record) else item


def _as_of_today(record: Record) -> Record:
    now = latest_hash(record.source_hash)
    return record if now == record.source_hash else replace(record, source_hash=now)


def _packed_json(value: Any) -> bytes:
    """JSON, packed with a sum of its own."""
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 6)


def _unpacked_json(data: bytes) -> Any:
    """Reads it; None if it is damaged."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, lines.MOST_BYTES)
        return json.loads(text) if unpacking.eof else None
    except (zlib.error, TypeError):
        return None


_ITEM = _coded(sa.LargeBinary, lines.packed, _item_of)
_JSON = _coded(Text, json.dumps, json.loads)
_PACKED_JSON = _coded(sa.LargeBinary, _packed_json, _unpacked_json)


def _table(name: str, *columns: Any) -> Table:
    """A table whose rows have numbers."""
    return Table(name, METADATA, Column("number", _NUMBER, primary_key=True, autoincrement=True), *columns)


def _id() -> Column[str]:
    return Column("id", _UUID, nullable=False, unique=True)


def _texts(*names: str, unique: bool = False) -> list[Column[str]]:
    return [Column(name, Text, nullable=False, unique=unique) for name in names]


def _integers(*names: str) -> list[Column[int]]:
    return [Column(name, sa.BigInteger, nullable=False) for name in names]


def _refer(*names: str, optional: bool = False) -> list[Column[int]]:
    """Columns with the numbers of rows of the tables that they are named after; a baseline is a record."""
    return [
        Column(name, _NUMBER, sa.ForeignKey(f"tuner_{_REFERS_TO.get(name, name)}s.number"), nullable=optional)
        for name in names
    ]


def _json(*names: str) -> list[Column[Any]]:
    return [Column(name, _JSON, nullable=False) for name in names]


def _data(kind: Any = _ITEM) -> Column[Any]:
    return Column("data", kind, nullable=False)


identity = Table("tuner_identity", METADATA, Column("id", _UUID, primary_key=True))

version = Table("tile_tuner_version", METADATA, Column("version_num", Text, primary_key=True))

# --- what records share --------------------------------

#: Columns of a problem; its precision and epilogue stand behind the dtype.
PROBLEM = ("operation", "shape", "dtype", "layout")

problems = _table(
    "tuner_problems", *_texts(*PROBLEM), sa.UniqueConstraint(*PROBLEM, name="tuner_problems_once")
)

devices = _table(
    "tuner_devices", *_texts("digest", unique=True), *_texts("kind", "name", "uuid", "info"),
    Index("tuner_devices_by_name", "kind", "name"),
)  # fmt: skip

kernels = _table(
    "tuner_kernels", *_texts("name", "source_hash", "origin"),
    sa.UniqueConstraint("name", "source_hash", "origin", name="tuner_kernels_once"),
)  # fmt: skip

runs = _table(
    "tuner_runs", *_texts("digest", unique=True), *_texts("study", "session", "versions"),
    Index("ix_tuner_runs_study", "study"), Index("ix_tuner_runs_session", "session"),
)  # fmt: skip

# --- what is kept for good: only added, exported, and copied beside the database ---

records = _table(
    "tuner_records", _id(), *_refer("problem", "device", "kernel", "run"),
    *_texts("regime", "role", "outcome"), Column("time_s", sa.Double, nullable=True),
    *_texts("config", "measured_at"), _data(),
    Index("tuner_records_by_run", "run"), Index("tuner_records_by_device", "device", "measured_at"),
    Index("tuner_records_by_time", "problem", "regime", "device", "time_s"),
)  # fmt: skip

champions = _table(
    "tuner_champions", _id(), *_refer("record"), *_refer("baseline", optional=True),
    *_refer("problem", "device"), *_texts("regime"), Column("speedup", sa.Double, nullable=False),
    *_texts("crowned_at"), _data(), Index("tuner_champions_by_problem", "problem", "regime", "crowned_at"),
)  # fmt: skip

retractions = _table(
    "tuner_retractions", _id(), Column("of", _UUID, nullable=False), *_texts("made_at"), _data(),
    Index("ix_tuner_retractions_of", "of"),
)  # fmt: skip

# A part of a survey is some hundred timings of one operation.
surveys = _table(
    "tuner_surveys", _id(), *_refer("device", "run"), *_texts("operation", "regime"),
    Column("timings", sa.Integer, nullable=False), *_texts("measured_at"), _data(),
    Index("tuner_surveys_by_operation", "operation", "regime", "device"),
)  # fmt: skip

# The crown log: pins, rollbacks, confirmations; see `tuner.results.verdict`.
crowns = _table("tuner_crowns", _id(), *_texts("act"), *_refer("problem", optional=True), _data())

# --- nights and fleets ---------------------------------

# Who of a fleet works on what; see `tuner.night.claims`. A number is never used again.
claims = _table(
    "tuner_claims", *_texts("night", "study", "what", "worker", "device", "board", "state", "why"),
    *_integers("trials"), *_texts("started_at", "progressed_at", "ended_at"),
    Index("tuner_claims_by_study", "study", "state"), Index("tuner_claims_by_night", "night"),
)  # fmt: skip

# What nights watched; see `tuner.night.stored`.
sentinels = _table(
    "tuner_sentinels", _id(), Column("night", _UUID, nullable=False),
    Column("process", sa.Integer, nullable=False), *_refer("problem", "device"), *_texts("regime"),
    _data(_PACKED_JSON), *_texts("measured_at"),
    Index("tuner_sentinels_by_problem", "problem", "regime", "measured_at"),
)  # fmt: skip

# How nights began and ended, and their reports: events that are only added.
nights = _table(
    "tuner_nights", _id(), Column("night", _UUID, nullable=False), *_texts("event"), _data(_PACKED_JSON),
    *_texts("at"),
)  # fmt: skip

# Models of times; see `tuner.store.watched`. No number is used again: the last one tells of a change.
models = _table(
    "tuner_models", *_texts("operation", "device", "regime"), _data(sa.LargeBinary), *_texts("fitted_at"),
    Index("tuner_models_by_operation", "operation", "regime", "device"),
)  # fmt: skip

# What was asked and had no exact answer, counted; see `tuner.store.watched`.
demand = _table(
    "tuner_demand", *_texts(*PROBLEM, "kind", "device", "match"), *_integers("calls"),
    Column("saves_s", sa.Double, nullable=False), *_texts("first_at", "last_at"),
    sa.UniqueConstraint(*PROBLEM, "kind", "device", name="tuner_demand_once"),
    Index("tuner_demand_by_saving", "saves_s"),
)  # fmt: skip

# --- the service ---------------------------------------

# What a snapshot of the answers rests on; see `tuner.service.snapshots`. Rows are only ever added.
snapshots = _table("tuner_snapshots", *_texts("made_at"), *_json("positions"), *_texts("published", "code"))

# A token's secret is not stored, only its SHA-256.
tokens = _table(
    "tuner_tokens", *_texts("name", "digest", unique=True),
    *_texts("scopes", "created_at", "expires_at", "revoked_at", "used_at"),
)  # fmt: skip

# Files of kernels that jobs may name, on one node; see `tuner.service.job_queue`.
allowed_files = _table(
    "tuner_allowed_files", *_texts("node", "path", "digest", "allowed_at"), *_json("covers"),
    sa.UniqueConstraint("node", "path", name="tuner_allowed_files_once"),
)  # fmt: skip

# `same` is the digest of what is asked while a job is unfinished, else its id: equal unfinished jobs are one.
jobs = _table(
    "tuner_jobs", _id(), *_texts("same", unique=True), *_texts("node", "submitter"), *_integers("priority"),
    *_texts("deadline", "device", "state", "why"), *_json("asked", "process", "progress", "report"),
    *_integers("starts"), *_texts("submitted_at", "started_at", "ended_at"),
    Index("tuner_jobs_by_state", "state", "number"),
)  # fmt: skip

job_events = _table(
    "tuner_job_events", *_refer("job"), *_texts("kind", "at"), *_json("said"),
    Index("tuner_job_events_by_job", "job", "number"),
)  # fmt: skip
