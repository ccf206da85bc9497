"""Locks: one process for each device, and one for each database and device.

Two processes that measure on one device spoil each other's figures, whatever their databases;
`tuner.devices.device_lock` prevents this. Two processes that write one study would run its trials twice, on
whatever machines.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice
from tuner.devices.device_lock import device_lock
from tuner.errors import EnvironmentTrouble, LockedByAnother
from tuner.results.record import utc_now


class Occupancy:
    """Holds a device for one database, as a context manager.

    The lock is the operating system's on a file beside the database (in the folder for temporary files for
    a database on a server), so it ends with its process in any case. The holder's name is written beside it;
    that text may outlive its writer and is trusted only while the lock is held. Child processes must not
    inherit the lock; start them by spawn, not by fork.
    """

    def __init__(self, url: str, device: DeviceInfo, what: str) -> None:
        """Names the lock, without touching any file.

        Args:
            url: Database.
            device: Device, by uuid if it has one.
            what: What the holder does, in words: ``tune gemm 1024 x 1024 x 1024``.
        """
        self._path = lock_file(url, device)
        self._holder = self._path.with_suffix(".json")
        self._device = device.name
        self._what = what
        self._lock: Any = None

    def __enter__(self) -> Occupancy:
        """Takes the lock.

        Raises:
            LockedByAnother: Another process has it; the message names it.
            EnvironmentTrouble: The lock file cannot be written.
        """
        import filelock

        lock = filelock.FileLock(self._path, thread_local=False)
        try:
            lock.acquire(timeout=0)
            told = {"pid": os.getpid(), "host": socket.gethostname(), "since": utc_now(), "what": self._what}
            self._holder.write_text(json.dumps(told), encoding="utf-8")
        except filelock.Timeout:
            raise LockedByAnother(
                f"one process at a time works with a database and a device, and {self._who()} works with "
                f"{self._device} ({self._path.name}); wait for it, or stop it"
            ) from None
        except OSError as error:
            lock.release(force=True)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise EnvironmentTrouble(
                f"a lock file must be written beside the database, and {self._path} cannot be "
                f"({error.strerror or error}); {'free some room there' if full else 'make its folder writable'}"
            ) from error
        self._lock = lock
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases the lock."""
        with contextlib.suppress(OSError):
            self._holder.unlink(missing_ok=True)
        self._lock.release()

    def _who(self) -> str:
        try:
            told = json.loads(self._holder.read_text(encoding="utf-8"))
            return f"process {told['pid']} on {told['host']} ({told['what']}, since {told['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"


@contextlib.contextmanager
def occupied(url: str, devices: Sequence[DetectedDevice], what: str) -> Iterator[None]:
    """Holds several devices, for one database and for this machine.

    Raises:
        LockedByAnother: Another process has one of them; the message names it.
        EnvironmentTrouble: A lock file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        # Always in the same order, so that two processes that need the same locks do not deadlock.
        for device in sorted(devices, key=lambda each: each.info.uuid):
            stack.enter_context(Occupancy(url, device.info, what))
            stack.enter_context(device_lock(device.info, what))
        yield


def lock_file(url: str, device: DeviceInfo) -> Path:
    """Returns the lock file of a database and device."""
    board = device.uuid or device.name
    digest = hashlib.sha256(f"{device.kind} {board}".encode()).hexdigest()[:8]
    readable = re.sub(r"[^a-z0-9]+", "-", f"{device.kind} {device.name}".lower()).strip("-")[:40]
    file = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", url)
    if file and file[1] != ":memory:":
        database = Path(file[1].removeprefix("file:")).resolve()
    else:
        database = Path(tempfile.gettempdir()) / f"tile-tuner-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    return database.with_name(f"{database.name}.{readable}-{digest}.lock")
