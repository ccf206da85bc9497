"""A device by words, with its limits, as records tell them."""

from __future__ import annotations

from tuner.declare.hardware import DeviceInfo
from tuner.lookup.asking import opened, parse_device
from tuner.lookup.device_similarity import known_device
from tuner.lookup.legality import completed
from tuner.lookup.snapshot import Snapshot


def device_in_full(words: str, db: str = "") -> DeviceInfo:
    """A device of this machine or of the records, with what is missing of its limits filled in.

    Args:
        words: ``cpu``, ``cuda:0``, or a name such as ``NVIDIA H200``.
        db: URL of the database, as for `tuner.best`.

    Raises:
        UnknownName: There is no record of a device of that name.
        DeviceTrouble: There is no such device here.
        StoreTrouble: The database cannot be used.
    """
    store = opened(db)
    try:
        known, where = Snapshot.open(store).devices(), parse_device(words)
        return completed(known_device(where, known) if isinstance(where, str) else where, known)
    finally:
        if store is not None:
            store.close()
