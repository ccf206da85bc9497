"""Fitted models in the database: of each name, device and regime the latest counts, earlier ones for snapshots.

A model's name is its operation's, which a dtype other than the operation's first one follows.

A model is made of what surveys stored, and can be made again: it is neither exported nor copied beside the
database.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tuner.results.record import utc_now
from tuner.store import tables

if TYPE_CHECKING:
    from tuner.store import Store
    from tuner.store.reading import Reader

#: A model unpacks to at most so many bytes: a damaged row must not fill the memory.
MOST_BYTES = 1 << 24


def add(store: Store, operation: str, device: str, regime: str, text: bytes) -> None:
    """Stores a model, which counts in place of the one before it.

    Args:
        store: Where.
        operation: Its name.
        device: Name of the device.
        regime: How the times that it predicts were taken.
        text: The model (`tuner.model.stored`).

    Raises:
        StoreTrouble: The database cannot be written.
    """
    row = {
        "operation": operation, "device": device, "regime": regime, "data": zlib.compress(text),
        "fitted_at": utc_now(),
    }  # fmt: skip
    with store.writing() as connection:
        connection.execute(tables.models.insert().values(**row))


def latest(store: Reader, operation: str, regime: str) -> dict[str, tuple[str, bytes]]:
    """Models of a name by the device's name: when each was stored (ISO 8601, UTC), and its text.

    One that is damaged is left out: it can be fitted again.
    """
    of = tables.models.c
    last = sa.select(sa.func.max(of.number)).where(of.operation == operation, of.regime == regime)
    wanted = sa.select(of.device, of.fitted_at, of.data).where(of.number.in_(last.group_by(of.device)))
    found: dict[str, tuple[str, bytes]] = {}
    with store.reading() as connection:
        for device, fitted_at, data in connection.execute(wanted):
            try:
                found[device] = fitted_at, zlib.decompressobj().decompress(data, MOST_BYTES)
            except zlib.error:
                continue
    return found
