"""Locates the project's own files, inside an installed package or beside it; fills templates; writes files."""

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent.parent


def _folder(name: str) -> Path:
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def kernels_folder() -> Path:
    """Folder of the built-in kernels."""
    return _folder("kernels")


def configs_folder() -> Path:
    """Folder of the plans, and of the published results in ``tuned``."""
    return _folder("configs")


def in_checkout() -> bool:
    """False if the package is installed with its results inside, which users must not write."""
    return not (_PACKAGE / "configs").is_dir() and (_PACKAGE.parent / "configs").is_dir()


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, whoever else writes it, in a folder that is made if it is missing.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def filled(template: Path, filters: Mapping[str, Callable[..., Any]], **values: Any) -> str:
    """The text that a template makes.

    Its variables look like ``${name}``, since C and Python have braces of their own.

    Args:
        template: The file.
        filters: How it writes things, beside ``repr``.
        values: What it names.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template.parent), variable_start_string="${", variable_end_string="}",
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined,
        autoescape=template.suffix == ".html",
    )  # fmt: skip
    environment.filters |= {"repr": repr, **filters}
    return environment.get_template(template.name).render(values)
