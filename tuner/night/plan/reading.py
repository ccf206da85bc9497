"""Reads plans: parses and checks the TOML, and lists every problem."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.declare.catalogue import Catalogue, builtin, from_file
from tuner.declare.epilogue import Epilogue
from tuner.declare.problem import PRECISIONS, Operation, Problem, check_sizes
from tuner.errors import InputError, PlanError, UnknownName
from tuner.night.plan.items import DEFAULT_SECONDS, KeyPath, Plan, PlanItem, SurveyItem, clock_time
from tuner.results.objectives import TIME, limit_for, read_error_limit, read_objectives

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from tuner.night.plan.schema import DefaultsTable, ProblemTable, SurveyTable

#: Gives the path of a problem's key, which may be that of the defaults.
PlaceOf = Callable[[str], KeyPath]
#: A line that may be the last one of a value of several lines.
_LAST_LINE = re.compile(r"""[\]}"'][ \t]*(#.*)?$""")


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

    def first_of(self, error: ValidationError) -> PlanError:
        """Returns the first of pydantic's complaints, by line, in our words."""
        from tuner.night.plan import schema

        first = min(error.errors(include_url=False), key=lambda one: line_of(self._lines, one["loc"]))
        at, got = first["loc"], first["input"]
        tables: dict[str, tuple[type[BaseModel], int]] = {
            "problems": (schema.ProblemTable, 2), "surveys": (schema.SurveyTable, 2),
            "defaults": (schema.DefaultsTable, 1), "watch": (schema.WatchTable, 1),
        }  # fmt: skip
        model, depth = tables.get(str(at[0]) if len(at) > 1 else "", (schema.PlanTable, 0))
        if len(at) <= depth:
            return self.about(at, f"{at[0]} holds tables, [[{at[0]}]], got {got!r}; write it so")
        name = str(at[depth])
        if first["type"] == "extra_forbidden":
            return self.about(at, UnknownName("key", name, model.model_fields))
        return self.about(at, f"{name} is {model.model_fields[name].description}, got {got!r}; correct it")


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

    from tuner.night.plan.schema import PlanTable

    if not (document.get("problems") or document.get("surveys") or document.get("wanted")):
        rule = "a plan has one or more [[problems]] tables"
        raise complaints.about(
            ("problems",), f"{rule}, got none under the key problems; add one, or [[surveys]], or wanted = 20"
        )
    try:
        table = PlanTable.model_validate(document)
    except ValidationError as error:
        raise complaints.first_of(error) from None
    defaults, reader = table.defaults, PlanReader(path, complaints)
    reader.check_sampler(defaults.sampler)
    items: dict[tuple[Any, ...], PlanItem] = {}
    for index, problem in enumerate(table.problems):
        for item in reader.items(("problems", index), problem, defaults):
            items.setdefault(item.key, item)
        reader.check_count(("problems", index), len(items))
    surveys = (
        reader.survey(("surveys", index), survey, defaults)
        for index, survey in enumerate(table.surveys if with_surveys else ())
    )
    return Plan(
        path, tuple(items.values()), table.watch, defaults.device, defaults.sampler,
        clock_time(table.until) if table.until else None, table.seconds, tuple(surveys),
        table.wanted, _seconds(defaults), defaults.trials,
    )  # fmt: skip


def _seconds(table: ProblemTable | DefaultsTable) -> float | None:
    """A problem's budget in seconds: a minute, unless seconds or trials are given."""
    return table.seconds or (None if table.trials else DEFAULT_SECONDS)


class PlanReader:
    """Turns the checked tables of a plan into problems and surveys."""

    def __init__(self, path: Path, complaints: Complaints) -> None:
        """Reads nothing yet.

        Args:
            path: The plan's file, absolute.
            complaints: Makes errors.
        """
        self._path, self._complain = path, complaints.about

    def items(self, at: KeyPath, own: ProblemTable, defaults: DefaultsTable) -> Iterator[PlanItem]:
        """The problems of a table.

        Raises:
            PlanError: A key or value is wrong.
        """

        def place(key: str) -> KeyPath:
            return (*at, key) if key in own.model_fields_set else ("defaults", key)

        catalogue, operation, file = self._operation(at, own)
        table = own.over(defaults)
        kernels = tuple(table.kernels or ())
        self._check_kernels(place("kernels"), catalogue, operation, kernels)
        words = [
            self._choices(at, table, "dtype", operation.dtypes, place),
            self._choices(at, table, "layout", operation.layouts, place),
            self._choices(at, table, "precision", PRECISIONS, place),
            self._epilogues(at, table, place),
        ]
        objectives = self._objectives(place("objective"), table.objective, defaults.sampler)
        limit = read_error_limit(table.error_limit)
        for key, shape in self._shapes(at, table, operation):
            for chosen in itertools.product(*words):
                problem = self._problem((*at, key), operation, shape, chosen)
                yield PlanItem(
                    problem, catalogue, file, table.regime or "cold", kernels, _seconds(table), table.trials,
                    objectives, limit_for(problem.precision, limit), devices=tuple(table.devices or ()),
                )  # fmt: skip

    def _operation(
        self, at: KeyPath, table: ProblemTable | SurveyTable
    ) -> tuple[Catalogue, Operation, Path | None]:
        """Returns a table's catalogue, its operation, and the user's file if it names one."""
        try:
            if table.file is None and table.operation is None:
                raise InputError("a problem has operation or file, got neither; add one")
            if table.file is None:
                return builtin(), builtin().operation(str(table.operation)), None
            file = self._beside(table.file)
            catalogue = from_file(file)
            declared = sorted({kernel.operation for kernel in catalogue.kernels if kernel.declared_in == file})
            if table.operation is None and len(declared) > 1:
                raise InputError(
                    f"the file has kernels of {' and '.join(declared)}; add operation to say which"
                )
            return catalogue, catalogue.operation(table.operation or declared[0]), file
        except InputError as error:
            key = "operation" if table.file is None or isinstance(error, UnknownName) else "file"
            raise self._complain((*at, key), f"{key}: {error}") from None

    def _beside(self, path: str) -> Path:
        """A path that counts from the plan's folder."""
        return (self._path.parent / Path(path).expanduser()).resolve()

    def _check_kernels(
        self, at: KeyPath, catalogue: Catalogue, operation: Operation, names: tuple[str, ...]
    ) -> None:
        try:
            catalogue.of(operation.name, only=names)
        except InputError as error:
            raise self._complain(at, error) from None

    def _check_names(self, at: KeyPath, what: str, names: Iterable[str], known: Collection[str]) -> None:
        for name in names:
            if name not in known:
                raise self._complain(at, UnknownName(what, name, known))

    def _several(self, at: KeyPath, table: ProblemTable, key: str) -> tuple[str, list[str]]:
        """The key that gives a problem's dtypes, layouts..., and these, if there are any."""
        one, several = getattr(table, key), getattr(table, f"{key}s")
        if one is not None and several is not None:
            raise self._complain((*at, f"{key}s"), f"{key} and {key}s exclude each other, got both; keep one")
        return (f"{key}s", several) if several else (key, [one] if one else [])

    def _choices(
        self,
        at: KeyPath,
        table: ProblemTable,
        key: str,
        known: tuple[str, ...],
        place: PlaceOf,
    ) -> list[str]:
        given, names = self._several(at, table, key)
        self._check_names(place(given), key, names, known)
        return names or [known[0]]

    def _epilogues(self, at: KeyPath, table: ProblemTable, place: PlaceOf) -> list[str]:
        """A problem's epilogues; ``""`` and ``none`` are none."""
        given, names = self._several(at, table, "epilogue")
        try:
            return [Epilogue.read("" if text == "none" else text).text for text in names or [""]]
        except InputError as error:
            raise self._complain(place(given), f"epilogue: {error}") from None

    def _objectives(self, at: KeyPath, objective: str | list[str] | None, sampler: str) -> tuple[str, ...]:
        try:
            objectives = read_objectives(TIME if objective is None else objective)
        except InputError as error:
            raise self._complain(at, f"objective: {error}") from None
        if len(objectives) > 1 and sampler not in SEVERAL:
            rule = f"several objectives need one of the samplers {', '.join(SEVERAL)}"
            raise self._complain(at, f"objective: {rule}, got sampler {sampler!r}; choose tile")
        return objectives

    def _shapes(
        self, at: KeyPath, table: ProblemTable, operation: Operation
    ) -> Iterator[tuple[str, dict[str, int]]]:
        """Yields shapes, each with the key that gives it."""
        by_name = self._sizes_by_name(at, table, operation)
        dims = operation.dims
        ways = [way for way in ("shape", "shapes", "squares", "set") if getattr(table, way) is not None]
        ways += list(by_name)[:1]
        if len(ways) != 1:
            rule = f"a problem has one of shape, shapes, squares, set or {' '.join(dims)} by name"
            got = " and ".join(ways) or "none"
            raise self._complain((*at, *ways[1:2]), f"{rule}, got {got}; {'keep' if ways else 'add'} one")
        (key,) = ways
        if key == "squares":
            yield from ((key, dict.fromkeys(dims, size)) for size in table.squares or ())
        elif key in ("shape", "shapes"):
            for sizes in table.shapes or [table.shape or []]:
                if len(sizes) != len(dims):
                    rule = f"a shape of {operation.name} has {len(dims)} sizes ({', '.join(dims)})"
                    raise self._complain((*at, key), f"{key}: {rule}, got {sizes}; correct it")
                yield key, dict(zip(dims, sizes, strict=True))
        else:
            of_dims = (table.set or by_name).items()
            grid = {name: sizes if isinstance(sizes, list) else [sizes] for name, sizes in of_dims}
            self.check_count((*at, key), math.prod(map(len, grid.values())))
            for values in itertools.product(*grid.values()):
                yield key, dict(zip(grid, values, strict=True))

    def _sizes_by_name(self, at: KeyPath, table: ProblemTable, operation: Operation) -> dict[str, Any]:
        """Returns the sizes given with dims as keys; any other unknown key is an error."""
        for name, value in table.__pydantic_extra__.items():
            if name not in operation.dims:
                known = (*type(table).model_fields, *operation.dims)
                raise self._complain((*at, name), UnknownName("key", name, known))
            sizes = value if isinstance(value, list) else [value]
            if not sizes or any(type(size) is not int or size < 1 for size in sizes):
                rule = "a whole number of 1 or more, or a list of them"
                raise self._complain((*at, name), f"{name} is {rule}, got {value!r}; correct it")
        return dict(table.__pydantic_extra__)

    def _problem(
        self, at: KeyPath, operation: Operation, shape: Mapping[str, int], words: tuple[str, ...]
    ) -> Problem:
        by_name = at[-1] in operation.dims
        place = at[:-1] if by_name else at
        try:
            problem = operation.problem(shape, *words)
            if by_name:
                place = (*place, max(shape, key=lambda name: shape[name]))
            check_sizes(problem)
        except InputError as error:
            raise self._complain(place, error if by_name else f"{at[-1]}: {error}") from None
        return problem

    def check_count(self, at: KeyPath, count: int) -> None:
        """Checks that a plan has not too many problems.

        Raises:
            PlanError: It has.
        """
        if count > MAX_PROBLEMS:
            key = at[-1] if isinstance(at[-1], str) else "problems"
            rule = f"a plan has at most {MAX_PROBLEMS} problems"
            raise self._complain(at, f"{key}: {rule}, got {count}; use fewer sizes")

    def check_sampler(self, sampler: str) -> None:
        """Checks the name of a sampler; the library of most is loaded only for theirs.

        Raises:
            PlanError: There is no such sampler.
        """
        if sampler != "tile":
            from tuner.search.search import SAMPLERS

            self._check_names(("defaults", "sampler"), "sampler", [sampler], SAMPLERS)

    def survey(self, at: KeyPath, table: SurveyTable, defaults: DefaultsTable) -> SurveyItem:
        """A survey.

        Raises:
            PlanError: It names what there is not.
        """
        catalogue, operation, _ = self._operation(at, table)
        self._check_kernels((*at, "kernels"), catalogue, operation, tuple(table.kernels))
        self._check_names((*at, "layouts"), "layouts", table.layouts, operation.layouts)
        self._check_names((*at, "dtype"), "dtype", filter(None, [table.dtype]), operation.dtypes)
        self._check_names((*at, "most"), "most", table.most, operation.dims)
        problems: tuple[Problem, ...] = ()
        if table.shapes is not None:
            try:
                problems = listed_problems(self._beside(table.shapes), operation)
            except InputError as error:
                raise self._complain((*at, "shapes"), f"shapes: {error}") from None
        if not table.drawn and not problems:
            rule = "drawn = false goes with shapes, got none; name a plan in shapes"
            raise self._complain((*at, "drawn"), rule)
        return SurveyItem(operation, catalogue, problems, table, table.regime or defaults.regime or "")
