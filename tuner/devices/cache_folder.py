"""The folder of this machine's user where caches lie."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import platformdirs

from tuner.errors import EnvironmentTrouble

#: Bytes that are written to see whether any can be: what a rendered kernel and its machine code take.
PROBE_BYTES = 1 << 18


def cache_root() -> Path:
    """Where caches lie; ``TUNER_CACHE`` moves them."""
    return Path(os.environ.get("TUNER_CACHE") or platformdirs.user_cache_dir("tile-tuner"))


def check_cache() -> Path:
    """Makes the folder of the caches, and finds out before any work that it cannot be written.

    Returns:
        The folder.

    Raises:
        EnvironmentTrouble: It cannot be made or written; the message says what to do.
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
    """What is said where the caches cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some room there, or set" if full else "set"
    return EnvironmentTrouble(
        f"compiled kernels are kept in {cache_root()}, which cannot be written ({error.strerror or error}); "
        f"{remedy} TUNER_CACHE to a folder that can be"
    )
