"""The exception tree of the package.

    TunerError                      exit code
    |-- NothingFound                1    no record, no legal config
    |-- InputError                  2    an invalid request
    |   |-- UnknownName                  an operation, kernel, device, dtype, layout or dim
    |   |-- PlanError                    a plan that cannot be read
    |   `-- DeclarationError             a wrong declaration of a kernel or operation
    |-- EnvironmentTrouble          3    the machine cannot fulfil the request
    |   |-- DeviceTrouble                no GPU, no driver, an unwell device
    |   |-- StoreTrouble                 the database cannot be used
    |   `-- LockedByAnother              another process works on the same database and device
    `-- Interrupted                 130  Ctrl-C or SIGTERM; every finished trial is kept

A message states the rule, the value received and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TunerError(Exception):
    """Base of every error that the package raises on purpose.

    Attributes:
        exit_code: Exit code of the command line.
    """

    exit_code = 1


class NothingFound(TunerError):
    """No record answers the question, or no config is legal."""

    exit_code = 1


class InputError(TunerError):
    """The request is invalid."""

    exit_code = 2


class UnknownName(InputError):
    """A name that is not among the known ones; the message lists the nearest."""

    def __init__(self, what: str, got: str, known: Iterable[str]) -> None:
        names = sorted(set(known))
        nearest = difflib.get_close_matches(got, names, n=3, cutoff=0.5)
        if not names:
            hint = f"no {what} is known here"
        elif nearest:
            hint = f"did you mean {', '.join(nearest)}? Known: {', '.join(names)}"
        else:
            hint = f"choose one of: {', '.join(names)}"
        super().__init__(f"unknown {what} {got!r}; {hint}")


class PlanError(InputError):
    """A plan that cannot be read; the message names file, line and key.

    Attributes:
        line: Line of the mistake, from 1; 0 where the file itself is the matter.
        key: Path of the key, such as ``problems.0.shape``; empty where there is none.
    """

    def __init__(self, message: str, line: int = 0, key: str = "") -> None:
        super().__init__(message)
        self.line, self.key = line, key


class DeclarationError(InputError):
    """A kernel or an operation that is declared wrongly."""


class EnvironmentTrouble(TunerError):
    """The machine cannot fulfil the request."""

    exit_code = 3


class DeviceTrouble(EnvironmentTrouble):
    """No such device, no driver, or a device that stays unwell."""


class StoreTrouble(EnvironmentTrouble):
    """The database cannot be opened, read or written."""


class LockedByAnother(EnvironmentTrouble):
    """Another process works on the same database and device."""


class Interrupted(TunerError):
    """The user or the system asked to stop; every finished trial is kept.

    Attributes:
        twice: True if it was asked for again while the first request was followed.
    """

    exit_code = 130

    def __init__(self, message: str, twice: bool = False) -> None:
        super().__init__(message)
        self.twice = twice
