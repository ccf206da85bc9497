"""Defaults of a user: ``tuner.toml`` in the folder, else in the user's config folder."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from tuner.errors import InputError

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
    found: dict[tuple[str, str], Setting] = {}
    for file in reversed(files()):
        if not file.is_file():
            continue
        for name, value in _parsed(file).items():
            if isinstance(value, Mapping):
                found |= {(name, option): Setting(each, file) for option, each in value.items()}
            else:
                found["", name] = Setting(value, file)
    return found


def setting(option: str, command: str = "") -> Any:
    """A value that some file sets; None where none does."""
    known = read()
    told = known.get((command, option)) or known.get(("", option))
    return told.value if told is not None else None


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"{file} holds defaults as TOML, it cannot be read: {error}; correct or remove it"
        ) from None
