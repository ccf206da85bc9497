"""Plans: reads and checks the TOML, and lists every problem. docs/plans.md describes them."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import math
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tuner.declare.catalogue import Catalogue, from_file
from tuner.declare.epilogue import Epilogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import PRECISIONS, Operation, Problem
from tuner.devices.detect import is_spec, kinds
from tuner.errors import InputError, PlanError, UnknownName
from tuner.lookup.stale import builtin_now
from tuner.results.objectives import TIME, limit_for, read_bits, read_error_limit, read_objectives
from tuner.results.record import ProblemKey, Wanted
from tuner.study.requests import DEFAULT_SECONDS, budget, check_invariant

if TYPE_CHECKING:
    from tuner.night.plan_schema import DefaultsTable, ProblemTable, StrictTable, SurveyTable, WatchTable

#: A path in a parsed document: keys of tables, and numbers of elements of arrays.
KeyPath = tuple[str | int, ...]
#: Samplers that minimise several objectives (see `tuner.search`, which is slow to load).
SEVERAL = ("tile", "random", "bruteforce")
#: More problems than this are a mistake: at a second each they take more than a day.
MAX_PROBLEMS = 100_000
#: Mistakes of a plan that are told; to go on would take whoever reads a stranger's plan seconds.
MOST_MISTAKES = 20
#: Hours before its end at which a night begins at the earliest, if nothing says when it begins.
LONGEST_NIGHT_H = 14
#: A line with a table's header, or with a key.
_HEADER, _KEY = re.compile(r"\s*\[{1,2}\s*([\w.-]+)\s*\]"), re.compile(r"\s*([\w-]+)\s*=")
#: What dims as keys are.
SIZES = "a whole number of 1 or more, or a list of them"
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True)
class PlanItem:
    """One problem to tune.

    Attributes:
        problem: What to compute: operation, shape, dtype, layout, precision.
        catalogue: Where its kernels are found.
        file: The user's own file that declares them, absolute; None for built-in ones.
        regime: How times are taken.
        kernels: Names of the kernels that compete; all if empty.
        seconds: Budget of its study in seconds; None without that limit.
        trials: Budget of its study in trials; None without that limit.
        objectives: Objectives to minimise.
        error_limit: Largest error of a champion, as a multiple of the library's; None for no limit.
        bits: Class of bits that champions keep to; empty for any.
        invariant: Dim of which all sizes up to the problem's get configs of one class of rows; empty for none.
        wanted: How often it was asked for without an exact answer, where that is why it is tuned.
        devices: Kinds or models of device on which it is tuned; empty for any.
    """

    problem: Problem
    catalogue: Catalogue = field(compare=False, repr=False)
    file: Path | None = None
    regime: str = "cold"
    kernels: tuple[str, ...] = ()
    seconds: float | None = DEFAULT_SECONDS
    trials: int | None = None
    objectives: tuple[str, ...] = TIME
    error_limit: float | None = None
    bits: str = ""
    invariant: str = ""
    wanted: Wanted | None = field(default=None, compare=False)
    devices: tuple[str, ...] = ()

    @cached_property
    def key(self) -> tuple[ProblemKey, PlanItem]:
        """Equal for items of the same work: everything but the budgets."""
        return ProblemKey.of(self.problem), replace(self, seconds=None, trials=None)


@dataclass(frozen=True)
class SurveyItem:
    """A survey of a plan.

    Attributes:
        operation: What is surveyed.
        catalogue: Where its kernels are found.
        problems: Problems of one's own, which come first.
        table: Its other keys.
        regime: How time is taken; as usual on the device where empty.
    """

    operation: Operation
    catalogue: Catalogue = field(compare=False, repr=False)
    problems: tuple[Problem, ...]
    table: SurveyTable
    regime: str


@dataclass(frozen=True)
class Plan:
    """A plan as read.

    Attributes:
        path: Its file, absolute.
        items: The problems in the plan's order, without duplicates.
        watch: What is timed before anything is tuned.
        defaults: Device and sampler of all; the budget of what programs asked for.
        since: Time of day before which a night does not begin, local; None without one.
        until: Time of day to stop at, local; None without one.
        seconds: Budget of the whole run in seconds; None without one.
        surveys: Surveys, which come before the problems.
        wanted: How many of the problems that programs asked for are tuned as well.
    """

    path: Path
    items: tuple[PlanItem, ...]
    watch: WatchTable
    defaults: DefaultsTable
    since: time | None = None
    until: time | None = None
    seconds: float | None = None
    surveys: tuple[SurveyItem, ...] = ()
    wanted: int = 0


def asks_for(names: Collection[str], info: DeviceInfo) -> bool:
    """True if a device is among those that are named by kind, model, or a pattern of the model.

    Args:
        names: ``cuda``, ``cpu``, ``NVIDIA H200``, ``*H200*``; none for any device. ``cuda:1`` stands for its
            kind, and a device whose times do not pass for any.
        info: The device.
    """
    named = {name.partition(":")[0].lower() for name in names}
    model = info.name.lower()
    is_named = any(fnmatch.fnmatchcase(model, name.lower()) for name in names)
    stand_ins = {name for name, kind in kinds().items() if not kind.times_pass}
    return not names or is_named or bool(named & {info.kind, *stand_ins})


# --- times of day --------------------------------------


def clock_time(text: str) -> time:
    """Reads ``HH:MM``.

    Raises:
        InputError: The text is not a time of day.
    """
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise InputError(f'a time of day is "HH:MM", 00:00 to 23:59, got {text!r}; give one such as 06:30')
    return time(int(match[1]), int(match[2]))


def seconds_until(clock: time, now: datetime) -> float:
    """Returns the seconds from `now` (local, without time zone) until a clock next shows this time.

    From a time to itself is a day. A night in which clocks change has its true length.
    """
    then = datetime.combine(now.date(), clock)
    if then <= now:
        then += timedelta(days=1)
    return then.timestamp() - now.timestamp()


def outside(plan: Plan, now: datetime) -> str:
    """Why this is not the time for a plan's night; empty if it is."""
    if plan.until is None:
        return ""
    until, left_s = f"{plan.until:%H:%M}", seconds_until(plan.until, now)
    if plan.since is not None and left_s > seconds_until(plan.since, now):
        return f"this night is from {plan.since:%H:%M} until {until}, and it is {now:%H:%M}; nothing was done"
    if plan.since is None and plan.seconds is None and left_s > LONGEST_NIGHT_H * 3600:
        rule = f"a night without --from takes {LONGEST_NIGHT_H} hours at the most"
        return f"{rule}, and until {until} it is {left_s / 3600:.1f}; give --from, or --seconds"
    return ""


# --- where keys stand ----------------------------------


def key_lines(text: str) -> dict[KeyPath, int]:
    """Finds the line of every key and table header.

    Args:
        text: A TOML document.

    Returns:
        Path -> line, counted from 1. Elements of arrays of tables have their number (from 0) in the path:
        ``("problems", 1, "shape")``. Keys that are quoted, dotted or inside inline tables are missing.
    """
    lines: dict[KeyPath, int] = {}
    counts: Counter[KeyPath] = Counter()
    table: KeyPath = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = ()
            for name in header[1].split("."):
                table = (*table, counts[table] - 1, name) if table in counts else (*table, name)
            lines.setdefault(table, number)
            if line.lstrip().startswith("[["):
                counts[table] += 1
                table = (*table, counts[table] - 1)
                lines[table] = number
        elif key := _KEY.match(line):
            lines.setdefault((*table, key[1]), number)
    return lines


T = TypeVar("T", bound="StrictTable")


@dataclass(frozen=True)
class Complaints:
    """The mistakes of one plan, collected so that all are told at once, or the first `MOST_MISTAKES`.

    Attributes:
        shown: The plan's path as the user gave it.
        text: The plan.
    """

    shown: Path
    text: str
    _noted: dict[str, PlanError] = field(default_factory=dict, init=False)

    @cached_property
    def _lines(self) -> dict[KeyPath, int]:
        return key_lines(self.text)

    def note(self, at: KeyPath, message: object) -> None:
        """Notes a mistake at a key, or at the table around it if the key is missing.

        Raises:
            PlanError: There are too many to go on.
        """
        around = (at[:length] for length in range(len(at), 0, -1))
        line = next((self._lines[part] for part in around if part in self._lines), 1)
        error = PlanError(f"{self.shown}:{line}: {message}", line, ".".join(map(str, at)))
        self._noted.setdefault(str(error), error)
        if len(self._noted) >= MOST_MISTAKES:
            self.check()

    @contextlib.contextmanager
    def noting(self, at: KeyPath, prefix: str = "", defaults: Collection[str] = ()) -> Iterator[None]:
        """Notes an `InputError` of the block, which ends there.

        Args:
            at: Where it belongs; a key that a `PlanError` names counts from there.
            prefix: Begins the message.
            defaults: Keys that stand in the table of defaults instead.
        """
        try:
            yield
        except InputError as error:
            if len(self._noted) >= MOST_MISTAKES:
                raise
            key = error.key if isinstance(error, PlanError) else ""
            self.note((*(("defaults",) if key in defaults else at), *filter(None, [key])), f"{prefix}{error}")

    def check(self) -> None:
        """Raises what was noted as one error, in the order of lines; it has the first one's line and key."""
        noted = sorted(self._noted.values(), key=lambda error: error.line)
        if noted:
            raise PlanError("\n".join(map(str, noted)), noted[0].line, noted[0].key)

    def checked(self, model: type[T], table: object, at: KeyPath = ()) -> T | None:
        """The table by its schema; None if it is wrong, which is noted in our words."""
        from pydantic import ValidationError

        try:
            return model.model_validate(table)
        except ValidationError as error:
            for mistake in error.errors(include_url=False):
                self._note_key(model, at, mistake["loc"], mistake["type"], mistake["input"])
            return None

    def right_keys(self, model: type[T], table: Mapping[str, Any], at: KeyPath = ()) -> T:
        """The table by its schema, without the keys that are wrong, which are noted."""
        right = {key: value for key, value in table.items() if self.checked(model, {key: value}, at)}
        return model.model_validate(right)

    def _note_key(self, model: type[T], at: KeyPath, path: KeyPath, kind: str, value: object) -> None:
        name = str(path[0]) if path else str(at[0])
        rules = {known.alias or key: known.description for key, known in model.model_fields.items()}
        message: object = f"{name} is {rules.get(name, SIZES)}, got {value!r}; correct it"
        if not path or (not at and len(path) > 1):
            message = f"{name} holds tables, [[{name}]], got {value!r}; write it so"
        elif kind == "extra_forbidden" or (name not in rules and not isinstance(value, int | float | list)):
            message = UnknownName("key", name, rules)
        self.note((*at, *path), message)


# --- plans ---------------------------------------------


def read_plan(path: Path) -> Plan:
    """Reads and checks a plan.

    Args:
        path: A TOML file.

    Raises:
        PlanError: It cannot be read, or keys or values are wrong; the message names file, line and key of each.
    """
    document, complaints = document_of(_text(path), path)
    return plan_of(document, path.resolve(), complaints)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PlanError(f"a plan is a TOML file, {path} cannot be read: {reason}; check the path") from error


def document_of(text: str, path: Path) -> tuple[dict[str, Any], Complaints]:
    """The document of a plan's text, and what collects mistakes in it.

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
    document, complaints = document_of(_text(path), path)
    plan = plan_of({**document, "surveys": []}, path.resolve(), complaints)
    every = (item.problem for item in plan.items)
    problems = tuple(problem for problem in every if problem.operation.name == operation.name)
    if not problems:
        raise InputError(
            f"a survey's shapes are the problems of a plan, {path} has none of {operation.name}; add some"
        )
    return problems


def plan_of(document: Mapping[str, Any], path: Path, complaints: Complaints) -> Plan:
    """The plan of a document.

    Args:
        document: As parsed.
        path: Its file, absolute; files that it names are found beside it.
        complaints: Collects its mistakes.

    Raises:
        PlanError: Keys or values are wrong; the message names file, line and key of each.
    """
    from tuner.night import plan_schema as schema

    plan = complaints.right_keys(schema.PlanTable, document)
    defaults = complaints.right_keys(schema.DefaultsTable, plan.defaults, ("defaults",))
    watch = complaints.right_keys(schema.WatchTable, plan.watch, ("watch",))
    if not (document.get("problems") or document.get("surveys") or document.get("wanted")):
        rule = "a plan has one or more [[problems]] tables, got none under the key problems"
        complaints.note(("problems",), f"{rule}; add one, or [[surveys]], or wanted = 20")
    _check_defaults(defaults, complaints)
    items, surveys = dict[object, PlanItem](), list[SurveyItem]()
    for index, own in enumerate(plan.problems):
        at = ("problems", index)
        with complaints.noting(at, defaults=defaults.model_fields_set - own.keys()):
            problem = complaints.checked(schema.ProblemTable, own, at)
            if problem is None:
                right = complaints.right_keys(schema.ProblemTable, own, at)
                if right.operation or right.file:
                    _declared(right, path.parent)
            for item in _problems(problem, defaults, path.parent) if problem else ():
                items.setdefault(item.key, item)
            _check_count(len(items))
    for index, own in enumerate(plan.surveys):
        at = ("surveys", index)
        with complaints.noting(at):
            survey = complaints.checked(schema.SurveyTable, own, at)
            surveys += [_survey(survey, defaults, path.parent)] if survey else []
    if plan.since and not plan.until:
        complaints.note(("from",), "from goes with until, got none; say when the night ends")
    complaints.check()
    since, until = (clock_time(clock) if clock else None for clock in (plan.since, plan.until))
    return Plan(
        path, tuple(items.values()), watch, defaults, since, until, plan.seconds, tuple(surveys), plan.wanted
    )


def _check_defaults(defaults: DefaultsTable, complaints: Complaints) -> None:
    """Checks device and sampler; the library of most samplers is loaded only for theirs."""
    device, sampler = defaults.device, defaults.sampler
    # Models and patterns of models are for fleets; both have what no misspelt "cuda:0" has.
    if not is_spec(device) and not set(" *") & set(device):
        rule = "device is cpu, cuda or cuda:N, or a model for a fleet"
        complaints.note(("defaults", "device"), f"{rule}, got {device!r}; `tuner devices` lists those found")
    if sampler != "tile":
        from tuner.search.search import SAMPLERS

        if sampler not in SAMPLERS:
            complaints.note(("defaults", "sampler"), UnknownName("sampler", sampler, SAMPLERS))


@contextlib.contextmanager
def _at(key: str, prefix: bool = True) -> Iterator[None]:
    """Says of an error of the block at which key of its table it is."""
    try:
        yield
    except InputError as error:
        raise PlanError(f"{key}: {error}" if key and prefix else str(error), key=key) from error


def _problems(own: ProblemTable, defaults: DefaultsTable, folder: Path) -> Iterator[PlanItem]:
    """The problems of a table.

    Raises:
        InputError: Something is wrong; a `PlanError` names its key.
    """
    (catalogue, operation, file), table = _declared(own, folder), own.over(defaults)
    kernels = tuple(table.kernels or ())
    with _at("kernels", prefix=False):
        catalogue.of(operation.name, only=kernels)
    words = [
        _several(table, "dtype", operation.dtypes), _several(table, "layout", operation.layouts),
        _several(table, "precision", PRECISIONS), _several(table, "epilogue"),
    ]  # fmt: skip
    with _at("objective"):
        objectives = read_objectives(TIME if table.objective is None else table.objective)
        if len(objectives) > 1 and defaults.sampler not in SEVERAL:
            rule = f"several objectives need one of the samplers {', '.join(SEVERAL)}"
            raise InputError(f"{rule}, got sampler {defaults.sampler!r}; choose tile")
    seconds, trials = budget(table.seconds, table.trials)
    limit = read_error_limit(table.error_limit)
    with _at("bits"):
        bits = read_bits(table.bits)
    for key, shape in _shapes(table, operation):
        for chosen in itertools.product(*words):
            with _at(key):
                problem = operation.problem(shape, *chosen)
                _check_sizes(problem)
            with _at("invariant"):
                check_invariant(problem, table.invariant or "", bits, objectives)
            yield PlanItem(
                problem, catalogue, file, table.regime or "cold", kernels, seconds, trials, objectives,
                limit_for(problem.precision, limit), bits, table.invariant or "",
                devices=tuple(table.devices or ()),
            )  # fmt: skip


def _survey(table: SurveyTable, defaults: DefaultsTable, folder: Path) -> SurveyItem:
    """The survey of a table.

    Raises:
        InputError: Something is wrong; a `PlanError` names its key.
    """
    catalogue, operation, _ = _declared(table, folder)
    with _at("kernels", prefix=False):
        catalogue.of(operation.name, only=tuple(table.kernels))
    _check_names("layouts", table.layouts, operation.layouts_of.get(table.dtype, operation.layouts))
    _check_names("dtype", filter(None, [table.dtype]), operation.dtypes)
    _check_names("most", table.most, operation.dims)
    problems: tuple[Problem, ...] = ()
    if table.shapes is not None:
        with _at("shapes"):
            problems = listed_problems(_beside(folder, table.shapes), operation)
    elif not table.drawn:
        raise PlanError("drawn = false goes with shapes, got none; name a plan in shapes", key="drawn")
    return SurveyItem(operation, catalogue, problems, table, table.regime or defaults.regime or "")


def _declared(table: ProblemTable | SurveyTable, folder: Path) -> tuple[Catalogue, Operation, Path | None]:
    """A table's catalogue, its operation, and the user's file if it names one."""
    name, file, catalogue = table.operation, None, builtin_now()
    if table.file is not None:
        file = _beside(folder, table.file)
        with _at("file"):
            catalogue = from_file(file)
            name = name or _only_operation(catalogue, file)
    if name is None:
        raise InputError("operation: a problem has operation or file, got neither; add one")
    with _at("operation"):
        return catalogue, catalogue.operation(name), file


def _beside(folder: Path, path: str) -> Path:
    """A path that counts from the plan's folder."""
    return (folder / Path(path).expanduser()).resolve()


def _only_operation(catalogue: Catalogue, file: Path) -> str:
    """The operation of a user's file, which says it itself if its kernels are of one."""
    names = sorted({kernel.operation for kernel in catalogue.kernels if kernel.source.declared_in == file})
    if len(names) > 1:
        raise InputError(f"the file has kernels of {' and '.join(names)}; add operation to say which")
    return names[0]


def _check_names(key: str, names: Iterable[str], known: Iterable[str], what: str = "") -> None:
    for name in names:
        if name not in known:
            raise PlanError(str(UnknownName(what or key, name, known)), key=key)


def _check_count(count: int) -> None:
    if count > MAX_PROBLEMS:
        raise InputError(f"a plan has at most {MAX_PROBLEMS} problems, got {count}; use fewer sizes")


def _several(table: ProblemTable, key: str, known: tuple[str, ...] = ()) -> list[str]:
    """A problem's dtypes, layouts...; empty for the usual one if it says nothing. ``none`` is no epilogue."""
    one, several = getattr(table, key), getattr(table, f"{key}s")
    if one is not None and several is not None:
        raise PlanError(f"{key} and {key}s exclude each other, got both; keep one", key=f"{key}s")
    names = several or [one or ("" if known else "none")]
    if known:
        _check_names(f"{key}s" if several else key, filter(None, names), known, key)
        return names
    with _at(f"{key}s" if several else key):
        return [Epilogue.read("" if text == "none" else text).text for text in names]


def _shapes(table: ProblemTable, operation: Operation) -> Iterator[tuple[str, dict[str, int]]]:
    """Yields shapes, each with the key that gives it; without one if dims are keys."""
    by_name, dims = table.__pydantic_extra__, operation.dims
    for name in by_name.keys() - set(dims):
        raise PlanError(str(UnknownName("key", name, (*type(table).model_fields, *dims))), key=name)
    ways = [way for way in ("shape", "shapes", "squares", "set") if getattr(table, way) is not None]
    ways += list(by_name)[:1]
    if len(ways) != 1:
        rule = f"a problem has one of shape, shapes, squares, set or {' '.join(dims)} by name"
        got = f"{' and '.join(ways)}; keep one" if ways else "none; add one"
        raise PlanError(f"{rule}, got {got}", key=ways[1] if ways else "")
    (key,) = ways
    if key == "squares":
        yield from ((key, dict.fromkeys(dims, size)) for size in table.squares or ())
    elif key in ("shape", "shapes"):
        for sizes in table.shapes or [table.shape or []]:
            with _at(key):
                shape = operation.named(sizes)
            yield key, shape
    else:
        of_dims = (table.set or by_name).items()
        grid = {name: sizes if isinstance(sizes, list) else [sizes] for name, sizes in of_dims}
        with _at(key, prefix=False):
            _check_count(math.prod(map(len, grid.values())))
        for values in itertools.product(*grid.values()):
            yield "" if key in dims else key, dict(zip(grid, values, strict=True))


def _check_sizes(problem: Problem) -> None:
    """Refuses dims that kernels cannot take, before a device is opened for them.

    Raises:
        InputError: A dim exceeds the largest integer that kernels accept.
    """
    try:
        _ = problem.scalars
    except InputError:
        raise
    except Exception:
        # A wrong declaration is reported with the problem that exposes it, when that problem is tuned.
        return
