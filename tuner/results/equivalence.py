"""Source hashes that stand for the same machine code, so that records outlive edits without effect.

``kernels/equivalent_sources.toml`` has a table for each kernel: an older hash and the hash that replaced it. A
pair is entered only with proof (``scripts/equivalents``): for the published configs and for random ones, the
rendered sources have the same tokens and launch, or compile to the same machine code. The table is applied
whenever a record is read, so records that arrive later profit too.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping

from tuner.declare.folders import kernels_folder

FILE = "equivalent_sources.toml"


@functools.cache
def _successors() -> Mapping[str, str]:
    """Older hash -> the hash that replaced it; empty if there is no table."""
    path = kernels_folder() / FILE
    if not path.is_file():
        return {}
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {old: new for table in tables.values() for old, new in table.items()}


@functools.cache
def latest_hash(source_hash: str) -> str:
    """Returns the hash of a kernel's source today if it is proven equivalent, else the hash itself."""
    seen = {source_hash}
    while (after := _successors().get(source_hash)) is not None and after not in seen:
        seen.add(after)
        source_hash = after
    return source_hash


@functools.cache
def equivalent_hashes(source_hash: str) -> tuple[str, ...]:
    """Returns all hashes that stored records of this source may have, including its own."""
    latest = latest_hash(source_hash)
    older = {each for each in _successors() if latest_hash(each) == latest}
    return tuple(sorted({source_hash, latest, *older}))
