"""Extras: packages beside the core that add commands, and implementations of what the core leaves open.

An extra is a package of `tuner` with a module `extra.py`, whose `EXTRA` says what it adds. The core finds it
there and names none: a package that is taken away takes its commands along, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import Any

from tuner.errors import EnvironmentTrouble


@dataclass(frozen=True)
class Command:
    """A command of the command line, loaded when it is called.

    Attributes:
        at: Its implementation, as "module:name".
        help: One line for `tuner --help`.
        heading: The heading under which it is listed.
    """

    at: str
    help: str
    heading: str


@dataclass(frozen=True)
class Extra:
    """What a package adds to the core.

    Attributes:
        commands: Name -> command.
        provides: Extension point -> its implementation, as "module:name" or "module". Whoever has the
            extension point says in its docstring what an implementation must be.
    """

    commands: Mapping[str, Command] = field(default_factory=dict)
    provides: Mapping[str, str] = field(default_factory=dict)


def remedy(extra: str = "") -> str:
    """How a missing library is installed: from the checkout, for tile-tuner is in no package index.

    Args:
        extra: The extra of ``pyproject.toml`` that has it, if that is known.
    """
    by_hand = f", or `pip install '.[{extra}]'` does there" if extra else ""
    return f"`scripts/tuner` of the checkout installs what a command needs{by_hand}"


def load(at: str) -> Any:
    """Loads what "module:name" names, or "module"."""
    module, _, name = at.partition(":")
    loaded = import_module(module)
    return getattr(loaded, name) if name else loaded


@cache
def extras() -> tuple[Extra, ...]:
    """All extras that are there, in the order of their names. Loading them loads none of their libraries."""
    # By path: to import a package could load a library that is not installed, as that of `tuner.torch` does.
    return tuple(run_path(str(path))["EXTRA"] for path in sorted(Path(__file__).parent.glob("*/extra.py")))


@cache
def provided(point: str) -> tuple[Any, ...]:
    """Loads the implementations of an extension point; none where no extra has one."""
    return tuple(load(extra.provides[point]) for extra in extras() if point in extra.provides)


def required(point: str) -> Any:
    """Loads the one implementation of an extension point.

    Raises:
        EnvironmentTrouble: No extra has one.
    """
    implementations = provided(point)
    if not implementations:
        raise EnvironmentTrouble(f"no package of tuner provides {point}; install tile-tuner as a whole")
    return implementations[0]
