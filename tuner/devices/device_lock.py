"""A lock on each device: only one process at a time measures on it, whatever its database and user.

The lock is the operating system's (flock) on a file that every user can open, so it ends with its process in
any case. The holder's name is written into the file and trusted only while the lock is held. The file itself
stays: if it were removed, two processes could hold locks on two files of one name. Child processes must not
inherit the lock; start them by spawn, not by fork.

A GPU or MIG instance has one lock. A CPU has one for each last-level cache: processes confined to cores behind
different caches (`taskset`, cpusets) may measure side by side; others would share cache and memory channels.
"""

import contextlib
import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import kind_of
from tuner.errors import EnvironmentTrouble, LockedByAnother

#: Sets the folder of the locks. All processes that share a device must use the same one.
VARIABLE = "TUNER_LOCKS"
#: Default folders of the locks: the first one that every user may write to, whoever the current user is.
SHARED_FOLDERS = (Path("/run/lock"), Path("/var/lock"), Path("/tmp"))
#: Seconds between two attempts to take a lock.
RETRY_S = 0.2


@contextlib.contextmanager
def device_lock(info: DeviceInfo, what: str, wait_s: float = 0.0) -> Iterator[None]:
    """Holds a device for this process, as a context manager.

    Args:
        info: The device; for a CPU, the cores that this process may use.
        what: What this process does, in words: ``tune gemm 1024 x 1024 x 1024``.
        wait_s: Seconds to wait while another holds it; infinite to wait without limit.

    Raises:
        LockedByAnother: Another process holds it; the message names process, user and time.
        EnvironmentTrouble: The lock file cannot be used.
    """
    paths, deadline_s = lock_files(info), time.monotonic() + wait_s
    locks, blocked = _take_all(paths, what)
    while blocked is not None:
        if time.monotonic() >= deadline_s:
            raise LockedByAnother(
                f"one process at a time times on a device, whatever its database, and {holder_of(blocked)} "
                f"works with {info.name} ({blocked}); wait for it, or stop it"
            )
        time.sleep(RETRY_S)
        locks, blocked = _take_all(paths, what)
    with locks:
        yield


def device_holder(info: DeviceInfo) -> str:
    """Describes the process that holds a device now; empty if there is none.

    Raises:
        EnvironmentTrouble: The lock file cannot be used.
    """
    locks, blocked = _take_all([path for path in lock_files(info) if path.exists()])
    locks.close()
    return "" if blocked is None else holder_of(blocked)


def lock_files(info: DeviceInfo) -> list[Path]:
    """Returns the lock files of a device, in the order in which they are locked.

    Raises:
        EnvironmentTrouble: There is no folder for them.
    """
    folder = lock_folder()
    return [folder / f"tile-tuner-{name}.lock" for name in kind_of(info.kind).lock_names(info)]


def lock_folder() -> Path:
    """Returns the folder of the locks.

    Raises:
        EnvironmentTrouble: There is no folder that every user of the machine may write to.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        try:
            Path(chosen).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentTrouble(
                f"{VARIABLE} names the folder of device locks, and {chosen} cannot be made ({error}); choose "
                "another"
            ) from error
        return Path(chosen)
    for folder in SHARED_FOLDERS:
        with contextlib.suppress(OSError):
            # Everyone may make files there, and no one may remove those of others.
            is_shared = folder.is_dir() and folder.stat().st_mode & 0o1007 == 0o1007
            if is_shared and not os.statvfs(folder).f_flag & os.ST_RDONLY:
                return folder
    raise EnvironmentTrouble(
        "a device is locked by a file in a folder that every user may write to, and none of "
        f"{', '.join(map(str, SHARED_FOLDERS))} is one; "
        f"set {VARIABLE} to a folder that is the same for all who use the device"
    )


def _take_all(paths: Iterable[Path], what: str = "") -> tuple[contextlib.ExitStack, Path | None]:
    """`take_locks` of a device."""
    try:
        return take_locks(paths, what)
    except OSError as error:
        raise EnvironmentTrouble(
            f"a device is locked by a file that this process can open, and {error.filename} is not ({error}); "
            f"make it readable, or set {VARIABLE} to a folder that is the same for all users"
        ) from error


def take_locks(paths: Iterable[Path], what: str = "") -> tuple[contextlib.ExitStack, Path | None]:
    """Takes all locks, which the stack holds, and signs them if this process says what it does.

    Or takes none and returns the one that another process holds.

    Raises:
        OSError: A lock file cannot be opened.
    """
    with contextlib.ExitStack() as locks:
        for path in paths:
            try:
                descriptor = _open(path)
                locks.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return contextlib.ExitStack(), path
            if what:
                _sign(descriptor, what)
        return locks.pop_all(), None


def _open(path: Path) -> int:
    """Opens a lock file; if it is missing, makes it for all users.

    Linux refuses O_CREAT for a file of another user in a folder like /tmp (fs.protected_regular), so an
    existing file is opened without it. A read-only file can be locked, too.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(descriptor, 0o666)  # whatever the umask takes away
        return descriptor
    try:
        return os.open(path, flags | os.O_RDWR)
    except PermissionError:
        return os.open(path, flags | os.O_RDONLY)


def _sign(descriptor: int, what: str) -> None:
    """Writes the holder into the lock file, unless the file is read-only."""
    holder = {
        "pid": os.getpid(), "user": user_name(), "host": socket.gethostname(), "what": what,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def user_name() -> str:
    """The name of this process's user; its number if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return str(os.getuid())


def holder_of(path: Path) -> str:
    """Returns the holder that the lock file names."""
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        who = f"process {holder['pid']} of user {holder['user']} on {holder['host']}"
        return f"{who} ({holder['what']}, since {holder['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
