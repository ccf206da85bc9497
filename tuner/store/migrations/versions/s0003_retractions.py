"""Retractions; and what records share is kept twice."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from tuner.store.rows import SHARED, checksum

revision = "0003"
down_revision = "0002"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
#: Rows copied at a time.
_AT_ONCE = 500
#: Kind of row -> table, and its columns in the order in which they are said.
_SHARED = {
    "problem": ("tuner_problems", ("operation", "shape", "dtype", "layout")),
    "device": ("tuner_devices", ("digest", "kind", "name", "uuid", "info")),
    "kernel": ("tuner_kernels", ("name", "source_hash", "origin")),
    "run": ("tuner_runs", ("digest", "study", "session", "versions")),
}


def _copied(kind: str, row: Any, names: tuple[str, ...]) -> dict[str, Any]:
    said = json.dumps([row[name] for name in names], separators=(",", ":"))
    told = {"kind": kind, "of": row["number"], "said": said}
    return told | {"checksum": checksum(told, SHARED)}


def upgrade() -> None:
    """Adds both tables, and copies what there is."""
    op.create_table(
        "tuner_retractions",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False, unique=True),
        sa.Column("of", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("made_at", sa.String(40), nullable=False),
        sa.Column("checksum", sa.BigInteger(), nullable=True),
    )
    op.create_index("ix_tuner_retractions_of", "tuner_retractions", ["of"])
    shared = op.create_table(
        "tuner_shared",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("of", _NUMBER, nullable=False),
        sa.Column("said", sa.Text(), nullable=False),
        sa.Column("checksum", sa.BigInteger(), nullable=True),
        sa.UniqueConstraint("kind", "of", name="tuner_shared_once"),
    )
    for kind, (table, names) in _SHARED.items():
        select = sa.text(f"SELECT * FROM {table} WHERE number > :last ORDER BY number LIMIT :many")
        last = 0
        while found := op.get_bind().execute(select, {"last": last, "many": _AT_ONCE}).mappings().all():
            op.get_bind().execute(shared.insert(), [_copied(kind, row, names) for row in found])
            last = found[-1]["number"]
