"""`tuner.tune`: tunes a problem, a declared kernel or a function of your own, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from tuner.declare.catalogue import Catalogue, builtin, from_file
from tuner.declare.problem import Problem
from tuner.devices.settings import setting
from tuner.errors import InputError, UnknownName
from tuner.lookup.asking import parse_key
from tuner.requests.arguments import device_of
from tuner.requests.code import is_cuda, read_code
from tuner.requests.launching import run_shown
from tuner.requests.own import own_problem
from tuner.requests.studies import StudyOptions, asked
from tuner.requests.tuned import Tuned
from tuner.study.progress import Progress


class ProblemOptions(TypedDict, total=False):
    """What names a problem of a declared operation, beside its name.

    Attributes:
        shape: Dim -> size, for a file of declarations.
        dtype: Element type; by default the operation's first.
        layout: e.g. ``nt``; by default the operation's first.
        precision: ``ieee``, or ``emulated``.
        epilogue: What is done to the result, such as ``bias-col+gelu``.
    """

    shape: Mapping[str, int]
    dtype: str
    layout: str
    precision: str
    epilogue: str


class OwnOptions(TypedDict, total=False):
    """What is said of a kernel of one's own beside its code, arguments and parameters.

    Attributes:
        reference: Function that gives the right outputs from the inputs (NumPy arrays, float64). It takes the
            kernel's arguments by their names, or the inputs in order, and returns an array, or a tuple.
        answer: The right output instead, for the inputs as they were passed; several by name.
        outputs: Names of the arrays that the kernel writes; by default those that are not ``const`` in CUDA,
            those whose elements are set in Python.
        shapes: Array -> its extents: ``{"a": "m k", "b": "k n"}``; by default they are found by their sizes.
        restrictions: Rules that a config obeys, as expressions: ``"BLOCK * ITEMS <= n"``.
        grid: Blocks of a CUDA launch, as expressions: ``"ceil_div(n, BLOCK)"``, or a tuple of them.
        block: Threads of a block, likewise; by default the parameters ``block_size_x`` and so on.
        shared_bytes: Dynamic shared memory of a block, as an expression.
        problem_size: What the grid covers, as Kernel Tuner has it; `grid_div_x` and so on divide it.
        grid_div_x: Names of what divides the first size; by default ``block_size_x``.
        grid_div_y: Likewise.
        grid_div_z: Likewise.
        defaults: Values to try first.
        terms: Products that are summed into an element of the output, as an expression; it sets the tolerance.
        flops: Floating-point operations of a run, as an expression; without them speed is told in GB/s.
        inputs: How inputs are drawn for checks: ``drawn`` (normal numbers; whole numbers are drawn from your
            own), ``resampled`` (all from your own) or ``given`` (your own, as they are).
        library: What to time beside: a function like `reference` that runs on the device's arrays, or None.
            By default the reference, on a CPU.
    """

    reference: Callable[..., Any]
    answer: Any
    outputs: Sequence[str]
    shapes: Mapping[str, Any]
    restrictions: Sequence[str]
    grid: Any
    block: Any
    shared_bytes: Any
    problem_size: Any
    grid_div_x: Sequence[str]
    grid_div_y: Sequence[str]
    grid_div_z: Sequence[str]
    defaults: Mapping[str, Any]
    terms: str | int
    flops: str | float
    inputs: str
    library: Callable[..., Any] | None


class Options(ProblemOptions, OwnOptions, StudyOptions, total=False):
    """All options of `tune`.

    Attributes:
        progress: True to show progress where people see it, False for none, or a function that is called a few
            times a second with a `tuner.study.progress.Progress`.
    """

    progress: bool | Callable[[Progress], None]


#: Options that belong to a kernel of one's own.
OWN = tuple(OwnOptions.__annotations__)
_STUDY = tuple(StudyOptions.__annotations__)


def tune(
    what: object, name: str = "", arguments: object = None, params: object = None, **options: Unpack[Options]
) -> Tuned:
    """Finds the fastest config, and stores every measurement.

    ``tuner.tune("gemm 1024 1024 1024", seconds=60)`` tunes a built-in operation; ``tuner.tune("mine.py",
    shape={"n": 1000})`` one that a file declares. ``tuner.tune(source, "add", [out, a, b, n], {"BLOCK": [64,
    128]}, grid="ceil_div(n, BLOCK)", block="BLOCK", reference=numpy.add)`` tunes CUDA text, and
    ``tuner.tune(function, arguments=..., params=...)`` a function that Numba compiles.

    Kernels are compiled and run in processes of their own. Each is compared with the reference in float64, on
    fresh random inputs, before it is timed. Calling it again continues the study. In the main thread the first
    Ctrl-C ends the search, and what was found is returned (`Tuned.interrupted`); the second one raises.

    Args:
        what: A problem in words, a `tuner.Problem`, a file of declarations, CUDA text, or a function.
        name: Name of the function in CUDA text.
        arguments: Arrays and numbers that the kernel takes, in its order or by name, parameters left out.
        params: Parameter -> its values.
        options: See `ProblemOptions`, `OwnOptions`, `StudyOptions`; and `progress`.

    Returns:
        The champion, the trials, the library's time.

    Raises:
        InputError: What is asked for is wrong; the message says what would be right.
        NothingFound: No config is legal.
        EnvironmentTrouble: A device or the database cannot be used, or another process has them.
        KeyboardInterrupt: A second Ctrl-C, or one before anything was measured; finished trials are kept.
    """
    known = {**Options.__annotations__}
    for option in options:
        if option not in known:
            raise UnknownName("option", option, known)
    catalogue, problem = resolved(what, name, arguments, params, options)
    if arguments is not None and not options.get("device"):
        options["device"] = default_device(catalogue.of(problem.operation.name)[0].target, arguments)
    study = asked(catalogue, problem, StudyOptions(**{key: options[key] for key in _STUDY if key in options}))  # type: ignore[literal-required,typeddict-item]
    return run_shown(study, options.get("progress", True))


def default_device(target: str, arguments: object) -> str:
    """Where a kernel of one's own is tuned: a function on the CPU, CUDA text where its arrays are."""
    if target == "cpu":
        return "cpu"
    found = device_of(arguments.values() if isinstance(arguments, Mapping) else arguments, target)
    told = str(setting("device", "tune") or "")
    return told or found if found == "cuda:0" else found


def resolved(
    what: object, name: str, arguments: object, params: object, options: Mapping[str, Any]
) -> tuple[Catalogue, Problem]:
    """The problem that a call of `tune` is about, and the catalogue with its kernels.

    Raises:
        InputError: It is about none, or options are given that do not go with it.
    """
    own = arguments is not None or params is not None or (isinstance(what, str) and is_cuda(what))
    if own or (callable(what) and not isinstance(what, Problem)):
        return _own(what, name, arguments, params, options)
    wrong = [option for option in OWN if option in options]
    if wrong or name:
        raise InputError(
            f"{(wrong or ['name'])[0]} goes with a kernel of your own, given as CUDA text or as a function, "
            "with arguments and params; leave it out"
        )
    if isinstance(what, Problem):
        origin = what.operation.origin
        return (from_file(origin) if origin else builtin()), what
    if not isinstance(what, str | Path):
        raise InputError(
            f"what is tuned is a problem in words, a file, CUDA text or a function, got {type(what).__name__}"
        )
    if str(what).endswith(".py"):
        catalogue = from_file(Path(what))
        operation = catalogue.operations[catalogue.kernels[-1].operation]
        shape = options.get("shape") or {}
        how = (options.get(word) or "" for word in ("dtype", "layout", "precision", "epilogue"))
        return catalogue, operation.problem(shape, *how)
    catalogue = builtin()
    words = " ".join(
        [
            str(what),
            *(str(options[key]) for key in ("dtype", "layout", "precision", "epilogue") if options.get(key)),
        ]
    )
    key = parse_key(words, catalogue)
    return catalogue, key.of_operation(catalogue.operation(key.operation))


def tune_problem(problem: Problem, options: StudyOptions, progress: bool) -> Tuned:
    """Tunes a problem of a declared operation; see `tune`."""
    catalogue, problem = resolved(problem, "", None, None, {})
    return run_shown(asked(catalogue, problem, options), progress)


def _own(
    what: object, name: str, arguments: object, params: object, options: Mapping[str, Any]
) -> tuple[Catalogue, Problem]:
    """A kernel of a user's own, declared in a file that is written for it."""
    code = read_code(what, name, params)
    if arguments is None:
        raise InputError(f"{code.name} is tuned on arguments like those of a call, got none; give arguments=")
    _, problem = own_problem(code, arguments, options)
    assert problem.operation.origin is not None, "it was read from a file"
    return from_file(problem.operation.origin), problem
