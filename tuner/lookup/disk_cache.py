"""Answers about known problems, kept on disk from one process to the next under a hash of all they rest on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from tuner.devices.cache_folder import cache_root
from tuner.lookup.matrix import Matrix
from tuner.version import __version__

#: Files kept at the most; those not written for longest go first.
KEPT = 100
#: Changes whenever the same records would be answered otherwise.
METHOD = 4


def _file(matrix: Matrix, what: str) -> Path:
    digest = hashlib.sha256(f"{__version__} {METHOD} {what} {matrix.subject}".encode())
    for place in matrix.places:
        digest.update(f"{place.problem} {place.device} {place.champion} {place.speedup}".encode())
    for kernel, config in matrix.columns:
        digest.update(f"{kernel} {config}".encode())
    for declared in matrix.kernels.values():
        digest.update(f"{declared.name} {declared.source_hash}".encode())
    known = ~np.isnan(matrix.slower)
    digest.update(np.packbits(known).tobytes() + matrix.slower[known].tobytes() + matrix.library.tobytes())
    return cache_root() / "lookup" / f"{digest.hexdigest()[:32]}.json"


def recall(matrix: Matrix, what: str) -> Any:
    """What was remembered of exactly this matrix; None where nothing was."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(_file(matrix, what).read_text(encoding="utf-8"))
    return None


def remember(matrix: Matrix, what: str, data: Any) -> None:
    """Keeps JSON data; a disk that cannot be written is no trouble."""
    path = _file(matrix, what)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(data), encoding="utf-8")
        fresh.replace(path)
        files = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime_ns)
        for old in files[:-KEPT]:
            old.unlink()
