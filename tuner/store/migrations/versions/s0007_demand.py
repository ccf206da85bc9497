"""What was asked and had no exact answer."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds its table."""
    op.create_table(
        "tuner_demand",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("operation", sa.String(200), nullable=False),
        sa.Column("shape", sa.String(1000), nullable=False),
        sa.Column("dtype", sa.String(40), nullable=False),
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
