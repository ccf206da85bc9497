"""What tells a stored row that still says what it said from one whose bytes have changed on the disk.

A sum covers the row and what it refers to, as stored: text, bytes and numbers, not what they mean, so that a
later version that reads more into them finds the same sum. What is written here holds for rows that are there
already: it does not change; other columns need a migration that sums anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

#: Columns of a record joined with its problem, device, kernel and run.
RECORD = (
    "id", "regime", "role", "outcome", "time_s", "config", "samples", "work", "error", "compiled", "stages",
    "circumstances", "reason", "measured_at", "operation", "shape", "dtype", "layout", "info", "kernel_name",
    "source_hash", "origin", "study", "session", "versions",
)  # fmt: skip
#: Columns of a champion, with the ids of the records that it names.
CHAMPION = (
    "id", "regime", "speedup", "verdict", "trials", "pairs", "crowned_at", "record_id", "baseline_id",
)  # fmt: skip
#: Columns of a part of a survey joined with its device and run.
SURVEY = (
    "id", "operation", "regime", "timings", "data", "measured_at", "info", "study", "session", "versions",
)  # fmt: skip
#: Columns of a retraction, and of what is kept twice.
RETRACTION = ("id", "of", "reason", "made_at")
#: Columns of an entry of the crown log, joined with its problem.
CROWN = (
    "id", "act", "operation", "shape", "dtype", "layout", "kind", "device", "regime", "champion", "who", "why",
    "made_at",
)  # fmt: skip
#: Columns of a sentinel and of an event of a night.
SENTINEL = ("id", "night", "process", "regime", "data", "measured_at")
NIGHT = ("id", "night", "event", "data", "at")
SHARED = ("kind", "of", "said")


def checksum(row: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The sum of a row's columns: 64 bits, signed, as a database holds them."""
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        value = row[name]
        if value is None:
            digest.update(b"-")
            continue
        told = value if isinstance(value, bytes) else _text(value).encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(told))
        digest.update(told)
    return int.from_bytes(digest.digest(), "little", signed=True)


def _text(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float | int) else str(value)
