"""`tuner.tune`: tunes a problem, a declared kernel or a function of your own, from Python."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from tuner.declare.catalogue import Catalogue
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.devices.settings import setting
from tuner.errors import InputError, UnknownName
from tuner.requests.arguments import device_of
from tuner.requests.launching import run_shown
from tuner.requests.resolving import is_own, resolved
from tuner.requests.studies import StudyOptions, asked
from tuner.requests.tuned import Tuned
from tuner.study.progress import Progress


class ProblemOptions(TypedDict, total=False):
    """What names a problem of a declared operation, beside its name.

    Attributes:
        shape: Dim -> size, or the sizes in order, for a file of declarations and for a declared kernel.
        dtype: Element type; by default the operation's first.
        layout: e.g. ``nt``; by default the operation's first.
        precision: ``ieee``, or ``emulated``.
        epilogue: What is done to the result, such as ``bias-col+gelu``.
    """

    shape: Mapping[str, int] | Sequence[int]
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
        numbers: Names of whole numbers that are no sizes, such as a step's number: one config serves all their
            values. Floating-point numbers are none anyway.
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
    numbers: Sequence[str]
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
        what: A problem in words, a `tuner.Problem`, a file of declarations, a `tuner.Kernel` (which then
            competes alone) or a `tuner.Operation` of such a file, CUDA text, or a function.
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
    _check_options(what, name, arguments, params, options)
    catalogue, problem = resolved(what, name, arguments, params, options)
    if not options.get("device"):
        options["device"] = default_device(_targets(catalogue, problem, what), arguments)
    told = StudyOptions(**{key: options[key] for key in _STUDY if key in options})  # type: ignore[literal-required,typeddict-item]
    if isinstance(what, Kernel):
        told.setdefault("kernels", (what.name,))
    return run_shown(asked(catalogue, problem, told), options.get("progress", True))


def _check_options(what: object, name: str, arguments: object, params: object, options: Options) -> None:
    """Refuses options that do not go with what is tuned.

    Raises:
        UnknownName: There is no such option.
        InputError: One goes with something else.
    """
    refuse_unknown(options, Options.__annotations__)
    if is_own(what, arguments, params):
        wrong = [option for option in ProblemOptions.__annotations__ if option in options]
        if wrong:
            raise InputError(
                f"{wrong[0]}= goes with a declared operation; a kernel of your own has the sizes and dtypes of "
                "its arguments, and shapes= says which size an extent is; leave it out"
            )
        return
    wrong = [option for option in OWN if option in options]
    given = (("arguments", arguments), ("params", params), ("name", name or None))
    wrong += [option for option, value in given if value is not None]
    if wrong:
        raise InputError(
            f"{wrong[0]} goes with a kernel of your own, given as CUDA text or as a function, "
            "with arguments and params; leave it out"
        )


def refuse_unknown(options: Iterable[str], known: Collection[str], kind: str = "option") -> None:
    """Refuses options by names that nobody knows.

    Raises:
        UnknownName: There is no such option; the message says which are alike.
    """
    for option in options:
        if option not in known:
            raise UnknownName(kind, option, known)


def _targets(catalogue: Catalogue, problem: Problem, what: object) -> set[str]:
    return (
        {what.target}
        if isinstance(what, Kernel)
        else {each.target for each in catalogue.of(problem.operation.name)}
    )


def default_device(targets: Collection[str], arguments: object) -> str:
    """Where a problem is tuned if nobody says: on the CPU if all kernels are for it, or where its arrays are.

    Args:
        targets: Of the problem's kernels.
        arguments: Of a kernel of one's own; None for others.

    Returns:
        A device; empty for the one that is used where none is named.
    """
    told = str(setting("device", "tune") or "")
    if set(targets) == {"cpu"}:
        return "cpu" if arguments is not None else told or "cpu"
    if arguments is None:
        return told
    found = device_of(arguments.values() if isinstance(arguments, Mapping) else arguments, "cuda")
    return told or found if found == "cuda:0" else found


def tune_problem(problem: Problem, options: StudyOptions, progress: bool) -> Tuned:
    """Tunes a problem of a declared operation; see `tune`."""
    catalogue, problem = resolved(problem, "", None, None, {})
    return run_shown(asked(catalogue, problem, options), progress)
