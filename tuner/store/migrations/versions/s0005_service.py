"""The crown log, sentinels and nights; demand; claims of a fleet; models; and what the service keeps."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_UUID = sa.Uuid(as_uuid=False)


def upgrade() -> None:
    """Adds their tables, and widens the column that has precision and epilogue behind the dtype."""
    if op.get_bind().dialect.name != "sqlite":  # which heeds no lengths
        op.alter_column("tuner_problems", "dtype", type_=sa.String(100), existing_nullable=False)
    _add_watch()
    _add_demand()
    _add_claims()
    _add_models()
    _add_service()


def _add_watch() -> None:
    op.create_table(
        "tuner_crowns",
        *_common(),
        sa.Column("act", sa.String(20), nullable=False),
        sa.Column("problem", _NUMBER, sa.ForeignKey("tuner_problems.number"), nullable=True),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("device", sa.String(400), nullable=False),
        sa.Column("regime", sa.String(40), nullable=False),
        sa.Column("champion", sa.String(40), nullable=False),
        sa.Column("who", sa.String(400), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("made_at", sa.String(40), nullable=False),
    )
    op.create_table(
        "tuner_sentinels",
        *_common(),
        sa.Column("night", _UUID, nullable=False),
        sa.Column("process", sa.Integer(), nullable=False),
        sa.Column("problem", _NUMBER, sa.ForeignKey("tuner_problems.number"), nullable=False),
        sa.Column("device", _NUMBER, sa.ForeignKey("tuner_devices.number"), nullable=False),
        sa.Column("regime", sa.String(40), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("measured_at", sa.String(40), nullable=False),
    )
    op.create_index("tuner_sentinels_by_problem", "tuner_sentinels", ["problem", "regime", "measured_at"])
    op.create_table(
        "tuner_nights",
        *_common(),
        sa.Column("night", _UUID, nullable=False),
        sa.Column("event", sa.String(20), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.String(40), nullable=False),
    )


def _add_demand() -> None:
    op.create_table(
        "tuner_demand",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("operation", sa.String(200), nullable=False),
        sa.Column("shape", sa.String(1000), nullable=False),
        sa.Column("dtype", sa.String(100), nullable=False),
        sa.Column("layout", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("device", sa.String(400), nullable=False),
        sa.Column("match", sa.String(40), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("saves_s", sa.Double(), nullable=False),
        sa.Column("first_at", sa.String(40), nullable=False),
        sa.Column("last_at", sa.String(40), nullable=False),
        sa.UniqueConstraint(
            "operation", "shape", "dtype", "layout", "kind", "device", name="tuner_demand_once"
        ),
    )
    op.create_index("tuner_demand_by_saving", "tuner_demand", ["saves_s"])


def _add_claims() -> None:
    op.create_table(
        "tuner_claims",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("night", sa.String(40), nullable=False),
        sa.Column("study", sa.String(1000), nullable=False),
        sa.Column("what", sa.String(20), nullable=False),
        sa.Column("worker", sa.String(400), nullable=False),
        sa.Column("device", sa.String(400), nullable=False),
        sa.Column("board", sa.String(200), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.String(40), nullable=False),
        sa.Column("progressed_at", sa.String(40), nullable=False),
        sa.Column("ended_at", sa.String(40), nullable=False),
    )
    op.create_index("tuner_claims_by_study", "tuner_claims", ["study", "state"])
    op.create_index("tuner_claims_by_night", "tuner_claims", ["night"])


def _add_models() -> None:
    op.create_table(
        "tuner_models",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("operation", sa.String(200), nullable=False),
        sa.Column("device", sa.String(400), nullable=False),
        sa.Column("regime", sa.String(40), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("fitted_at", sa.String(40), nullable=False),
    )
    op.create_index("tuner_models_by_operation", "tuner_models", ["operation", "regime", "device"])


def _add_service() -> None:
    op.create_table(
        "tuner_snapshots",
        _number(),
        _text("made_at", 40),
        _text("positions"),
        _text("published", 64),
        _text("code", 200),
    )
    op.create_table(
        "tuner_tokens",
        _number(),
        _text("name", 100, unique=True),
        _text("digest", 64, unique=True),
        _text("scopes", 200),
        *(_text(name, 40) for name in ("created_at", "expires_at", "revoked_at", "used_at")),
    )
    op.create_table(
        "tuner_allowed_files",
        _number(),
        _text("node", 200),
        _text("path", 1000),
        _text("digest", 64),
        _text("covers"),
        _text("allowed_at", 40),
        sa.UniqueConstraint("node", "path", name="tuner_allowed_files_once"),
    )
    op.create_table(
        "tuner_jobs",
        _number(),
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False, unique=True),
        _text("same", 64, unique=True),
        _text("node", 200),
        _text("submitter", 100),
        sa.Column("priority", sa.Integer(), nullable=False),
        _text("deadline", 40),
        _text("device", 400),
        _text("asked"),
        _text("state", 20),
        *(_text(name) for name in ("why", "process", "progress", "report")),
        sa.Column("starts", sa.Integer(), nullable=False),
        *(_text(name, 40) for name in ("submitted_at", "started_at", "ended_at")),
    )
    op.create_index("tuner_jobs_by_state", "tuner_jobs", ["state", "number"])
    op.create_table(
        "tuner_job_events",
        _number(),
        sa.Column("job", _NUMBER, sa.ForeignKey("tuner_jobs.number"), nullable=False),
        _text("kind", 20),
        _text("said"),
        _text("at", 40),
    )
    op.create_index("tuner_job_events_by_job", "tuner_job_events", ["job", "number"])


def _common() -> list[sa.Column[Any]]:
    """Columns that each of the tables has."""
    return [
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", _UUID, nullable=False, unique=True),
        sa.Column("checksum", sa.BigInteger(), nullable=True),
    ]


def _number() -> sa.Column[int]:
    return sa.Column("number", _NUMBER, primary_key=True, autoincrement=True)


def _text(name: str, length: int | None = None, *, unique: bool = False) -> sa.Column[str]:
    kind = sa.String(length) if length else sa.Text()
    return sa.Column(name, kind, nullable=False, unique=unique)
