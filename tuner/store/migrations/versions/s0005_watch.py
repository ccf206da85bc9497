"""The crown log, sentinels and nights."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_UUID = sa.Uuid(as_uuid=False)


def _common() -> list[sa.Column[Any]]:
    """Columns that each of the tables has."""
    return [
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", _UUID, nullable=False, unique=True),
        sa.Column("checksum", sa.BigInteger(), nullable=True),
    ]


def upgrade() -> None:
    """Adds their tables."""
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
