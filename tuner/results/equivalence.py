"""Which source hashes stand for the same machine code, so that records outlive a change that changes nothing.

``kernels/equivalent_sources.toml`` has a table for each kernel: an older hash and the one that took its place.
A pair is entered only with proof (``scripts/equivalents``): for published and for drawn configs the rendered
sources have the same tokens and launch, or compile to the same machine code. The table is applied whenever a
record is read, so records that arrive later profit too.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping

from tuner.declare.folders import kernels_folder

FILE = "equivalent_sources.toml"


@functools.cache
def _successors() -> Mapping[str, str]:
    """Older hash -> the hash that took its place; empty without the table."""
    path = kernels_folder() / FILE
    if not path.is_file():
        return {}
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {old: new for table in tables.values() for old, new in table.items()}


@functools.cache
def latest_hash(source_hash: str) -> str:
    """The hash that a kernel's source has today if it is proven equivalent; else the same hash."""
    seen = {source_hash}
    while (after := _successors().get(source_hash)) is not None and after not in seen:
        seen.add(after)
        source_hash = after
    return source_hash


@functools.cache
def equivalent_hashes(source_hash: str) -> tuple[str, ...]:
    """All hashes that stored records of this source may have, itself included."""
    latest = latest_hash(source_hash)
    older = {each for each in _successors() if latest_hash(each) == latest}
    return tuple(sorted({source_hash, latest, *older}))
