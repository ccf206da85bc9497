"""Snapshots, tokens, allowed files, and jobs with their events."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds their tables."""
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


def _number() -> sa.Column[int]:
    return sa.Column("number", _NUMBER, primary_key=True, autoincrement=True)


def _text(name: str, length: int | None = None, *, unique: bool = False) -> sa.Column[str]:
    kind = sa.String(length) if length else sa.Text()
    return sa.Column(name, kind, nullable=False, unique=unique)
