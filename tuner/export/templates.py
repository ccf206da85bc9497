"""Templates of exported texts, which lie beside this file, and how they write sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tuner.declare.launch import MAP_TYPES, PROMOTIONS, SWIZZLES, UNASKED_SHARED_BYTES
from tuner.export.symbolic import in_c, in_python


def must_be_asked(shared_bytes: Any) -> bool:
    """Whether a launch needs leave for so much dynamic shared memory, or may, as it follows from the dims."""
    return not isinstance(shared_bytes, int) or shared_bytes > UNASKED_SHARED_BYTES


def filled(template: Path, filters: Mapping[str, Callable[[Any], Any]], **values: Any) -> str:
    """The text that a template makes.

    Its variables look like ``${name}``, since C and Python have braces of their own.

    Args:
        template: The file.
        filters: How it writes things, beside sizes in C and Python.
        values: What it names.
    """
    environment = Environment(
        loader=FileSystemLoader(template.parent), variable_start_string="${", variable_end_string="}",
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined,
        autoescape=False,
    )  # fmt: skip
    environment.filters |= {"c": in_c, "py": in_python, "repr": repr, "must_be_asked": must_be_asked, **filters}
    environment.globals |= {"data_types": MAP_TYPES, "swizzles": SWIZZLES, "promotions": PROMOTIONS}
    return environment.get_template(template.name).render(values)
