"""Schema of a plan's tables, which pydantic checks; loaded only when a plan is read.

Each field's description completes the sentence "KEY is ..." in error messages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tuner.declare import catalogue
from tuner.declare.problem import Operation, Problem
from tuner.errors import InputError, PlanError, UnknownName
from tuner.night.plan.items import KeyPath, SurveyItem

Size = Annotated[int, Field(ge=1)]
Sizes = Annotated[list[Size], Field(min_length=1)]
Names = Annotated[list[str], Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: TOML's inf means no limit, for a problem whose plan has one.
ErrorLimit = Annotated[float, Field(ge=1)]
Regime = Literal["cold", "hot", "cold-graph", "hot-graph"]

_NAMES = "a list of one or more names"
_REGIME = "cold, hot, cold-graph or hot-graph"
_OBJECTIVE = 'objectives such as "time,energy", or a list of them'
_ERROR_LIMIT = "a number of 1 or more, times the library's error, or inf for no limit"
_SECONDS = "a number of seconds above 0"
_PRECISION = "ieee or emulated"
_EPILOGUE = "parts of an epilogue joined by +, such as bias-col+gelu; none for none"
_TRIALS = "a whole number of 1 or more"


class DefaultsTable(BaseModel):
    """Defaults for problems that do not override them; device and sampler apply to all."""

    model_config = ConfigDict(extra="forbid", strict=True)

    device: str = Field(default="", min_length=1, description="a device such as cpu or cuda:0")
    devices: Names | None = Field(default=None, description=_NAMES)
    regime: Regime | None = Field(default=None, description=_REGIME)
    dtype: str | None = Field(default=None, description="the name of a dtype")
    layout: str | None = Field(default=None, description="the name of a layout")
    precision: str | None = Field(default=None, description=_PRECISION)
    epilogue: str | None = Field(default=None, description=_EPILOGUE)
    kernels: Names | None = Field(default=None, description=_NAMES)
    sampler: str = Field(default="tile", min_length=1, description="the name of a sampler")
    objective: str | Names | None = Field(default=None, description=_OBJECTIVE)
    error_limit: ErrorLimit | None = Field(default=None, description=_ERROR_LIMIT)
    seconds: Seconds | None = Field(default=None, description=_SECONDS)
    trials: Size | None = Field(default=None, description=_TRIALS)


class ProblemTable(BaseModel):
    """One [[problems]] table. The operation's dims may be keys too; `reading` checks those."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, Any]

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
    dtype: str | None = Field(default=None, description="the name of a dtype")
    dtypes: Names | None = Field(default=None, description=_NAMES)
    layout: str | None = Field(default=None, description="the name of a layout")
    layouts: Names | None = Field(default=None, description=_NAMES)
    precision: str | None = Field(default=None, description=_PRECISION)
    precisions: Names | None = Field(default=None, description=_NAMES)
    epilogue: str | None = Field(default=None, description=_EPILOGUE)
    epilogues: Names | None = Field(default=None, description=_NAMES)
    regime: Regime | None = Field(default=None, description=_REGIME)
    kernels: Names | None = Field(default=None, description=_NAMES)
    devices: Names | None = Field(default=None, description=_NAMES)
    objective: str | Names | None = Field(default=None, description=_OBJECTIVE)
    error_limit: ErrorLimit | None = Field(default=None, description=_ERROR_LIMIT)
    seconds: Seconds | None = Field(default=None, description=_SECONDS)
    trials: Size | None = Field(default=None, description=_TRIALS)


class SurveyTable(BaseModel):
    """One [[surveys]] table."""

    model_config = ConfigDict(extra="forbid", strict=True)

    operation: str = Field(description="the name of an operation")
    file: str | None = Field(default=None, min_length=1, description="the path of a kernel file")
    seconds: Seconds = Field(default=600.0, description=_SECONDS)
    shapes: str | None = Field(default=None, min_length=1, description="the path of a plan")
    drawn: bool = Field(default=True, description="true or false")
    most: dict[str, Size] = Field(
        default_factory=dict, description="a table of dims, each a whole number of 1 or more"
    )
    layouts: Names | None = Field(default=None, description=_NAMES)
    dtype: str | None = Field(default=None, description="the name of a dtype")
    kernels: Names | None = Field(default=None, description=_NAMES)
    regime: Regime | None = Field(default=None, description=_REGIME)
    configs: Size | None = Field(default=None, description=_TRIALS)
    per_problem: Size | None = Field(default=None, description=_TRIALS)
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="a whole number of 0 or more")


class WatchTable(BaseModel):
    """The [watch] table: what a night times before it tunes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    problems: Annotated[int, Field(ge=0)] = Field(default=60, description="a whole number of 0 or more")
    seconds: Seconds = Field(default=0.8, description=_SECONDS)
    rollback: Literal["report", "automatic"] = Field(default="report", description="report or automatic")


class PlanTable(BaseModel):
    """A whole plan."""

    model_config = ConfigDict(extra="forbid", strict=True)

    until: str | None = Field(
        default=None,
        pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$",
        description='a time of day as "HH:MM", 00:00 to 23:59',
    )
    seconds: Seconds | None = Field(default=None, description=_SECONDS)
    wanted: Annotated[int, Field(ge=0)] = Field(default=0, description="a whole number of 0 or more")
    defaults: DefaultsTable = Field(default=DefaultsTable(), description="a table: [defaults]")
    problems: list[ProblemTable] = Field(default_factory=list, description="one or more tables: [[problems]]")
    watch: WatchTable = Field(default=WatchTable(), description="a table: [watch]")
    surveys: list[SurveyTable] = Field(default_factory=list, description="one or more tables: [[surveys]]")


#: Makes the error that tells a mistake with its line.
Complain = Callable[[KeyPath, object], PlanError]
#: Gives the problems of a plan that are of an operation.
Listed = Callable[[Path, Operation], tuple[Problem, ...]]


class SurveyReader:
    """Checks [[surveys]] tables."""

    def __init__(self, path: Path, complain: Complain, listed: Listed, regime: str) -> None:
        """Takes what they share.

        Args:
            path: The plan.
            complain: Makes errors.
            listed: Reads the problems of another plan.
            regime: Of surveys that name none; empty for what is usual on the device.
        """
        self._path, self._complain, self._listed, self._regime = path, complain, listed, regime

    def item(self, at: KeyPath, table: SurveyTable) -> SurveyItem:
        """A survey.

        Raises:
            PlanError: It names what there is not.
        """
        try:
            known = catalogue.from_file(self._beside(table.file)) if table.file else catalogue.builtin()
            operation = known.operation(table.operation)
        except InputError as error:
            raise self._complain((*at, "operation"), f"operation: {error}") from None
        try:
            known.of(operation.name, only=tuple(table.kernels or ()))
        except InputError as error:
            raise self._complain((*at, "kernels"), error) from None
        self._check(at, "layouts", table.layouts or (), operation.layouts)
        self._check(at, "dtype", [table.dtype] if table.dtype else (), operation.dtypes)
        self._check(at, "most", table.most, operation.dims)
        problems = self._problems(at, table, operation)
        if not table.drawn and not problems:
            raise self._complain(
                (*at, "drawn"), "drawn = false goes with shapes, got none; name a plan in shapes"
            )
        return SurveyItem(
            operation, known, table.seconds, table.regime or self._regime, problems, table.drawn, table.most,
            tuple(table.layouts or ()), table.dtype or "", tuple(table.kernels or ()), table.configs,
            table.per_problem, table.seed,
        )  # fmt: skip

    def _beside(self, path: str) -> Path:
        """A path that counts from the plan's folder."""
        return (self._path.parent / Path(path).expanduser()).resolve()

    def _check(self, at: KeyPath, key: str, names: object, known: tuple[str, ...]) -> None:
        for name in list(names):  # type: ignore[call-overload]
            if name not in known:
                raise self._complain((*at, key), UnknownName(key, name, known))

    def _problems(self, at: KeyPath, table: SurveyTable, operation: Operation) -> tuple[Problem, ...]:
        if table.shapes is None:
            return ()
        try:
            return self._listed(self._beside(table.shapes), operation)
        except InputError as error:
            raise self._complain((*at, "shapes"), f"shapes: {error}") from None
