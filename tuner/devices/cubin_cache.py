"""Cubins on disk, so that no source is compiled twice for one architecture by one compiler.

Bounded in size; what was not used for longest goes first. Any number of processes share it.
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

#: Bytes of cubins kept at the most: some twenty thousand.
LIMIT_BYTES = 1 << 30


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
