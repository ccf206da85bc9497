"""Where the project's own files are: inside an installed package, else beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def _folder(name: str) -> Path:
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def kernels_folder() -> Path:
    """The built-in kernels."""
    return _folder("kernels")


def configs_folder() -> Path:
    """Plans, and published results in ``tuned``."""
    return _folder("configs")


def in_checkout() -> bool:
    """False where the package is installed with its results inside: those are not for users to write."""
    return not (_PACKAGE / "configs").is_dir() and (_PACKAGE.parent / "configs").is_dir()
