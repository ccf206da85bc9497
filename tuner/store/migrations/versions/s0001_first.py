"""The first schema. Written out in full: a migration does not follow later changes of the tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _number() -> sa.Column[int]:
    return sa.Column("number", _NUMBER, primary_key=True, autoincrement=True)


def _text(name: str, length: int | None = None, *, optional: bool = False, **more: Any) -> sa.Column[str]:
    kind = sa.String(length) if length else sa.Text()
    return sa.Column(name, kind, nullable=optional, **more)


def _refers(name: str, table: str, *, optional: bool = False) -> sa.Column[int]:
    return sa.Column(name, _NUMBER, sa.ForeignKey(f"{table}.number"), nullable=optional)


def _what_records_share() -> None:
    op.create_table(
        "tuner_schema_history",
        _text("version", 32, primary_key=True),
        _text("tuner_version", 64),
        _text("migrated_at", 40),
    )
    op.create_table(
        "tuner_problems",
        _number(),
        _text("operation", 200),
        _text("shape", 1000),
        _text("dtype", 40),
        _text("layout", 40),
        sa.UniqueConstraint("operation", "shape", "dtype", "layout", name="tuner_problems_once"),
    )
    op.create_table(
        "tuner_devices",
        _number(),
        _text("digest", 64, unique=True),
        _text("kind", 40),
        _text("name", 400),
        _text("uuid", 200),
        _text("info"),
    )
    op.create_index("tuner_devices_by_name", "tuner_devices", ["kind", "name"])
    op.create_table(
        "tuner_kernels",
        _number(),
        _text("name", 200),
        _text("source_hash", 64),
        _text("origin", 1000),
        sa.UniqueConstraint("name", "source_hash", "origin", name="tuner_kernels_once"),
    )
    op.create_table(
        "tuner_runs",
        _number(),
        _text("digest", 64, unique=True),
        _text("study", 1000),
        _text("session", 200),
        _text("versions"),
    )
    op.create_index("ix_tuner_runs_study", "tuner_runs", ["study"])
    op.create_index("ix_tuner_runs_session", "tuner_runs", ["session"])


def _records() -> None:
    op.create_table(
        "tuner_records",
        _number(),
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False, unique=True),
        _refers("problem", "tuner_problems"),
        _refers("device", "tuner_devices"),
        _refers("kernel", "tuner_kernels"),
        _refers("run", "tuner_runs"),
        _text("regime", 40),
        _text("role", 20),
        _text("outcome", 20),
        sa.Column("time_s", sa.Double(), nullable=True),
        _text("config"),
        sa.Column("samples", sa.LargeBinary(), nullable=False),
        _text("work"),
        _text("error", optional=True),
        _text("compiled", optional=True),
        _text("stages"),
        _text("circumstances"),
        _text("reason"),
        _text("measured_at", 40),
    )
    op.create_index("tuner_records_by_run", "tuner_records", ["run"])
    op.create_index("tuner_records_by_time", "tuner_records", ["problem", "regime", "device", "time_s"])


def _champions() -> None:
    op.create_table(
        "tuner_champions",
        _number(),
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False, unique=True),
        _refers("record", "tuner_records"),
        _refers("baseline", "tuner_records", optional=True),
        _refers("problem", "tuner_problems"),
        _refers("device", "tuner_devices"),
        _text("regime", 40),
        sa.Column("speedup", sa.Double(), nullable=False),
        _text("verdict", 40),
        _text("trials"),
        _text("crowned_at", 40),
    )
    op.create_index("tuner_champions_by_problem", "tuner_champions", ["problem", "regime", "crowned_at"])


def upgrade() -> None:
    """Creates every table."""
    _what_records_share()
    _records()
    _champions()
