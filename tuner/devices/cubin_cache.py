"""Cubins on disk, so that no source is compiled twice for one architecture by one compiler.

Bounded in size; what was not used for longest goes first. Any number of processes share it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import sqlite3
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tuner.declare.kernel import Rendered
from tuner.devices.cache_folder import cache_root
from tuner.devices.protocol import Binary
from tuner.errors import EnvironmentTrouble
from tuner.results.measurement import CompileReport

#: Bytes of cubins kept at the most: some twenty thousand.
LIMIT_BYTES = 1 << 30
#: Bytes that are written to see whether any can be: what a rendered kernel and its machine code take.
PROBE_BYTES = 1 << 18


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


class CubinCache:
    """Rendered kernel, architecture and compiler -> `Binary`."""

    def __init__(self) -> None:
        """Makes the cache, or takes up the one that is there.

        Raises:
            EnvironmentTrouble: Its folder cannot be written.
        """
        import diskcache

        try:
            self._cache: Any = diskcache.Cache(
                str(cache_root() / "cubins"), size_limit=LIMIT_BYTES, eviction_policy="least-recently-used"
            )
        except OSError as error:
            raise cache_trouble(error) from error
        except sqlite3.Error as error:
            raise cache_trouble(OSError(errno.EIO, str(error))) from error

    def get(self, rendered: Rendered, architecture: str, compiler: str) -> Binary | None:
        """What was put for the same source, options, architecture and compiler; else None."""
        found = self._cache.get(_key(rendered, architecture, compiler))
        if not isinstance(found, bytes):
            return None
        report, _, code = found.partition(b"\n")
        return Binary(code, CompileReport(**json.loads(report)))

    def put(self, rendered: Rendered, architecture: str, compiler: str, binary: Binary) -> None:
        """Keeps a binary; on a full disk it is compiled anew next time."""
        # Bytes, which the cache stores as they are: it would pickle anything else.
        value = json.dumps(asdict(binary.report)).encode() + b"\n" + binary.code
        with contextlib.suppress(OSError, sqlite3.Error):
            self._cache.set(_key(rendered, architecture, compiler), value)

    def close(self) -> None:
        """Closes the cache's files."""
        self._cache.close()


def _key(rendered: Rendered, architecture: str, compiler: str) -> str:
    return hashlib.sha256("\0".join((rendered.hash, architecture, compiler)).encode()).hexdigest()
