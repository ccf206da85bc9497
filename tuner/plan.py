"""Plans: what a nightly run tunes, read from TOML and laid out as a flat list of problems.

until = "06:30"                     # stop at this time of day; also `seconds = 28800`, of the whole run
[defaults]                          # device, regime, dtype, layout, kernels, seconds, trials, sampler
seconds = 60
[[problems]]
operation = "gemm"
squares = [1024, 2048]              # or shape = [m, n, k], shapes = [[...], ...], or m, n and k by name,
layouts = ["nn", "nt"]              # each a number or a list: all that can be combined
[[problems]]
file = "my_kernel.py"               # a user's own; the path counts from the plan's folder
set = {n = [1000, 1000000]}
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner import catalogue
from tuner.catalogue import Catalogue
from tuner.errors import InputError, PlanError, UnknownName
from tuner.problem import Operation, Problem
from tuner.toml_lines import KeyPath, key_lines, line_of

if TYPE_CHECKING:
    from pydantic import ValidationError

    from tuner.plan_schema import DefaultsTable, PlanTable, ProblemTable

#: Seconds for a problem whose plan gives it neither seconds nor trials.
DEFAULT_SECONDS = 60.0
#: A grid of more problems than this is a slip of the pen: at a second each it takes more than a day.
MAX_PROBLEMS = 100_000
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True)
class PlanItem:
    """One problem to tune.

    Attributes:
        problem: What to compute: operation, shape, dtype, layout.
        file: The user's own file that declares it, absolute; None for a built-in operation.
        regime: How time is taken.
        kernels: Names of the kernels that compete; all where empty.
        seconds: Budget of its study in seconds; None without that limit.
        trials: Budget of its study in trials; None without that limit.
        catalogue: Where its kernels are found.
    """

    problem: Problem
    file: Path | None = None
    regime: str = "cold"
    kernels: tuple[str, ...] = ()
    seconds: float | None = DEFAULT_SECONDS
    trials: int | None = None
    catalogue: Catalogue = field(compare=False, repr=False, kw_only=True)

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two items the same work: all but the budgets."""
        problem = self.problem
        return (
            problem.operation.name, self.file, problem.shape, problem.dtype, problem.layout, self.regime,
            self.kernels,
        )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A plan as read.

    Attributes:
        path: Where it was read from, absolute.
        items: The problems in the plan's order, none twice.
        device: Device that all are tuned on; empty for the one that `tuner tune` would take.
        sampler: Name of the search strategy.
        until: Time of day to stop at, local; None without one.
        seconds: Budget of the whole run in seconds; None without one.
    """

    path: Path
    items: tuple[PlanItem, ...]
    device: str = ""
    sampler: str = "tile"
    until: time | None = None
    seconds: float | None = None


def clock_time(text: str) -> time:
    """Reads ``HH:MM``.

    Raises:
        InputError: It is no such time of day.
    """
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise InputError(f'a time of day is "HH:MM", 00:00 to 23:59, got {text!r}; give one such as 06:30')
    return time(int(match[1]), int(match[2]))


def seconds_until(clock: time, now: datetime) -> float:
    """Seconds from `now` (local, without time zone) to when the clock next shows that time."""
    then = datetime.combine(now.date(), clock)
    if then <= now:
        then += timedelta(days=1)
    # Through timestamps, so that a night in which the clocks are changed has its true length.
    return then.timestamp() - now.timestamp()


def read_plan(path: Path) -> Plan:
    """Reads and checks a plan.

    Args:
        path: A TOML file.

    Raises:
        PlanError: It cannot be read, or holds what it must not; the message names file, line and key.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PlanError(f"a plan is a TOML file, {path} cannot be read: {reason}; check the path") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(where[1]) if where else text.count("\n") + 1
        raise PlanError(f"{path}:{line}: a plan must be valid TOML: {error}; correct that line") from error
    return _Reader(path.resolve(), path, key_lines(text)).plan(document)


class _Reader:
    """Turns a parsed document into a plan; knows where its keys stand, for messages."""

    def __init__(self, path: Path, shown: Path, lines: dict[KeyPath, int]) -> None:
        self._path, self._shown, self._lines = path, shown, lines
        self._builtin: Catalogue | None = None

    def plan(self, document: Mapping[str, Any]) -> Plan:
        """Checks the document and lays it out."""
        from pydantic import ValidationError

        from tuner.plan_schema import PlanTable

        if not document.get("problems"):
            raise self._error(("problems",), "a plan has one or more [[problems]] tables, got none; add one")
        try:
            table = PlanTable.model_validate(document)
        except ValidationError as error:
            raise self._first(error) from None
        self._check_sampler(table.defaults.sampler)
        found: dict[tuple[Any, ...], PlanItem] = {}
        for index, problem in enumerate(table.problems):
            for item in self._items(("problems", index), problem, table.defaults):
                found.setdefault(item.key, item)
                if len(found) > MAX_PROBLEMS:
                    raise self._too_many(("problems", index), len(found))
        return Plan(
            self._path, tuple(found.values()), table.defaults.device, table.defaults.sampler,
            clock_time(table.until) if table.until else None, table.seconds,
        )  # fmt: skip

    # --- messages --------------------------------------------------------------------------------

    def _error(self, at: KeyPath, message: str) -> PlanError:
        return PlanError(f"{self._shown}:{line_of(self._lines, at)}: {message}")

    def _too_many(self, at: KeyPath, count: int) -> PlanError:
        return self._error(
            at, f"a plan has at most {MAX_PROBLEMS} problems, got {count} or more; use fewer sizes"
        )

    def _first(self, error: ValidationError) -> PlanError:
        """The first of pydantic's complaints, by line, in our words."""
        complaints = error.errors(include_url=False)
        complaint = min(complaints, key=lambda each: line_of(self._lines, each["loc"]))
        at: KeyPath = complaint["loc"]
        model, depth = _model_at(at)
        if len(at) <= depth:
            got = complaint["input"]
            return self._error(at, f"{at[0]} holds tables ([[{at[0]}]]), got {got!r}; write one")
        name = str(at[depth])
        if complaint["type"] == "extra_forbidden":
            return self._error(at, str(UnknownName("key", name, model.model_fields)))
        rule = model.model_fields[name].description
        return self._error(at, f"{name} is {rule}, got {complaint['input']!r}; correct it")

    # --- problems --------------------------------------------------------------------------------

    def _items(self, at: KeyPath, table: ProblemTable, defaults: DefaultsTable) -> Iterator[PlanItem]:
        found, operation, file = self._operation(at, table)
        kernels = tuple(table.kernels or defaults.kernels or ())
        try:
            found.of(operation.name, only=kernels)
        except InputError as error:
            raise self._error((*at, "kernels"), f"kernels: {error}") from None
        dtypes = self._choices(at, table, "dtype", defaults.dtype)
        layouts = self._choices(at, table, "layout", defaults.layout)
        trials = table.trials or defaults.trials
        seconds = table.seconds or defaults.seconds or (None if trials else DEFAULT_SECONDS)
        regime = table.regime or defaults.regime or "cold"
        for way, shape in self._shapes(at, table, operation):
            for dtype, layout in itertools.product(dtypes, layouts):
                problem = self._problem((*at, way), operation, shape, dtype, layout)
                yield PlanItem(problem, file, regime, kernels, seconds, trials, catalogue=found)

    def _operation(self, at: KeyPath, table: ProblemTable) -> tuple[Catalogue, Operation, Path | None]:
        """Where a problem's kernels are, its operation, and the user's file if it names one."""
        if table.file is None and table.operation is None:
            raise self._error(
                at, "a problem names an operation or a kernel file, got neither; add operation = or file ="
            )
        try:
            if table.file is None:
                self._builtin = self._builtin or catalogue.builtin()
                return self._builtin, self._builtin.operation(str(table.operation)), None
            file = (self._path.parent / Path(table.file).expanduser()).resolve()
            found = catalogue.from_file(file)
            if table.operation is None and len(found.operations) != 1:
                raise InputError(
                    f"{table.file} declares kernels of a built-in operation; say which: operation ="
                )
            return found, found.operation(table.operation or next(iter(found.operations))), file
        except InputError as error:
            key = "operation" if table.file is None or isinstance(error, UnknownName) else "file"
            raise self._error((*at, key), f"{key}: {error}") from None

    def _choices(self, at: KeyPath, table: ProblemTable, key: str, default: str | None) -> list[str]:
        """The dtypes or layouts of a problem; an empty name stands for the operation's first."""
        one, several = getattr(table, key), getattr(table, f"{key}s")
        if one is not None and several is not None:
            raise self._error((*at, f"{key}s"), f"{key} and {key}s exclude each other, got both; keep one")
        return list(several) if several else [one or default or ""]

    def _shapes(
        self, at: KeyPath, table: ProblemTable, operation: Operation
    ) -> Iterator[tuple[str, dict[str, int]]]:
        """Yields the key that gives a shape, and the shape, by the one way that the problem uses."""
        by_name = self._sizes_by_name(at, table, operation)
        ways = [way for way in ("shape", "shapes", "squares", "set") if getattr(table, way) is not None]
        if by_name:
            ways.append(next(iter(by_name)))
        if len(ways) != 1:
            dims = ", ".join(operation.dims)
            raise self._error(
                (*at, *ways[1:2]),
                f"a problem gives its shape in one way: shape, shapes, squares, set or {dims} by name; got "
                f"{' and '.join(ways) or 'none'}; {'keep one' if ways else 'add one'}",
            )
        if table.squares is not None:
            yield from (("squares", dict.fromkeys(operation.dims, size)) for size in table.squares)
        elif table.set is None and not by_name:
            for sizes in table.shapes or [table.shape or []]:
                yield ways[0], self._named((*at, ways[0]), sizes, operation)
        else:
            grid = {
                name: sizes if isinstance(sizes, list) else [sizes]
                for name, sizes in (table.set or by_name).items()
            }
            count = math.prod(map(len, grid.values()))
            if count > MAX_PROBLEMS:
                raise self._too_many((*at, ways[0]), count)
            for values in itertools.product(*grid.values()):
                yield ways[0], dict(zip(grid, values, strict=True))

    def _sizes_by_name(
        self, at: KeyPath, table: ProblemTable, operation: Operation
    ) -> dict[str, int | list[int]]:
        """The sizes given with dims as keys; any other key that the schema does not know is a mistake."""
        for name, value in table.__pydantic_extra__.items():
            if name not in operation.dims:
                known = (*type(table).model_fields, *operation.dims)
                raise self._error((*at, name), str(UnknownName("key", name, known)))
            if not _is_sizes(value):
                rule = "a whole number of 1 or more, or a list of them"
                raise self._error((*at, name), f"{name} is {rule}, got {value!r}; correct it")
        return dict(table.__pydantic_extra__)

    def _named(self, at: KeyPath, sizes: Iterable[int], operation: Operation) -> dict[str, int]:
        sizes = list(sizes)
        if len(sizes) != len(operation.dims):
            dims = ", ".join(operation.dims)
            raise self._error(
                at,
                f"a shape of {operation.name} has {len(operation.dims)} sizes ({dims}), got {sizes}; correct it",
            )
        return dict(zip(operation.dims, sizes, strict=True))

    def _problem(
        self, at: KeyPath, operation: Operation, shape: Mapping[str, int], dtype: str, layout: str
    ) -> Problem:
        try:
            return operation.problem(shape, dtype, layout)
        except UnknownName as error:
            key = next(
                (each for each in ("dtype", "layout") if str(error).startswith(f"unknown {each} ")), at[-1]
            )
            plural = (*at[:-1], f"{key}s")
            raise self._error(plural if plural in self._lines else (*at[:-1], key), f"{key}: {error}") from None
        except InputError as error:
            raise self._error(at, f"{at[-1]}: {error}") from None

    def _check_sampler(self, sampler: str) -> None:
        if sampler == "tile":
            return
        from tuner.search.search import SAMPLERS

        if sampler not in SAMPLERS:
            raise self._error(("defaults", "sampler"), str(UnknownName("sampler", sampler, SAMPLERS)))


def _is_sizes(value: Any) -> bool:
    sizes = value if isinstance(value, list) else [value]
    return bool(sizes) and all(type(size) is int and size >= 1 for size in sizes)


def _model_at(at: KeyPath) -> tuple[type[PlanTable | DefaultsTable | ProblemTable], int]:
    """The table that a complaint is about, and which part of its path is the key."""
    from tuner.plan_schema import DefaultsTable, PlanTable, ProblemTable

    if at[0] == "problems" and len(at) > 1:
        return ProblemTable, 2
    if at[0] == "defaults" and len(at) > 1:
        return DefaultsTable, 1
    return PlanTable, 0
