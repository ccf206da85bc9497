"""Parts of surveys."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds their table."""
    op.create_table(
        "tuner_surveys",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False, unique=True),
        sa.Column("device", _NUMBER, sa.ForeignKey("tuner_devices.number"), nullable=False),
        sa.Column("run", _NUMBER, sa.ForeignKey("tuner_runs.number"), nullable=False),
        sa.Column("operation", sa.String(200), nullable=False),
        sa.Column("regime", sa.String(40), nullable=False),
        sa.Column("timings", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("measured_at", sa.String(40), nullable=False),
        sa.Column("checksum", sa.BigInteger(), nullable=True),
    )
    op.create_index("tuner_surveys_by_operation", "tuner_surveys", ["operation", "regime", "device"])
