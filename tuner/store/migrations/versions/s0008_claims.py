"""Claims: which worker of a fleet works on which study."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds their table."""
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
