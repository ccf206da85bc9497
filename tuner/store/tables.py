"""Tables of the store. The same database holds Optuna's own tables, so every name here has a prefix.

Problems, devices, kernels and runs are stored once and referred to by number, which keeps a record small.
Numbers are local to a database; what travels between databases is named by UUID (records, champions) or by
what it says (the rest).
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)

#: Name of our version table; Optuna owns ``alembic_version`` in the same database.
VERSION_TABLE = "tile_tuner_version"
#: Schemas that this version can bring forward, oldest first; the last is the one it works with.
SCHEMAS = ("0001", "0002", "0003", "0004", "0005")

METADATA = MetaData()
_NUMBER = BigInteger().with_variant(Integer, "sqlite")
_UUID: Uuid[str] = Uuid(as_uuid=False)


def _number() -> Column[int]:
    return Column("number", _NUMBER, primary_key=True, autoincrement=True)


def _refers(name: str, table: str, *, optional: bool = False) -> Column[int]:
    return Column(name, _NUMBER, ForeignKey(f"{table}.number"), nullable=optional)


identity = Table("tuner_identity", METADATA, Column("id", _UUID, primary_key=True))

schema_history = Table(
    "tuner_schema_history",
    METADATA,
    Column("version", String(32), primary_key=True),
    Column("tuner_version", String(64), nullable=False),
    Column("migrated_at", String(40), nullable=False),
)

problems = Table(
    "tuner_problems",
    METADATA,
    _number(),
    Column("operation", String(200), nullable=False),
    Column("shape", String(1000), nullable=False),
    # With precision and epilogue behind it.
    Column("dtype", String(100), nullable=False),
    Column("layout", String(40), nullable=False),
    UniqueConstraint("operation", "shape", "dtype", "layout", name="tuner_problems_once"),
)

devices = Table(
    "tuner_devices",
    METADATA,
    _number(),
    Column("digest", String(64), nullable=False, unique=True),
    Column("kind", String(40), nullable=False),
    Column("name", String(400), nullable=False),
    Column("uuid", String(200), nullable=False),
    Column("info", Text, nullable=False),
    Index("tuner_devices_by_name", "kind", "name"),
)

kernels = Table(
    "tuner_kernels",
    METADATA,
    _number(),
    Column("name", String(200), nullable=False),
    Column("source_hash", String(64), nullable=False),
    Column("origin", String(1000), nullable=False),
    UniqueConstraint("name", "source_hash", "origin", name="tuner_kernels_once"),
)

runs = Table(
    "tuner_runs",
    METADATA,
    _number(),
    Column("digest", String(64), nullable=False, unique=True),
    Column("study", String(1000), nullable=False, index=True),
    Column("session", String(200), nullable=False, index=True),
    Column("versions", Text, nullable=False),
)

records = Table(
    "tuner_records",
    METADATA,
    _number(),
    Column("id", _UUID, nullable=False, unique=True),
    _refers("problem", "tuner_problems"),
    _refers("device", "tuner_devices"),
    _refers("kernel", "tuner_kernels"),
    _refers("run", "tuner_runs"),
    Column("regime", String(40), nullable=False),
    Column("role", String(20), nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("time_s", Double, nullable=True),
    Column("config", Text, nullable=False),
    Column("samples", LargeBinary, nullable=False),
    Column("work", Text, nullable=False),
    Column("error", Text, nullable=True),
    Column("compiled", Text, nullable=True),
    Column("stages", Text, nullable=False),
    Column("circumstances", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("measured_at", String(40), nullable=False),
    Column("checksum", BigInteger, nullable=True),
    Index("tuner_records_by_run", "run"),
    Index("tuner_records_by_device", "device", "measured_at"),
    Index("tuner_records_by_time", "problem", "regime", "device", "time_s"),
)

champions = Table(
    "tuner_champions",
    METADATA,
    _number(),
    Column("id", _UUID, nullable=False, unique=True),
    _refers("record", "tuner_records"),
    _refers("baseline", "tuner_records", optional=True),
    _refers("problem", "tuner_problems"),
    _refers("device", "tuner_devices"),
    Column("regime", String(40), nullable=False),
    Column("speedup", Double, nullable=False),
    Column("verdict", String(40), nullable=False),
    Column("trials", Text, nullable=False),
    Column("pairs", Text, nullable=True),
    Column("crowned_at", String(40), nullable=False),
    Column("checksum", BigInteger, nullable=True),
    Index("tuner_champions_by_problem", "problem", "regime", "crowned_at"),
)

retractions = Table(
    "tuner_retractions",
    METADATA,
    _number(),
    Column("id", _UUID, nullable=False, unique=True),
    Column("of", _UUID, nullable=False, index=True),
    Column("reason", Text, nullable=False),
    Column("made_at", String(40), nullable=False),
    Column("checksum", BigInteger, nullable=True),
)

# A part of a survey: some hundred timings of one operation in one row; see `tuner.store.surveys`.
surveys = Table(
    "tuner_surveys",
    METADATA,
    _number(),
    Column("id", _UUID, nullable=False, unique=True),
    _refers("device", "tuner_devices"),
    _refers("run", "tuner_runs"),
    Column("operation", String(200), nullable=False),
    Column("regime", String(40), nullable=False),
    Column("timings", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("measured_at", String(40), nullable=False),
    Column("checksum", BigInteger, nullable=True),
    Index("tuner_surveys_by_operation", "operation", "regime", "device"),
)

# Who of a fleet works on what; see `tuner.store.claims`. A number is never used again.
claims = Table(
    "tuner_claims",
    METADATA,
    _number(),
    Column("night", String(40), nullable=False),
    Column("study", String(1000), nullable=False),
    Column("what", String(20), nullable=False),
    Column("worker", String(400), nullable=False),
    Column("device", String(400), nullable=False),
    Column("board", String(200), nullable=False),
    Column("state", String(20), nullable=False),
    Column("why", Text, nullable=False),
    Column("trials", Integer, nullable=False),
    Column("started_at", String(40), nullable=False),
    Column("progressed_at", String(40), nullable=False),
    Column("ended_at", String(40), nullable=False),
    Index("tuner_claims_by_study", "study", "state"),
    Index("tuner_claims_by_night", "night"),
)

# The crown log: pins, rollbacks, confirmations; see `tuner.results.crowns`.
crowns = Table(
    "tuner_crowns",
    METADATA,
    _number(),
    Column("id", _UUID, nullable=False, unique=True),
    Column("act", String(20), nullable=False),
    _refers("problem", "tuner_problems", optional=True),
    Column("kind", String(40), nullable=False),
    Column("device", String(400), nullable=False),
    Column("regime", String(40), nullable=False),
    Column("champion", String(40), nullable=False),
    Column("who", String(400), nullable=False),
    Column("why", Text, nullable=False),
    Column("made_at", String(40), nullable=False),
    Column("checksum", BigInteger, nullable=True),
)

# What nights watched; see `tuner.store.watched`.
sentinels = Table(
    "tuner_sentinels",
    METADATA,
    _number(),
    Column("id", _UUID, nullable=False, unique=True),
    Column("night", _UUID, nullable=False),
    Column("process", Integer, nullable=False),
    _refers("problem", "tuner_problems"),
    _refers("device", "tuner_devices"),
    Column("regime", String(40), nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("measured_at", String(40), nullable=False),
    Column("checksum", BigInteger, nullable=True),
    Index("tuner_sentinels_by_problem", "problem", "regime", "measured_at"),
)

# How nights began and ended, and their reports: events that are only added.
nights = Table(
    "tuner_nights",
    METADATA,
    _number(),
    Column("id", _UUID, nullable=False, unique=True),
    Column("night", _UUID, nullable=False),
    Column("event", String(20), nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("at", String(40), nullable=False),
    Column("checksum", BigInteger, nullable=True),
)

# Models of times; see `tuner.store.models`. No number is used again: the last one tells of a change.
models = Table(
    "tuner_models",
    METADATA,
    _number(),
    Column("operation", String(200), nullable=False),
    Column("device", String(400), nullable=False),
    Column("regime", String(40), nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("fitted_at", String(40), nullable=False),
    Index("tuner_models_by_operation", "operation", "regime", "device"),
)

# What records share, once more: in a table of its own it lies on other pages, so that a damaged page of the
# one or the other does not take the records of a whole device or kernel along. Read by a rescue alone.
shared = Table(
    "tuner_shared",
    METADATA,
    _number(),
    Column("kind", String(20), nullable=False),
    Column("of", _NUMBER, nullable=False),
    Column("said", Text, nullable=False),
    Column("checksum", BigInteger, nullable=True),
    UniqueConstraint("kind", "of", name="tuner_shared_once"),
)

# What was asked and had no exact answer, counted; see `tuner.store.demand`.
demand = Table(
    "tuner_demand",
    METADATA,
    _number(),
    Column("operation", String(200), nullable=False),
    Column("shape", String(1000), nullable=False),
    # With precision and epilogue behind it.
    Column("dtype", String(100), nullable=False),
    Column("layout", String(40), nullable=False),
    Column("kind", String(40), nullable=False),
    Column("device", String(400), nullable=False),
    Column("match", String(40), nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("saves_s", Double, nullable=False),
    Column("first_at", String(40), nullable=False),
    Column("last_at", String(40), nullable=False),
    UniqueConstraint("operation", "shape", "dtype", "layout", "kind", "device", name="tuner_demand_once"),
    Index("tuner_demand_by_saving", "saves_s"),
)

# --- the service ---------------------------------------

# What a snapshot of the answers rests on; see `tuner.store.snapshots`. Rows are only ever added.
snapshots = Table(
    "tuner_snapshots",
    METADATA,
    _number(),
    Column("made_at", String(40), nullable=False),
    Column("positions", Text, nullable=False),
    Column("published", String(64), nullable=False),
    Column("code", String(200), nullable=False),
)

# A token's secret is not stored, only its SHA-256.
tokens = Table(
    "tuner_tokens",
    METADATA,
    _number(),
    Column("name", String(100), nullable=False, unique=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("scopes", String(200), nullable=False),
    Column("created_at", String(40), nullable=False),
    Column("expires_at", String(40), nullable=False),
    Column("revoked_at", String(40), nullable=False),
    Column("used_at", String(40), nullable=False),
)

# Files of kernels that jobs may name, on one node; see `tuner.service.job_queue`.
allowed_files = Table(
    "tuner_allowed_files",
    METADATA,
    _number(),
    Column("node", String(200), nullable=False),
    Column("path", String(1000), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("covers", Text, nullable=False),
    Column("allowed_at", String(40), nullable=False),
    UniqueConstraint("node", "path", name="tuner_allowed_files_once"),
)

# `same` is the digest of what is asked while a job is unfinished, else its id: equal unfinished jobs are one.
jobs = Table(
    "tuner_jobs",
    METADATA,
    _number(),
    Column("id", _UUID, nullable=False, unique=True),
    Column("same", String(64), nullable=False, unique=True),
    Column("node", String(200), nullable=False),
    Column("submitter", String(100), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("deadline", String(40), nullable=False),
    Column("device", String(400), nullable=False),
    Column("asked", Text, nullable=False),
    Column("state", String(20), nullable=False),
    Column("why", Text, nullable=False),
    Column("process", Text, nullable=False),
    Column("progress", Text, nullable=False),
    Column("report", Text, nullable=False),
    Column("starts", Integer, nullable=False),
    Column("submitted_at", String(40), nullable=False),
    Column("started_at", String(40), nullable=False),
    Column("ended_at", String(40), nullable=False),
    Index("tuner_jobs_by_state", "state", "number"),
)

job_events = Table(
    "tuner_job_events",
    METADATA,
    _number(),
    _refers("job", "tuner_jobs"),
    Column("kind", String(20), nullable=False),
    Column("said", Text, nullable=False),
    Column("at", String(40), nullable=False),
    Index("tuner_job_events_by_job", "job", "number"),
)
