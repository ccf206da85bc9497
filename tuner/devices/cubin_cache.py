"""Cubins on disk, so that no source is compiled twice for one architecture by one compiler.

Its size is bounded; the least recently used entries are dropped first. Any number of processes can share it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import sqlite3
from dataclasses import asdict
from typing import Any

from tuner.declare.kernel import Rendered
from tuner.devices.cache_folder import cache_root, cache_trouble
from tuner.devices.protocol import Binary
from tuner.results.measurement import CompileReport

#: Largest total size in bytes, enough for some twenty thousand cubins.
LIMIT_BYTES = 1 << 30


class CubinCache:
    """Rendered kernel, architecture and compiler -> `Binary`."""

    def __init__(self) -> None:
        """Opens the cache, or makes it if it does not exist.

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
        """Returns the binary stored for the same source, options, architecture and compiler, or None."""
        found = self._cache.get(_key(rendered, architecture, compiler))
        if not isinstance(found, bytes):
            return None
        report, _, code = found.partition(b"\n")
        return Binary(code, CompileReport(**json.loads(report)))

    def put(self, rendered: Rendered, architecture: str, compiler: str, binary: Binary) -> None:
        """Stores a binary. If the disk is full, it is compiled again next time."""
        # The cache stores bytes unchanged; it would pickle anything else.
        value = json.dumps(asdict(binary.report)).encode() + b"\n" + binary.code
        with contextlib.suppress(OSError, sqlite3.Error):
            self._cache.set(_key(rendered, architecture, compiler), value)

    def close(self) -> None:
        """Closes the cache's files."""
        self._cache.close()


def _key(rendered: Rendered, architecture: str, compiler: str) -> str:
    return hashlib.sha256("\0".join((rendered.hash, architecture, compiler)).encode()).hexdigest()
