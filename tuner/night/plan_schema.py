"""Schema of a plan's tables, which pydantic checks; loaded only when a plan is read.

Each field's description completes the sentence "KEY is ..." in error messages.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Size = Annotated[int, Field(ge=1)]
Sizes = Annotated[list[Size], Field(min_length=1)]
Names = Annotated[list[str], Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Clock = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
Regime = Literal["cold", "hot", "cold-graph", "hot-graph"]

_CLOCK = 'a time of day as "HH:MM", 00:00 to 23:59'
_NAMES = "a list of one or more names"
_REGIME = "cold, hot, cold-graph or hot-graph"
_SECONDS = "a number of seconds above 0"
_COUNT = "a whole number of 1 or more"
_COUNT_OR_NONE = "a whole number of 0 or more"
_OBJECTIVE = 'objectives such as "time,energy", or a list of them'
_EPILOGUE = "parts of an epilogue joined by +, such as bias-col+gelu; none for none"


class StrictTable(BaseModel):
    """A table that has no other keys than its own."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SharedKeys(StrictTable):
    """What a problem may have, and defaults for those that do not."""

    devices: Names | None = Field(default=None, description=_NAMES)
    regime: Regime | None = Field(default=None, description=_REGIME)
    dtype: str | None = Field(default=None, description="the name of a dtype")
    layout: str | None = Field(default=None, description="the name of a layout")
    precision: str | None = Field(default=None, description="ieee or emulated")
    epilogue: str | None = Field(default=None, description=_EPILOGUE)
    kernels: Names | None = Field(default=None, description=_NAMES)
    objective: str | Names | None = Field(default=None, description=_OBJECTIVE)
    # TOML's inf means no limit, for a problem whose plan has one.
    error_limit: Annotated[float, Field(ge=1)] | None = Field(
        default=None, description="a number of 1 or more, times the library's error, or inf for no limit"
    )
    bits: str | None = Field(default=None, description="keep, library, any or the name of a class of bits")
    invariant: str | None = Field(default=None, description="a dim such as m, that changes no row's bits")
    seconds: Seconds | None = Field(default=None, description=_SECONDS)
    trials: Size | None = Field(default=None, description=_COUNT)


class DefaultsTable(SharedKeys):
    """[defaults]: for problems that do not override them; device and sampler apply to all."""

    device: str = Field(default="", min_length=1, description="a device such as cpu or cuda:0")
    sampler: str = Field(default="tile", min_length=1, description="the name of a sampler")


class ProblemTable(SharedKeys):
    """One [[problems]] table. The operation's dims may be keys too; `tuner.night.plan` checks those."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, Size | Sizes]

    operation: str | None = Field(default=None, description="the name of an operation")
    file: str | None = Field(default=None, min_length=1, description="the path of a kernel file")
    shape: Sizes | None = Field(default=None, description="a list of one whole number of 1 or more per dim")
    shapes: Annotated[list[Sizes], Field(min_length=1)] | None = Field(
        default=None, description="a list of shapes, each a list of one whole number of 1 or more per dim"
    )
    squares: Sizes | None = Field(default=None, description="a list of whole numbers of 1 or more")
    set: dict[str, Size | Sizes] | None = Field(
        default=None, description="a table of dims, each a whole number of 1 or more or a list of them"
    )
    dtypes: Names | None = Field(default=None, description=_NAMES)
    layouts: Names | None = Field(default=None, description=_NAMES)
    precisions: Names | None = Field(default=None, description=_NAMES)
    epilogues: Names | None = Field(default=None, description=_NAMES)

    def over(self, defaults: DefaultsTable) -> ProblemTable:
        """The table with the defaults for what it leaves out."""
        own = self.model_fields_set
        left_out = [name for name in SharedKeys.model_fields if not own & {name, f"{name}s"}]
        return self.model_copy(update={name: getattr(defaults, name) for name in left_out})


class SurveyTable(StrictTable):
    """One [[surveys]] table."""

    operation: str = Field(description="the name of an operation")
    file: str | None = Field(default=None, min_length=1, description="the path of a kernel file")
    seconds: Seconds = Field(default=600.0, description=_SECONDS)
    shapes: str | None = Field(default=None, min_length=1, description="the path of a plan")
    drawn: bool = Field(default=True, description="true or false")
    most: dict[str, Size] = Field(
        default_factory=dict, description="a table of dims, each a whole number of 1 or more"
    )
    layouts: Names = Field(default=[], description=_NAMES)
    dtype: str = Field(default="", description="the name of a dtype")
    kernels: Names = Field(default=[], description=_NAMES)
    regime: Regime | None = Field(default=None, description=_REGIME)
    configs: Size | None = Field(default=None, description=_COUNT)
    per_problem: Size | None = Field(default=None, description=_COUNT)
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description=_COUNT_OR_NONE)


class WatchTable(StrictTable):
    """The [watch] table: what a night times before it tunes."""

    problems: Annotated[int, Field(ge=0)] = Field(default=60, description=_COUNT_OR_NONE)
    seconds: Seconds = Field(default=0.8, description=_SECONDS)
    rollback: Literal["report", "automatic"] = Field(default="report", description="report or automatic")


class PlanTable(StrictTable):
    """A whole plan; `tuner.night.plan` checks each of its tables by the schema of its own."""

    since: Clock | None = Field(default=None, alias="from", description=_CLOCK)
    until: Clock | None = Field(default=None, description=_CLOCK)
    seconds: Seconds | None = Field(default=None, description=_SECONDS)
    wanted: Annotated[int, Field(ge=0)] = Field(default=0, description=_COUNT_OR_NONE)
    defaults: dict[str, Any] = Field(default={}, description="a table: [defaults]")
    problems: list[dict[str, Any]] = Field(default=[], description="one or more tables: [[problems]]")
    watch: dict[str, Any] = Field(default={}, description="a table: [watch]")
    surveys: list[dict[str, Any]] = Field(default=[], description="one or more tables: [[surveys]]")
