"""Defaults of a user: ``tuner.toml`` in the folder, else in the user's config folder."""

import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from tuner.errors import EnvironmentTrouble, InputError

#: Name of the file.
NAME = "tuner.toml"
#: Environment variable that names another folder for the user's own.
FOLDER_VARIABLE = "TUNER_CONFIG"


@dataclass(frozen=True)
class Setting:
    """A value of a file.

    Attributes:
        value: The value.
        file: Where it stands.
    """

    value: Any
    file: Path


def files() -> list[Path]:
    """The files that may hold settings; an earlier one goes before a later one."""
    own = os.environ.get(FOLDER_VARIABLE) or platformdirs.user_config_dir("tile-tuner")
    return [Path.cwd() / NAME, Path(own) / NAME]


def read() -> dict[tuple[str, str], Setting]:
    """Command and option -> its value; the command is empty for what holds for all.

    Raises:
        InputError: A file cannot be read, or is not TOML.
    """
    settings: dict[tuple[str, str], Setting] = {}
    for file in filter(Path.is_file, reversed(files())):
        for name, value in _parsed(file).items():
            if isinstance(value, Mapping):
                settings |= {(name, option): Setting(own, file) for option, own in value.items()}
            else:
                settings["", name] = Setting(value, file)
    return settings


def setting(option: str, command: str = "") -> Any:
    """A value that some file sets; None where none does."""
    settings = read()
    own = settings.get((command, option)) or settings.get(("", option))
    return own.value if own is not None else None


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"{file} holds defaults as TOML, it cannot be read: {error}; correct or remove it"
        ) from None


#: Bytes written to test whether the folder is writable: the size of a rendered kernel with its machine code.
PROBE_BYTES = 1 << 18


def cache_root() -> Path:
    """Returns the folder of the caches; ``TUNER_CACHE`` changes it."""
    return Path(os.environ.get("TUNER_CACHE") or platformdirs.user_cache_dir("tile-tuner"))


def check_cache() -> Path:
    """Makes the folder of the caches, and fails before any work if it cannot be written.

    Returns:
        The folder.

    Raises:
        EnvironmentTrouble: It cannot be made or written; the message gives the remedy.
    """
    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
    except OSError as error:
        raise cache_trouble(error) from error
    return root


def cache_trouble(error: Exception) -> EnvironmentTrouble:
    """Returns the error for caches that cannot be written."""
    return EnvironmentTrouble(
        f"compiled kernels are kept in {cache_root()}, which cannot be written "
        f"({getattr(error, 'strerror', None) or error}); free some room there, or set TUNER_CACHE to a "
        "folder that can be"
    )
