"""Reads plans: parses and checks the TOML, and lists every problem."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.declare import catalogue
from tuner.declare.catalogue import Catalogue
from tuner.declare.epilogue import Epilogue
from tuner.declare.problem import PRECISIONS, Operation, Problem, check_sizes
from tuner.errors import InputError, PlanError, UnknownName
from tuner.night.plan.items import DEFAULT_SECONDS, KeyPath, Plan, PlanItem, SurveyItem, WatchItem, clock_time
from tuner.results.objectives import TIME, limit_for, read_error_limit, read_objectives

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from tuner.night.plan.schema import DefaultsTable, PlanTable, ProblemTable


_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_DOTTED = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_BLANK = re.compile(r"(?:\s+|#[^\n]*)+")
_HEADER = re.compile(rf"(\[\[?)[ \t]*({_DOTTED})[ \t]*\]\]?")
_ASSIGNMENT = re.compile(rf"({_DOTTED})[ \t]*=[ \t]*")
#: A piece of a value that may contain characters that look like its end, or one other character.
_PIECE = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'" r"|\#[^\n]*" r"|.",
    re.DOTALL,
)


def key_lines(text: str) -> dict[KeyPath, int]:
    """Finds the line of every key and table header.

    Args:
        text: A valid TOML document; of an invalid one, the part before the mistake counts.

    Returns:
        Path -> line, counted from 1. Elements of arrays of tables have their number (from 0) in the path:
        ``("problems", 1, "shape")``. Keys inside inline tables are not listed; see `line_of`.
    """
    lines: dict[KeyPath, int] = {}
    elements: dict[KeyPath, int] = {}
    table: KeyPath = ()
    line, counted = 1, 0
    for position, opening, dotted in _statements(text.replace("\r\n", "\n")):
        line += text.replace("\r\n", "\n").count("\n", counted, position)
        counted = position
        names = _names(dotted)
        if opening == "[[":
            base = _within((), names, elements, last=False)
            elements[base] = elements.get(base, -1) + 1
            table = (*base, elements[base])
            lines.setdefault(base, line)
            lines[table] = line
        elif opening == "[":
            table = _within((), names, elements)
            _put(lines, (), table, line)
        else:
            _put(lines, table, (*table, *names), line)
    return lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Returns the line of a key, else of the nearest table or key around it; 1 if there is none."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def _statements(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields position, ``[``, ``[[`` or nothing, and the dotted key of each header and assignment."""
    position = 0
    while True:
        if blank := _BLANK.match(text, position):
            position = blank.end()
        if header := _HEADER.match(text, position):
            yield position, header[1], header[2]
            position = header.end()
        elif assignment := _ASSIGNMENT.match(text, position):
            yield position, "", assignment[1]
            position = _end_of_value(text, assignment.end())
        else:
            return


def _end_of_value(text: str, position: int) -> int:
    """Returns the position of the line break, or the end, that closes a value: outside brackets and strings."""
    depth = 0
    while piece := _PIECE.match(text, position):
        if piece[0] == "\n" and depth <= 0:
            break
        depth += piece[0] in ("[", "{")
        depth -= piece[0] in ("]", "}")
        position = piece.end()
    return position


def _names(dotted: str) -> tuple[str, ...]:
    """Splits a dotted key as TOML does, quotes and escapes included."""
    try:
        value = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return (dotted,)
    names = []
    while isinstance(value, dict):
        name, value = next(iter(value.items()))
        names.append(name)
    return tuple(names)


def _within(base: KeyPath, names: tuple[str, ...], elements: dict[KeyPath, int], last: bool = True) -> KeyPath:
    """Returns a header's path; an array of tables means its latest element (the last name if `last`)."""
    path = base
    for index, name in enumerate(names):
        path = (*path, name)
        if path in elements and (last or index < len(names) - 1):
            path = (*path, elements[path])
    return path


def _put(lines: dict[KeyPath, int], base: KeyPath, path: KeyPath, line: int) -> None:
    """Stores the line of a path, and of the tables between it and `base` that a dotted key implies."""
    for length in range(len(base) + 1, len(path) + 1):
        lines.setdefault(path[:length], line)


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


#: Samplers that minimise several objectives (see `tuner.search`, which is slow to load).
SEVERAL = ("tile", "random", "bruteforce")
#: More problems than this are a mistake: at a second each they take more than a day.
MAX_PROBLEMS = 100_000


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
        return tomllib.loads(text), Complaints(path, key_lines(text))
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(where[1]) if where else text.count("\n") + 1
        raise PlanError(
            f"{path}:{line}: a plan must be valid TOML: {error}; correct that line", line
        ) from error


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
    return _Reader(path, complaints).plan(document, with_surveys)


def listed_problems(path: Path, operation: Operation) -> tuple[Problem, ...]:
    """The problems of a plan that are of an operation, for a survey; the plan's own surveys are left out.

    Raises:
        InputError: The plan is wrong, or has none.
    """
    every = (item.problem for item in read_plan(path, with_surveys=False).items)
    found = tuple(problem for problem in every if problem.operation.name == operation.name)
    if not found:
        raise InputError(
            f"a survey's shapes are the problems of a plan, {path} has none of {operation.name}; add some"
        )
    return found


class _Reader:
    """Turns a parsed document into a plan."""

    def __init__(self, path: Path, complaints: Complaints) -> None:
        self._path, self._complain = path, complaints.about
        self._complaints = complaints
        self._builtin: Catalogue | None = None

    def plan(self, document: Mapping[str, Any], with_surveys: bool = True) -> Plan:
        """Checks the document and lists its problems."""
        from pydantic import ValidationError

        from tuner.night.plan.schema import PlanTable

        if document.get("problems", []) == [] and not document.get("surveys") and not document.get("wanted"):
            rule = "a plan has one or more [[problems]] tables"
            raise self._complain(
                ("problems",),
                f"{rule}, got none under the key problems; add one, or [[surveys]], or wanted = 20",
            )
        try:
            table = PlanTable.model_validate(document)
        except ValidationError as error:
            raise self._complaints.first_of(error) from None
        self._check_sampler(table.defaults.sampler)
        found: dict[tuple[Any, ...], PlanItem] = {}
        for index, problem in enumerate(table.problems):
            for item in self._items(("problems", index), problem, table.defaults):
                found.setdefault(item.key, item)
            self._check_count(("problems", index), len(found))
        until = clock_time(table.until) if table.until else None
        defaults = table.defaults
        surveys = self._surveys(table) if with_surveys else ()
        seconds = defaults.seconds or (None if defaults.trials else DEFAULT_SECONDS)
        return Plan(
            self._path, tuple(found.values()), defaults.device, defaults.sampler, until, table.seconds, surveys,
            table.wanted, seconds, defaults.trials,
            WatchItem(table.watch.problems, table.watch.seconds, table.watch.rollback == "automatic"),
        )  # fmt: skip

    def _surveys(self, table: PlanTable) -> tuple[SurveyItem, ...]:
        from tuner.night.plan.schema import SurveyReader

        read = SurveyReader(self._path, self._complain, listed_problems, table.defaults.regime or "")
        return tuple(read.item(("surveys", index), each) for index, each in enumerate(table.surveys))

    def _items(self, at: KeyPath, table: ProblemTable, defaults: DefaultsTable) -> Iterator[PlanItem]:
        found, operation, file = self._operation(at, table)
        kernels = tuple(table.kernels or defaults.kernels or ())
        try:
            found.of(operation.name, only=kernels)
        except InputError as error:
            raise self._complain(
                (*at, "kernels") if table.kernels else ("defaults", "kernels"), error
            ) from None
        dtypes = self._choices(at, table, "dtype", defaults.dtype, operation.dtypes)
        layouts = self._choices(at, table, "layout", defaults.layout, operation.layouts)
        precisions = self._choices(at, table, "precision", defaults.precision, PRECISIONS)
        epilogues = self._epilogues(at, table, defaults)
        objectives = self._objectives(at, table, defaults)
        trials = table.trials or defaults.trials
        seconds = table.seconds or defaults.seconds or (None if trials else DEFAULT_SECONDS)
        limit = read_error_limit(table.error_limit or defaults.error_limit)
        regime = table.regime or defaults.regime or "cold"
        for key, shape in self._shapes(at, table, operation):
            for words in itertools.product(dtypes, layouts, precisions, epilogues):
                problem = self._problem((*at, key), operation, shape, words)
                yield PlanItem(
                    problem, found, file, regime, kernels, seconds, trials, objectives,
                    limit_for(problem.precision, limit), devices=tuple(table.devices or defaults.devices or ()),
                )  # fmt: skip

    def _objectives(self, at: KeyPath, table: ProblemTable, defaults: DefaultsTable) -> tuple[str, ...]:
        own, default = table.objective, defaults.objective
        place = ("defaults", "objective") if own is None else (*at, "objective")
        try:
            found = read_objectives(next((each for each in (own, default) if each is not None), TIME))
        except InputError as error:
            raise self._complain(place, f"objective: {error}") from None
        if len(found) > 1 and defaults.sampler not in SEVERAL:
            rule = f"several objectives need one of the samplers {', '.join(SEVERAL)}"
            raise self._complain(place, f"objective: {rule}, got sampler {defaults.sampler!r}; choose tile")
        return found

    def _operation(self, at: KeyPath, table: ProblemTable) -> tuple[Catalogue, Operation, Path | None]:
        """Returns a problem's catalogue, its operation, and the user's file if it names one."""
        try:
            if table.file is None and table.operation is None:
                raise InputError("a problem has operation or file, got neither; add one")
            if table.file is None:
                self._builtin = self._builtin or catalogue.builtin()
                return self._builtin, self._builtin.operation(str(table.operation)), None
            file = (self._path.parent / Path(table.file).expanduser()).resolve()
            found = catalogue.from_file(file)
            declared = sorted({kernel.operation for kernel in found.kernels if kernel.declared_in == file})
            if table.operation is None and len(declared) > 1:
                raise InputError(
                    f"the file has kernels of {' and '.join(declared)}; add operation to say which"
                )
            return found, found.operation(table.operation or declared[0]), file
        except InputError as error:
            key = "operation" if table.file is None or isinstance(error, UnknownName) else "file"
            raise self._complain((*at, key), f"{key}: {error}") from None

    def _choices(
        self, at: KeyPath, table: ProblemTable, key: str, default: str | None, known: tuple[str, ...]
    ) -> list[str]:
        """A problem's dtypes, layouts or precisions: its own, else the plan's default, else the first known."""
        one, several = getattr(table, key), getattr(table, f"{key}s")
        if one is not None and several is not None:
            raise self._complain((*at, f"{key}s"), f"{key} and {key}s exclude each other, got both; keep one")
        names = several or [one or default or known[0]]
        place = (*at, f"{key}s" if several else key) if several or one else ("defaults", key)
        for name in names:
            if name not in known:
                raise self._complain(place, UnknownName(key, name, known))
        return list(names)

    def _epilogues(self, at: KeyPath, table: ProblemTable, defaults: DefaultsTable) -> list[str]:
        """A problem's epilogues: its own, else the plan's default, else none; ``""`` and ``none`` are none."""
        if table.epilogue is not None and table.epilogues is not None:
            rule = "epilogues: epilogue and epilogues exclude each other, got both; keep one"
            raise self._complain((*at, "epilogues"), rule)
        own = table.epilogues or ([table.epilogue] if table.epilogue is not None else None)
        place = (*at, "epilogues" if table.epilogues else "epilogue") if own else ("defaults", "epilogue")
        try:
            return [
                Epilogue.read("" if text == "none" else text).text for text in own or [defaults.epilogue or ""]
            ]
        except InputError as error:
            raise self._complain(place, f"epilogue: {error}") from None

    def _shapes(
        self, at: KeyPath, table: ProblemTable, operation: Operation
    ) -> Iterator[tuple[str, dict[str, int]]]:
        """Yields shapes, each with the key that gives it."""
        by_name = self._sizes_by_name(at, table, operation)
        key = self._way(at, table, operation, by_name)
        dims = operation.dims
        if key == "squares":
            yield from ((key, dict.fromkeys(dims, size)) for size in table.squares or ())
        elif key in ("shape", "shapes"):
            for sizes in table.shapes or [table.shape or []]:
                if len(sizes) != len(dims):
                    rule = f"a shape of {operation.name} has {len(dims)} sizes ({', '.join(dims)})"
                    raise self._complain((*at, key), f"{key}: {rule}, got {sizes}; correct it")
                yield key, dict(zip(dims, sizes, strict=True))
        else:
            given = (table.set or by_name).items()
            grid = {name: sizes if isinstance(sizes, list) else [sizes] for name, sizes in given}
            self._check_count((*at, key), math.prod(map(len, grid.values())))
            for values in itertools.product(*grid.values()):
                yield key, dict(zip(grid, values, strict=True))

    def _way(self, at: KeyPath, table: ProblemTable, operation: Operation, by_name: Mapping[str, Any]) -> str:
        """Returns the key by which a problem gives its shapes; if dims are keys, the first of them."""
        ways = [way for way in ("shape", "shapes", "squares", "set") if getattr(table, way) is not None]
        ways += list(by_name)[:1]
        if len(ways) == 1:
            return ways[0]
        rule = f"a problem has one of shape, shapes, squares, set or {' '.join(operation.dims)} by name"
        got = " and ".join(ways) or "none"
        raise self._complain((*at, *ways[1:2]), f"{rule}, got {got}; {'keep' if ways else 'add'} one")

    def _sizes_by_name(self, at: KeyPath, table: ProblemTable, operation: Operation) -> dict[str, Any]:
        """Returns the sizes given with dims as keys; any other unknown key is an error."""
        for name, value in table.__pydantic_extra__.items():
            if name not in operation.dims:
                known = (*type(table).model_fields, *operation.dims)
                raise self._complain((*at, name), UnknownName("key", name, known))
            if not _is_sizes(value):
                rule = "a whole number of 1 or more, or a list of them"
                raise self._complain((*at, name), f"{name} is {rule}, got {value!r}; correct it")
        return dict(table.__pydantic_extra__)

    def _problem(
        self, at: KeyPath, operation: Operation, shape: Mapping[str, int], words: tuple[str, ...]
    ) -> Problem:
        by_name = at[-1] in operation.dims
        try:
            problem = operation.problem(shape, *words)
        except InputError as error:
            raise self._complain(
                at[:-1] if by_name else at, error if by_name else f"{at[-1]}: {error}"
            ) from None
        try:
            check_sizes(problem)
        except InputError as error:
            largest = max(shape, key=lambda name: shape[name])
            raise self._complain(
                (*at[:-1], largest) if by_name else at, error if by_name else f"{at[-1]}: {error}"
            ) from None
        return problem

    def _check_count(self, at: KeyPath, count: int) -> None:
        if count > MAX_PROBLEMS:
            key = at[-1] if isinstance(at[-1], str) else "problems"
            rule = f"a plan has at most {MAX_PROBLEMS} problems"
            raise self._complain(at, f"{key}: {rule}, got {count}; use fewer sizes")

    def _check_sampler(self, sampler: str) -> None:
        if sampler == "tile":
            return
        from tuner.search.search import SAMPLERS

        if sampler not in SAMPLERS:
            raise self._complain(("defaults", "sampler"), UnknownName("sampler", sampler, SAMPLERS))


def _is_sizes(value: Any) -> bool:
    sizes = value if isinstance(value, list) else [value]
    return bool(sizes) and all(type(size) is int and size >= 1 for size in sizes)
