"""Checksums; a champion's pairs; the database's own UUID; devices by when they were last measured on."""

import uuid
from typing import Any

import sqlalchemy as sa
from alembic import op

from tuner.store.rows import CHAMPION, RECORD, checksum

revision = "0002"
down_revision = "0001"

#: Rows summed at a time.
_AT_ONCE = 500

_RECORDS = """
    SELECT r.number, r.id, r.regime, r.role, r.outcome, r.time_s, r.config, r.samples, r.work, r.error,
           r.compiled, r.stages, r.circumstances, r.reason, r.measured_at, p.operation, p.shape, p.dtype,
           p.layout,
           d.info, k.name AS kernel_name, k.source_hash, k.origin, u.study, u.session, u.versions
    FROM tuner_records r JOIN tuner_problems p ON p.number = r.problem
         JOIN tuner_devices d ON d.number = r.device
         JOIN tuner_kernels k ON k.number = r.kernel JOIN tuner_runs u ON u.number = r.run
    WHERE r.number > :last ORDER BY r.number LIMIT :many
"""
_CHAMPIONS = """
    SELECT c.number, c.id, c.regime, c.speedup, c.verdict, c.trials, c.pairs, c.crowned_at,
           r.id AS record_id, b.id AS baseline_id
    FROM tuner_champions c JOIN tuner_records r ON r.number = c.record
         LEFT JOIN tuner_records b ON b.number = c.baseline
    WHERE c.number > :last ORDER BY c.number LIMIT :many
"""


def _sum_up(table: str, select: str, names: tuple[str, ...]) -> None:
    connection = op.get_bind()
    update = sa.text(f"UPDATE {table} SET checksum = :checksum WHERE number = :number")
    last = 0
    while found := connection.execute(sa.text(select), {"last": last, "many": _AT_ONCE}).mappings().all():
        connection.execute(
            update, [{"number": row["number"], "checksum": checksum(_spelt(row), names)} for row in found]
        )
        last = found[-1]["number"]


def _spelt(row: Any) -> dict[str, Any]:
    """The row with its UUIDs spelt with dashes, as the sums have them; SQLite keeps them without."""
    ids = {name: str(uuid.UUID(str(row[name]))) for name in ("id", "record_id", "baseline_id") if row.get(name)}
    return dict(row) | ids


def upgrade() -> None:
    """Adds what is new and sums up what is there."""
    op.create_table("tuner_identity", sa.Column("id", sa.Uuid(as_uuid=False), primary_key=True))
    identity = sa.table("tuner_identity", sa.column("id", sa.Uuid(as_uuid=False)))
    op.get_bind().execute(identity.insert().values(id=str(uuid.uuid4())))
    op.create_index("tuner_records_by_device", "tuner_records", ["device", "measured_at"])
    op.add_column("tuner_champions", sa.Column("pairs", sa.Text(), nullable=True))
    for table, select, names in (
        ("tuner_records", _RECORDS, RECORD),
        ("tuner_champions", _CHAMPIONS, CHAMPION),
    ):
        op.add_column(table, sa.Column("checksum", sa.BigInteger(), nullable=True))
        _sum_up(table, select, names)
