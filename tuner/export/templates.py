"""How the templates of exported texts, which lie beside this file, write sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuner.declare import folders
from tuner.declare.launch import MAP_TYPES, PROMOTIONS, SWIZZLES, UNASKED_SHARED_BYTES
from tuner.export.symbolic import in_c, in_python


def must_be_asked(shared_bytes: Any) -> bool:
    """Whether a launch needs leave for so much dynamic shared memory, or may, as it follows from the dims."""
    return not isinstance(shared_bytes, int) or shared_bytes > UNASKED_SHARED_BYTES


def filled(template: Path, filters: Mapping[str, Callable[[Any], Any]], **values: Any) -> str:
    """`tuner.declare.folders.filled` with filters for sizes, and the tables of tensor maps."""
    sizes = {"c": in_c, "py": in_python, "must_be_asked": must_be_asked}
    tables = {"data_types": MAP_TYPES, "swizzles": SWIZZLES, "promotions": PROMOTIONS}
    return folders.filled(template, {**sizes, **filters}, **tables, **values)
