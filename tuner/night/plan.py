"""Reads plans: parses and checks the TOML, and lists every problem. docs/plans.md describes them."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.declare.catalogue import Catalogue, builtin, from_file
from tuner.declare.epilogue import Epilogue
from tuner.declare.problem import PRECISIONS, Operation, Problem, check_sizes
from tuner.errors import InputError, PlanError, UnknownName
from tuner.night.plan_items import (
    DEFAULT_SECONDS,
    KeyPath,
    Plan,
    PlanItem,
    SurveyItem,
    asks_for,
    clock_time,
    seconds_until,
)  # fmt: skip
from tuner.results.objectives import TIME, limit_for, read_error_limit, read_objectives

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from tuner.night.plan_schema import DefaultsTable, ProblemTable, SurveyTable

__all__ = [
    "DEFAULT_SECONDS", "MAX_PROBLEMS", "Plan", "PlanItem", "asks_for", "clock_time", "document_of",
    "listed_problems", "plan_of", "read_plan", "seconds_until",
]  # fmt: skip

#: Samplers that minimise several objectives (see `tuner.search`, which is slow to load).
SEVERAL = ("tile", "random", "bruteforce")
#: More problems than this are a mistake: at a second each they take more than a day.
MAX_PROBLEMS = 100_000
#: A line that may be the last one of a value of several lines.
_LAST_LINE = re.compile(r"""[\]}"'][ \t]*(#.*)?$""")


# --- where keys stand ----------------------------------


def key_lines(text: str) -> dict[KeyPath, int]:
    """Finds the line of every key and table header.

    Args:
        text: A valid TOML document; of an invalid one, the part before the mistake counts.

    Returns:
        Path -> line, counted from 1. Elements of arrays of tables have their number (from 0) in the path:
        ``("problems", 1, "shape")``. Keys inside inline tables may be missing; see `line_of`.
    """
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    statement, begun = "", 1
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        begun = begun if statement else number
        statement += f"{line}\n"
        if begun < number and not _LAST_LINE.search(line):
            continue
        try:
            value: Any = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        is_header, statement = statement.lstrip().startswith("["), ""
        path = () if is_header else table
        while isinstance(value, dict) and value:
            name, value = next(iter(value.items()))
            path = (*path, name)
            lines.setdefault(path, begun)
            if is_header and isinstance(value, list):
                counts[path] = counts.get(path, -1) + 1
            if is_header and path in counts:
                path = (*path, counts[path])
                lines.setdefault(path, begun)
        table = path if is_header else table
    return lines


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """Returns the line of a key, else of the nearest table or key around it; 1 if there is none."""
    around = (path[:length] for length in range(len(path), 0, -1))
    return next((lines[part] for part in around if part in lines), 1)


class _Mistake(InputError):
    """A wrong value in a table.

    Attributes:
        key: Its key; empty for the whole table.
    """

    def __init__(self, key: str, message: object) -> None:
        super().__init__(str(message))
        self.key = key


@contextlib.contextmanager
def _naming(key: str, prefix: bool = True) -> Iterator[None]:
    """Says of which key an `InputError` is; its message begins with the key, unless `prefix` is False."""
    try:
        yield
    except InputError as error:
        raise _Mistake(key, f"{key}: {error}" if prefix else error) from None


@dataclass(frozen=True)
class Complaints:
    """Makes the errors of one plan.

    Attributes:
        shown: The plan's path as the user gave it.
        text: The plan.
    """

    shown: Path
    text: str

    @cached_property
    def _lines(self) -> dict[KeyPath, int]:
        return key_lines(self.text)

    def about(self, at: KeyPath, message: object) -> PlanError:
        """Makes an error at a key, or at the table around it if the key is missing."""
        line = line_of(self._lines, at)
        return PlanError(f"{self.shown}:{line}: {message}", line, ".".join(str(part) for part in at))

    @contextlib.contextmanager
    def of_table(self, at: KeyPath, table: BaseModel, defaults: DefaultsTable) -> Iterator[None]:
        """Makes an error of a `_Mistake` in a table; a key that only the defaults have is at fault there."""
        try:
            yield
        except _Mistake as mistake:
            if mistake.key in defaults.model_fields_set - table.model_fields_set:
                at = ("defaults",)
            raise self.about((*at, mistake.key) if mistake.key else at, mistake) from None

    def first_of(self, error: ValidationError) -> PlanError:
        """Returns the first of pydantic's complaints, by line, in our words."""
        from tuner.night import plan_schema as schema

        first = min(error.errors(include_url=False), key=lambda one: line_of(self._lines, one["loc"]))
        at, value = first["loc"], first["input"]
        model: type[BaseModel] = schema.PlanTable
        if len(at) > 1:
            model = schema.TABLES[str(at[0])]
        depth = sum(isinstance(part, int) for part in at[:2]) + (len(at) > 1)
        if len(at) <= depth:
            return self.about(at, f"{at[0]} holds tables, [[{at[0]}]], got {value!r}; write it so")
        name = str(at[depth])
        if first["type"] == "extra_forbidden":
            return self.about(at, UnknownName("key", name, model.model_fields))
        return self.about(at, f"{name} is {model.model_fields[name].description}, got {value!r}; correct it")


# --- plans ---------------------------------------------


def read_plan(path: Path, with_surveys: bool = True) -> Plan:
    """Reads and checks a plan.

    Args:
        path: A TOML file.
        with_surveys: False to leave its surveys out: its problems are to be another survey's.

    Raises:
        PlanError: It cannot be read, or a key or value is wrong; the message names file, line and key.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PlanError(f"a plan is a TOML file, {path} cannot be read: {reason}; check the path") from error
    document, complaints = document_of(text, path)
    return plan_of(document, path.resolve(), complaints, with_surveys)


def document_of(text: str, path: Path) -> tuple[dict[str, Any], Complaints]:
    """The document of a plan's text, and what makes errors about it.

    Args:
        text: TOML.
        path: What errors call it.

    Raises:
        PlanError: It is not TOML; the message names file and line.
    """
    try:
        return tomllib.loads(text), Complaints(path, text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(where[1]) if where else text.count("\n") + 1
        raise PlanError(
            f"{path}:{line}: a plan must be valid TOML: {error}; correct that line", line
        ) from error


def listed_problems(path: Path, operation: Operation) -> tuple[Problem, ...]:
    """The problems of a plan that are of an operation, for a survey; the plan's own surveys are left out.

    Raises:
        InputError: The plan is wrong, or has none.
    """
    every = (item.problem for item in read_plan(path, with_surveys=False).items)
    problems = tuple(problem for problem in every if problem.operation.name == operation.name)
    if not problems:
        raise InputError(
            f"a survey's shapes are the problems of a plan, {path} has none of {operation.name}; add some"
        )
    return problems


def plan_of(document: Mapping[str, Any], path: Path, complaints: Complaints, with_surveys: bool = True) -> Plan:
    """The plan of a document.

    Args:
        document: As parsed.
        path: Its file, absolute; files that it names are found beside it.
        complaints: Makes errors.
        with_surveys: False to leave its surveys out.

    Raises:
        PlanError: A key or value is wrong; the message names file, line and key.
    """
    from pydantic import ValidationError

    from tuner.night.plan_schema import PlanTable

    if not (document.get("problems") or document.get("surveys") or document.get("wanted")):
        rule = "a plan has one or more [[problems]] tables"
        raise complaints.about(
            ("problems",), f"{rule}, got none under the key problems; add one, or [[surveys]], or wanted = 20"
        )
    try:
        plan = PlanTable.model_validate(document)
    except ValidationError as error:
        raise complaints.first_of(error) from None
    defaults, items, surveys = plan.defaults, dict[tuple[Any, ...], PlanItem](), []
    with complaints.of_table(("defaults",), defaults, defaults):
        _check_sampler(defaults.sampler)
    for index, problem in enumerate(plan.problems):
        with complaints.of_table(("problems", index), problem, defaults):
            for item in _items(problem, defaults, path.parent):
                items.setdefault(item.key, item)
            _check_count("", len(items))
    for index, survey in enumerate(plan.surveys if with_surveys else ()):
        with complaints.of_table(("surveys", index), survey, defaults):
            surveys.append(_survey(survey, defaults, path.parent))
    return Plan(
        path, tuple(items.values()), plan.watch, defaults.device, defaults.sampler,
        clock_time(plan.until) if plan.until else None, plan.seconds, tuple(surveys),
        plan.wanted, _seconds(defaults), defaults.trials,
    )  # fmt: skip


def _check_sampler(sampler: str) -> None:
    """Checks the name of a sampler; the library of most is loaded only for theirs."""
    if sampler != "tile":
        from tuner.search.search import SAMPLERS

        _check_names("sampler", [sampler], SAMPLERS)


def _check_names(key: str, names: Iterable[str], known: Iterable[str], what: str = "") -> None:
    for name in names:
        if name not in known:
            raise _Mistake(key, UnknownName(what or key, name, known))


def _check_count(key: str, count: int) -> None:
    if count > MAX_PROBLEMS:
        rule = f"a plan has at most {MAX_PROBLEMS} problems"
        raise _Mistake(key, f"{key or 'problems'}: {rule}, got {count}; use fewer sizes")


def _seconds(table: ProblemTable | DefaultsTable) -> float | None:
    """A problem's seconds: the default if it has no budget at all."""
    return DEFAULT_SECONDS if table.seconds is None and table.trials is None else table.seconds


# --- tables --------------------------------------------


def _items(own: ProblemTable, defaults: DefaultsTable, folder: Path) -> Iterator[PlanItem]:
    """The problems of a table."""
    catalogue, operation, file = _declared(own, folder)
    table = own.over(defaults)
    kernels = tuple(table.kernels or ())
    with _naming("kernels", prefix=False):
        catalogue.of(operation.name, only=kernels)
    words = [
        _choices(table, "dtype", operation.dtypes), _choices(table, "layout", operation.layouts),
        _choices(table, "precision", PRECISIONS), _epilogues(table),
    ]  # fmt: skip
    objectives = _objectives(table.objective, defaults.sampler)
    limit = read_error_limit(table.error_limit)
    for key, shape in _shapes(table, operation):
        for chosen in itertools.product(*words):
            problem = _problem(operation, key, shape, chosen)
            yield PlanItem(
                problem, catalogue, file, table.regime or "cold", kernels, _seconds(table), table.trials,
                objectives, limit_for(problem.precision, limit), devices=tuple(table.devices or ()),
            )  # fmt: skip


def _survey(table: SurveyTable, defaults: DefaultsTable, folder: Path) -> SurveyItem:
    catalogue, operation, _ = _declared(table, folder)
    with _naming("kernels", prefix=False):
        catalogue.of(operation.name, only=tuple(table.kernels))
    _check_names("layouts", table.layouts, operation.layouts)
    _check_names("dtype", filter(None, [table.dtype]), operation.dtypes)
    _check_names("most", table.most, operation.dims)
    problems: tuple[Problem, ...] = ()
    if table.shapes is not None:
        with _naming("shapes"):
            problems = listed_problems(_beside(folder, table.shapes), operation)
    if not table.drawn and not problems:
        raise _Mistake("drawn", "drawn = false goes with shapes, got none; name a plan in shapes")
    return SurveyItem(operation, catalogue, problems, table, table.regime or defaults.regime or "")


def _declared(table: ProblemTable | SurveyTable, folder: Path) -> tuple[Catalogue, Operation, Path | None]:
    """Returns a table's catalogue, its operation, and the user's file if it names one."""
    if table.file is None:
        with _naming("operation"):
            if table.operation is None:
                raise InputError("a problem has operation or file, got neither; add one")
            return builtin(), builtin().operation(table.operation), None
    file = _beside(folder, table.file)
    with _naming("file"):
        catalogue = from_file(file)
        declared = sorted(
            {kernel.operation for kernel in catalogue.kernels if kernel.source.declared_in == file}
        )
        if table.operation is None and len(declared) > 1:
            raise InputError(f"the file has kernels of {' and '.join(declared)}; add operation to say which")
    with _naming("operation"):
        return catalogue, catalogue.operation(table.operation or declared[0]), file


def _beside(folder: Path, path: str) -> Path:
    """A path that counts from the plan's folder."""
    return (folder / Path(path).expanduser()).resolve()


def _several(table: ProblemTable, key: str) -> tuple[str, list[str]]:
    """The key that gives a problem's dtypes, layouts..., and these, if there are any."""
    one, several = getattr(table, key), getattr(table, f"{key}s")
    if one is not None and several is not None:
        raise _Mistake(f"{key}s", f"{key} and {key}s exclude each other, got both; keep one")
    return (f"{key}s", several) if several else (key, [one] if one else [])


def _choices(table: ProblemTable, key: str, known: tuple[str, ...]) -> list[str]:
    given, names = _several(table, key)
    _check_names(given, names, known, key)
    return names or [known[0]]


def _epilogues(table: ProblemTable) -> list[str]:
    """A problem's epilogues; ``""`` and ``none`` are none."""
    given, names = _several(table, "epilogue")
    try:
        return [Epilogue.read("" if text == "none" else text).text for text in names or [""]]
    except InputError as error:
        raise _Mistake(given, f"epilogue: {error}") from None


def _objectives(objective: str | list[str] | None, sampler: str) -> tuple[str, ...]:
    with _naming("objective"):
        objectives = read_objectives(TIME if objective is None else objective)
        if len(objectives) > 1 and sampler not in SEVERAL:
            rule = f"several objectives need one of the samplers {', '.join(SEVERAL)}"
            raise InputError(f"{rule}, got sampler {sampler!r}; choose tile")
    return objectives


def _shapes(table: ProblemTable, operation: Operation) -> Iterator[tuple[str, dict[str, int]]]:
    """Yields shapes, each with the key that gives it."""
    by_name, dims = _sizes_by_name(table, operation), operation.dims
    ways = [way for way in ("shape", "shapes", "squares", "set") if getattr(table, way) is not None]
    ways += list(by_name)[:1]
    if len(ways) != 1:
        rule = f"a problem has one of shape, shapes, squares, set or {' '.join(dims)} by name"
        got = " and ".join(ways) or "none"
        raise _Mistake(ways[1] if len(ways) > 1 else "", f"{rule}, got {got}; {'keep' if ways else 'add'} one")
    (key,) = ways
    if key == "squares":
        yield from ((key, dict.fromkeys(dims, size)) for size in table.squares or ())
    elif key in ("shape", "shapes"):
        for sizes in table.shapes or [table.shape or []]:
            if len(sizes) != len(dims):
                rule = f"a shape of {operation.name} has {len(dims)} sizes ({', '.join(dims)})"
                raise _Mistake(key, f"{key}: {rule}, got {sizes}; correct it")
            yield key, dict(zip(dims, sizes, strict=True))
    else:
        of_dims = (table.set or by_name).items()
        grid = {name: sizes if isinstance(sizes, list) else [sizes] for name, sizes in of_dims}
        _check_count(key, math.prod(map(len, grid.values())))
        for values in itertools.product(*grid.values()):
            yield key, dict(zip(grid, values, strict=True))


def _sizes_by_name(table: ProblemTable, operation: Operation) -> dict[str, Any]:
    """Returns the sizes given with dims as keys; any other unknown key is an error."""
    by_name = table.__pydantic_extra__
    for name, value in by_name.items():
        _check_names(name, [name], (*type(table).model_fields, *operation.dims), "key")
        sizes = value if isinstance(value, list) else [value]
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            rule = "a whole number of 1 or more, or a list of them"
            raise _Mistake(name, f"{name} is {rule}, got {value!r}; correct it")
    return by_name


def _problem(operation: Operation, key: str, shape: Mapping[str, int], words: tuple[str, ...]) -> Problem:
    by_name = key in operation.dims
    with _naming("" if by_name else key, prefix=not by_name):
        problem = operation.problem(shape, *words)
    with _naming(max(shape, key=lambda name: shape[name]) if by_name else key, prefix=not by_name):
        check_sizes(problem)
    return problem
