"""Models of times, fitted to surveys."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds their table."""
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
