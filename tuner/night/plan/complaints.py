"""Error messages for plans, which name file, line and key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import PlanError, UnknownName
from tuner.night.plan.toml_lines import KeyPath, line_of

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


@dataclass(frozen=True)
class Complaints:
    """Makes the errors of one plan.

    Attributes:
        shown: The plan's path as the user gave it.
        lines: Lines of its keys.
    """

    shown: Path
    lines: dict[KeyPath, int]

    def about(self, at: KeyPath, message: object) -> PlanError:
        """Makes an error at a key, or at the table around it if the key is missing."""
        line = line_of(self.lines, at)
        return PlanError(f"{self.shown}:{line}: {message}", line, ".".join(str(part) for part in at))

    def first_of(self, error: ValidationError) -> PlanError:
        """Returns the first of pydantic's complaints, by line, in our words."""
        complaints = error.errors(include_url=False)
        first = min(complaints, key=lambda each: line_of(self.lines, each["loc"]))
        at, got = first["loc"], first["input"]
        model, depth = _table_of(at)
        if len(at) <= depth:
            return self.about(at, f"{at[0]} holds tables, [[{at[0]}]], got {got!r}; write it so")
        name = str(at[depth])
        if first["type"] == "extra_forbidden":
            return self.about(at, UnknownName("key", name, model.model_fields))
        rule = model.model_fields[name].description
        return self.about(at, f"{name} is {rule}, got {got!r}; correct it")


def _table_of(at: KeyPath) -> tuple[type[BaseModel], int]:
    """Returns the table that a complaint concerns, and the part of its path that is the key."""
    from tuner.night.plan.schema import DefaultsTable, PlanTable, ProblemTable, SurveyTable

    if at[0] == "problems" and len(at) > 1:
        return ProblemTable, 2
    if at[0] == "surveys" and len(at) > 1:
        return SurveyTable, 2
    if at[0] == "defaults" and len(at) > 1:
        return DefaultsTable, 1
    return PlanTable, 0
