"""Locks: one process for each device, and one for each database and device.

Two processes that measure on one device spoil each other's figures, whatever their databases;
`tuner.devices.device_lock` prevents this. Two processes that write one study would run its trials twice, on
whatever machines.
"""

import contextlib
import errno
import hashlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice
from tuner.devices.device_lock import device_lock, holder_of, take_locks
from tuner.errors import EnvironmentTrouble, LockedByAnother
from tuner.store.opening import parsed, sqlite_file


@contextlib.contextmanager
def database_lock(url: str, device: DeviceInfo, what: str) -> Iterator[None]:
    """Holds a device for one database, by a file beside it (see `tuner.devices.device_lock`).

    Args:
        url: Database; of one on a server the file is in the folder for temporary files.
        device: Device, by uuid if it has one.
        what: What the holder does, in words: ``tune gemm 1024 x 1024 x 1024``.

    Raises:
        LockedByAnother: Another process has it; the message names it.
        EnvironmentTrouble: The lock file cannot be written.
    """
    path = lock_file(url, device)
    try:
        locks, blocked = take_locks([path], what)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = f"{error.strerror}); {'free some room there' if full else 'make its folder writable'}"
        raise EnvironmentTrouble(
            f"a lock file must be written beside the database, and {path} cannot be ({why}"
        ) from error
    if blocked is not None:
        raise LockedByAnother(
            f"one process at a time works with a database and a device, and {holder_of(path)} works with "
            f"{device.name} ({path.name}); wait for it, or stop it"
        )
    with locks:
        yield


@contextlib.contextmanager
def occupied(url: str, devices: Sequence[DetectedDevice], what: str) -> Iterator[None]:
    """Holds several devices, for one database and for this machine.

    Raises:
        LockedByAnother: Another process has one of them; the message names it.
        EnvironmentTrouble: A lock file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        # Always in the same order, so that two processes that need the same locks do not deadlock.
        for device in sorted(devices, key=lambda device: device.info.uuid):
            stack.enter_context(database_lock(url, device.info, what))
            stack.enter_context(device_lock(device.info, what))
        yield


def lock_file(url: str, device: DeviceInfo) -> Path:
    """Returns the lock file of a database and device."""
    board = device.uuid or device.name
    digest = hashlib.sha256(f"{device.kind} {board}".encode()).hexdigest()[:8]
    readable = re.sub(r"[^a-z0-9]+", "-", f"{device.kind} {device.name}".lower()).strip("-")[:40]
    file = sqlite_file(parsed(url))
    elsewhere = Path(tempfile.gettempdir()) / f"tile-tuner-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    database = file.resolve() if file is not None else elsewhere
    return database.with_name(f"{database.name}.{readable}-{digest}.lock")
