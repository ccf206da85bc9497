"""The current user's folder for caches."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import platformdirs

from tuner.errors import EnvironmentTrouble

#: Bytes written to test whether the folder is writable: the size of a rendered kernel with its machine code.
PROBE_BYTES = 1 << 18


def cache_root() -> Path:
    """Returns the folder of the caches; ``TUNER_CACHE`` changes it."""
    return Path(os.environ.get("TUNER_CACHE") or platformdirs.user_cache_dir("tile-tuner"))


def check_cache() -> Path:
    """Makes the folder of the caches, and fails before any work if it cannot be written.

    Returns:
        The folder.

    Raises:
        EnvironmentTrouble: It cannot be made or written; the message gives the remedy.
    """
    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
    except OSError as error:
        raise cache_trouble(error) from error
    return root


def cache_trouble(error: OSError) -> EnvironmentTrouble:
    """Returns the error for caches that cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some room there, or set" if full else "set"
    return EnvironmentTrouble(
        f"compiled kernels are kept in {cache_root()}, which cannot be written ({error.strerror or error}); "
        f"{remedy} TUNER_CACHE to a folder that can be"
    )
