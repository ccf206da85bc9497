"""Fitted models in the database: the latest of each name, device and regime.

A model's name is its operation's, which a dtype other than the operation's first one follows.

A model is made of what surveys stored, and can be made again: it is neither exported nor copied beside the
database.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from tuner.results.record import utc_now
from tuner.store import tables

if TYPE_CHECKING:
    from tuner.store import Store
    from tuner.store.reading import Reader

#: A model unpacks to at most so many bytes: a damaged row must not fill the memory.
MOST_BYTES = 1 << 24


def add(store: Store, operation: str, device: str, regime: str, text: bytes) -> None:
    """Stores a model in place of the one before it.

    Args:
        store: Where.
        operation: Its name.
        device: Name of the device.
        regime: How the times that it predicts were taken.
        text: The model (`tuner.model.stored`).

    Raises:
        StoreTrouble: The database cannot be written.
    """
    of = tables.models.c
    row = {
        "operation": operation, "device": device, "regime": regime, "data": zlib.compress(text),
        "fitted_at": utc_now(),
    }  # fmt: skip
    older = sa.and_(of.operation == operation, of.device == device, of.regime == regime)
    with store.writing() as connection:
        before = connection.execute(sa.select(of.number).where(older)).scalars().all()
        connection.execute(tables.models.insert().values(**row))
        connection.execute(tables.models.delete().where(of.number.in_(before)))


class StoredModel(NamedTuple):
    """A model as it is stored.

    Attributes:
        operation: Its name.
        device: Name of the device.
        regime: How the times that it predicts were taken.
        fitted_at: When it was stored; ISO 8601, UTC.
        text: The model.
    """

    operation: str
    device: str
    regime: str
    fitted_at: str
    text: bytes


def every(store: Reader) -> list[StoredModel]:
    """All models that are not damaged, in the order stored."""
    of = tables.models.c
    return _read(store, sa.select(of.operation, of.device, of.regime, of.fitted_at, of.data))


def _read(store: Reader, wanted: sa.Select[Any]) -> list[StoredModel]:
    found = []
    with store.reading() as connection:
        for *named, data in connection.execute(wanted.order_by(tables.models.c.number)):
            try:
                found.append(StoredModel._make((*named, zlib.decompressobj().decompress(data, MOST_BYTES))))
            except zlib.error:
                continue
    return found


def latest(store: Reader, operation: str, regime: str) -> dict[str, tuple[str, bytes]]:
    """Models of a name by the device's name: when each was stored (ISO 8601, UTC), and its text.

    One that is damaged is left out: it can be fitted again.
    """
    of = tables.models.c
    if store.kept_models is not None:
        found = [model for model in store.kept_models if (model.operation, model.regime) == (operation, regime)]
    else:
        wanted = sa.select(of.operation, of.device, of.regime, of.fitted_at, of.data)
        found = _read(store, wanted.where(of.operation == operation, of.regime == regime))
    return {model.device: (model.fitted_at, model.text) for model in found}
