"""Answers from the records, as JSON and as exported files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuner.errors import NothingFound

if TYPE_CHECKING:
    from tuner.declare.catalogue import Catalogue
    from tuner.declare.problem import Problem
    from tuner.lookup import Answer

#: Formats of an export.
FORMATS = ("source", "binary", "python", "json")


def answered(
    catalogue: Catalogue, problem: Problem, device: str, regime: str, kernel: str, db: str, confirmed: bool
) -> Answer:
    """The answer from the records of a database, as they are now.

    Raises:
        NothingFound: No config is legal.
    """
    from tuner.lookup import answer
    from tuner.lookup.asking import opened, parse_device, parse_key

    where = parse_device(device)
    store = opened(db)
    try:
        return answer(store, parse_key(problem), where, regime, kernel or None, catalogue, confirmed=confirmed)
    finally:
        if store is not None:
            store.close()


@dataclass(frozen=True)
class ExportedFile:
    """A file of an export.

    Attributes:
        name: Its name.
        data: Its content.
    """

    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        """Digest of the content, hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


def exported(found: Answer, catalogue: Catalogue, problem: Problem, form: str) -> list[ExportedFile]:
    """The files of an export, the main one first.

    Args:
        found: What a lookup answered.
        catalogue: Kernels as they are now.
        problem: What was asked.
        form: One of `FORMATS`.

    Raises:
        NothingFound: The answer was not measured for this problem.
        UnknownName: There is no such format, or the kernel is no longer declared.
        InputError: The format does not suit the kernel.
        EnvironmentTrouble: A binary needs a compiler that is not installed.
    """
    from tuner.export import contents
    from tuner.lookup import tune_command

    assert found.question is not None, "an answer has its question"
    if found.match != "exact":
        command = tune_command(found.question, str(problem.operation.origin or ""))
        raise NothingFound(
            f"an export is of a config that was measured for its problem, {found.question} is not tuned; the "
            f"{found.match} answer would be {found.kernel}. Run `{command}`"
        )
    declared = catalogue.of(problem.operation.name, found.question.device.kind, (found.kernel,))[0]
    return [ExportedFile(name, data) for name, data in contents(found, declared, problem, form).items()]


def told_as_json(data: Any) -> str:
    """Compact JSON; what it has no words for, NaN and infinities, is null."""
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(finite(data), separators=(",", ":"))


def finite(data: Any) -> Any:
    """The same data with null for every number that is not finite."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    return [finite(value) for value in data] if isinstance(data, list | tuple) else data
