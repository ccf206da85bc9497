"""`tuner.tune`: problems, declared kernels and functions of one's own."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

from tuner.declare.catalogue import Catalogue, being_read, builtin, from_file
from tuner.declare.folders import kernels_folder
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation, Problem
from tuner.devices.detect import gpus, kind_of
from tuner.devices.settings import setting
from tuner.errors import DeclarationError, DeviceTrouble, InputError, Interrupted, UnknownName
from tuner.extras import provided, required
from tuner.lookup.asking import parse_key
from tuner.python.own_kernel import KernelCode, is_cuda
from tuner.python.running import device_of
from tuner.python.tuned import Tuned
from tuner.results.record import ProblemKey
from tuner.store import Store, retracting
from tuner.study.locks import occupied
from tuner.study.progress import Progress, ProgressView, Result
from tuner.study.requests import Asked, StudyOptions, asked
from tuner.study.study import run_study

#: Options of a problem beside its shape, in the order in which `Operation.problem` takes them.
_HOW = ("dtype", "layout", "precision", "epilogue")


def resolved(
    what: object, name: str = "", arguments: object = None, params: object = None, **options: Any
) -> tuple[Catalogue, Problem]:
    """The problem that a call of `tuner.tune` is about, and the catalogue with its kernels.

    Args:
        what: What `tuner.tune` takes first.
        name: Name of a function in CUDA text.
        arguments: Of a kernel of one's own.
        params: Of a kernel of one's own.
        options: See `ProblemOptions` and `OwnOptions`.

    Raises:
        InputError: It is about none, or it names something that is not there.
        DeclarationError: A declaration cannot be read, or is being read now.
    """
    reading = being_read()
    if reading is not None:
        raise DeclarationError(
            f"{reading} is read as declarations, by workers too, and calls tune meanwhile; put the call behind "
            'if __name__ == "__main__":'
        )
    if is_own(what):
        code = code_of(what, name, params, options)
        if arguments is None:
            raise InputError(
                f"{code.name} is tuned on arguments like those of a call, got none; give arguments="
            )
        return code.problem(code.bound(arguments))
    if isinstance(what, Problem):
        catalogue, key = _catalogue_of(what.operation), ProblemKey.of(what)
        return catalogue, key.of_operation(catalogue.operation(key.operation))
    if isinstance(what, Kernel):
        catalogue = _catalogue_of(what)
        catalogue.of(what.operation, what.target, (what.name,))  # or say that it is none of the file's
        return catalogue, _problem(catalogue.operation(what.operation), options)
    if isinstance(what, Operation):
        catalogue = _catalogue_of(what)
        return catalogue, _problem(catalogue.operation(what.name), options)
    if str(what).endswith(".py"):
        catalogue = from_file(Path(str(what)))
        return catalogue, _problem(catalogue.operations[catalogue.kernels[-1].operation], options)
    words, catalogue = [str(what), *(str(options[key]) for key in _HOW if options.get(key))], builtin()
    key = parse_key(" ".join(words), catalogue)
    return catalogue, key.of_operation(catalogue.operation(key.operation))


def code_of(what: object, name: str, params: object, options: Mapping[str, Any]) -> KernelCode:
    """A kernel that is given as code; an extra may read functions of other languages, as ``function``."""
    others = [kind for kind in provided("function") if kind.reads(what)]
    code: KernelCode = (*others, KernelCode)[0](what, name, params, options)
    return code


def is_own(what: object) -> bool:
    """True for a kernel that is given as code, rather than declared."""
    return callable(what) or (isinstance(what, str | Path) and is_cuda(what))


def _problem(operation: Operation, options: Mapping[str, Any]) -> Problem:
    """A problem of an operation, whose sizes are given by name or in order.

    Raises:
        InputError: The sizes are not those of the operation.
    """
    shape = options.get("shape") or {}
    if not isinstance(shape, Mapping):
        shape = operation.named([shape] if isinstance(shape, int) else list(shape))
    return operation.problem(shape, *(options.get(key) or "" for key in _HOW))


def _catalogue_of(what: Kernel | Operation) -> Catalogue:
    """The catalogue of the file that declares a kernel or an operation, since workers load that.

    Raises:
        DeclarationError: No module with a file has it.
    """
    file = what.source.declared_in if isinstance(what, Kernel) else what.origin
    if file is None and isinstance(what, Operation):  # those of the project are made anew when they are read
        code = Path(getattr(getattr(what.tensors, "__code__", None), "co_filename", ""))
        file = code if code.is_relative_to(kernels_folder()) else None
    file = file or _file_of(what)
    return builtin() if file.is_relative_to(kernels_folder()) else from_file(file)


def _file_of(what: Kernel | Operation) -> Path:
    """The file of the module that has a declared object, as a variable or in a list; scripts come last."""
    files = []
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "")
        values = list(vars(module).values()) if file.suffix == ".py" else []
        several = [value for value in values if type(value) in (tuple, list)]
        if any(what is value for value in itertools.chain(values, *several)):
            beside = isinstance(what, Kernel) and not (file.parent / what.source.file).is_file()
            files.append((beside, module.__name__ == "__main__", file.resolve()))
    if not files:
        raise DeclarationError(
            f"workers load a declaration from its file, and no module with a file has {what.name!r}; write it "
            f"to a file, e.g. {what.name}.py, import it from there, or give its path"
        )
    return min(files)[-1]


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


def tune(
    what: object, name: object = "", arguments: object = None, params: object = None, **options: Unpack[Options]
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
        name: Name of the function in CUDA text; may be left out before the arguments of a function.
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
    if not isinstance(name, str):  # tune(function, [x, y, n], params): a function has its own name
        name, arguments, params = "", name, arguments if params is None else params
    given = {"name": name or None, "arguments": arguments, "params": params}
    _check_options(what, {key: value for key, value in given.items() if value is not None} | options)
    catalogue, problem = resolved(what, name, arguments, params, **options)
    kernels = catalogue.of(problem.operation.name)
    if isinstance(what, Kernel):
        options.setdefault("kernels", (what.name,))
        kernels = (what,)
    if not options.get("device"):
        options["device"] = _default_device({kernel.kind for kernel in kernels}, arguments)
    # The options of the study are among these; it reads no other.
    study = asked(catalogue, problem, cast(StudyOptions, options))
    return run_shown(study, options.get("progress", True))


def _check_options(what: object, options: Mapping[str, Any]) -> None:
    """Refuses options that do not go with what is tuned.

    Raises:
        UnknownName: There is no such option.
        InputError: One goes with something else.
    """
    arguments = ("name", "arguments", "params")
    refuse_unknown(options, [*arguments, *Options.__annotations__])
    if is_own(what):
        others, goes = [*ProblemOptions.__annotations__], "a declared operation; shapes= has a kernel's extents"
    else:
        others = [*arguments, *OwnOptions.__annotations__]
        goes = "a kernel of your own, given as CUDA text or as a function"
    for option in others:
        if option in options:
            raise InputError(f"{option} goes with {goes}; leave it out")


def refuse_unknown(options: Iterable[str], known: Collection[str], kind: str = "option") -> None:
    """Refuses options by names that nobody knows.

    Raises:
        UnknownName: There is no such option; the message says which are alike.
    """
    for option in options:
        if option not in known:
            raise UnknownName(kind, option, known)


def _default_device(on: Collection[str], arguments: object) -> str:
    """Where a problem is tuned if nobody says: on the CPU if all kernels are for it, or where its arrays are.

    Args:
        on: Kinds of device of the problem's kernels.
        arguments: Of a kernel of one's own; None for others.

    Returns:
        A device; empty for the one that is used where none is named.
    """
    usual = str(setting("device", "tune") or "")
    kinds = list(map(kind_of, on))
    if all(kind.is_host for kind in kinds):
        return kinds[0].first if arguments is not None else usual or kinds[0].first
    if arguments is None or (usual and not gpus()):
        return usual
    if not gpus():
        raise DeviceTrouble(
            "CUDA needs an NVIDIA GPU and its driver, found none (see `tuner doctor`); for a CPU write "
            "a function that Numba compiles"
        )
    device = device_of(arguments.values() if isinstance(arguments, Mapping) else arguments, "cuda")
    return usual or device if device == "cuda:0" else device


def run(asked: Asked, report: Callable[[Progress], None], warn: Callable[[str], None]) -> Result:
    """Runs a study, with its devices held for its database.

    Args:
        asked: The study.
        report: Called a few times a second.
        warn: Told what a user should know of the database.

    Raises:
        NothingFound: No config is legal.
        InputError: The problem does not fit into memory, or the device cannot measure an objective.
        EnvironmentTrouble: A device or the database cannot be used, or another process has them.
        Interrupted: SIGINT or SIGTERM came; finished trials are kept.
    """
    request = asked.request
    with Store.open(asked.db) as store:
        if ahead := retracting.ahead(store):  # before its champions meet others
            warn(f"{ahead}; {retracting.AHEAD_REMEDY}")
        with occupied(asked.db, request.found, f"tune {request.problem}"):
            return (required("invariant") if request.invariant else run_study)(request, store, report)


def run_shown(study: Asked, progress: bool | Callable[[Progress], None]) -> Tuned:
    """Runs a study with its progress shown, and gathers its trials.

    Raises:
        KeyboardInterrupt: It was interrupted before anything was measured, or twice.
    """
    last = Progress()
    view = ProgressView(study.request.problem, progress is not True, study.request.trials)

    def report(now: Progress) -> None:
        nonlocal last
        last = now
        (progress if callable(progress) else view)(now)

    try:
        with view:
            result = run(study, report, lambda text: warnings.warn(text, UserWarning, stacklevel=3))
    except Interrupted as interrupted:
        if interrupted.twice or not last.trials:
            raise KeyboardInterrupt(str(interrupted)) from interrupted
        print(f"tuner: {interrupted}", file=sys.stderr)
        return Tuned.of_study(study, replace(last), None, str(interrupted))
    return Tuned.of_study(study, replace(result.progress), result, result.stopped)
