"""Options that several commands share, and what they mean."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from tuner.declare.catalogue import Catalogue, builtin, from_file
from tuner.declare.problem import Operation, Problem
from tuner.devices.protocol import REGIMES
from tuner.errors import InputError
from tuner.lookup.asking import DEFAULT_DATABASE

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _suggests(names: Callable[[click.Context], Iterable[tuple[str, str]]], files: str = "") -> Completer:
    """A completer of names with a word of help each; it also lets the shell suggest files."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found: list[CompletionItem] = []
        with contextlib.suppress(Exception):  # nothing may be printed into the middle of a line
            found = [
                CompletionItem(name, help=told) for name, told in names(context) if name.startswith(incomplete)
            ]
        if files and not found:
            found.append(CompletionItem(incomplete, type="file"))
        return found

    return complete


def _target(context: click.Context) -> str:
    """The operation or file on the line; while an option lacks its value, arguments are still to be parsed."""
    found = context.params.get("target") or context.params.get("operation")
    return str(found or next(iter(context.args), ""))


def _operations(context: click.Context) -> Iterable[tuple[str, str]]:
    from tuner.declare.catalogue import builtin

    return [(name, " ".join(dim.upper() for dim in each.dims)) for name, each in builtin().operations.items()]


def _kernels(context: click.Context) -> Iterable[tuple[str, str]]:
    from pathlib import Path

    from tuner.declare.catalogue import builtin, from_file

    target = _target(context)
    catalogue = from_file(Path(target)) if target.endswith(".py") else builtin()
    found = [each for each in catalogue.kernels if target.endswith(".py") or target in ("", each.operation)]
    return list({each.name: each.idea for each in found}.items())


def _devices(context: click.Context) -> Iterable[tuple[str, str]]:
    from tuner.devices.detect import find, gpus

    return [("cuda", "every GPU"), *((each.spec, each.info.name) for each in (*gpus(), find("cpu")))]


def _samplers(context: click.Context) -> Iterable[tuple[str, str]]:
    from tuner.search import SAMPLERS

    return [(name, "") for name in SAMPLERS]


def _dtypes(context: click.Context) -> Iterable[tuple[str, str]]:
    from tuner.declare.catalogue import builtin

    operation = builtin().operations.get(_target(context))
    return [(name, "") for name in (operation.dtypes if operation else ())]


def _layouts(context: click.Context) -> Iterable[tuple[str, str]]:
    from tuner.declare.catalogue import builtin

    operation = builtin().operations.get(_target(context))
    return [(name, "") for name in (operation.layouts if operation else ()) if name]


#: What an argument or option of this name is completed with.
OPERATION = _suggests(_operations, files="*.py")
KERNEL, DEVICE, SAMPLER = _suggests(_kernels), _suggests(_devices), _suggests(_samplers)
DTYPE, LAYOUT = _suggests(_dtypes), _suggests(_layouts)


F = TypeVar("F", bound=Callable[..., object])


def problem_options(command: F) -> F:
    """``OPERATION DIM...``, or ``FILE.py --set name=value``, and dtype, layout, precision, regime."""
    for decorate in (
        regime_option,
        click.option(
            "--precision",
            default="",
            metavar="[ieee|emulated]",
            help="emulated allows any arithmetic that is as exact as the library's.  [default: ieee]",
        ),
        click.option(
            "--epilogue",
            default="",
            metavar="PART+PART",
            help="What is done to the result: alpha, beta, bias-row, bias-col, relu, gelu, gelu-tanh, silu, "
            "residual, joined by +.",
        ),
        click.option(
            "--layout", shell_complete=LAYOUT, default="", help="Layout, e.g. nn, nt, tn or tt for gemm."
        ),
        click.option(
            "--dtype", shell_complete=DTYPE, default="", help="Element type; default: the operation's first."
        ),
        click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a dim by name."),
        click.argument("dims", nargs=-1),
        click.argument("target", metavar="OPERATION|FILE.py", shell_complete=OPERATION),
    ):
        command = decorate(command)
    return command


def database_option(command: F) -> F:
    """``--db``, else ``TUNER_DB``, else a file in this folder."""
    decorate = click.option(
        "--db", envvar="TUNER_DB", default=DEFAULT_DATABASE, show_default=True, metavar="URL",
        help="Database; the variable TUNER_DB sets it, too.",
    )  # fmt: skip
    return decorate(command)


def regime_option(command: F) -> F:
    """``--regime``: how time is taken."""
    decorate = click.option(
        "--regime", type=click.Choice(REGIMES), default="cold", help="How time is taken."
    )  # fmt: skip
    return decorate(command)


def usual_regime_option(command: F) -> F:
    """``--regime`` of surveys and models: how time is taken; None for what is usual on the device."""
    decorate = click.option(
        "--regime", type=click.Choice(REGIMES), default=None,
        help="How time is taken; cold on a GPU, hot on a CPU unless given.",
    )  # fmt: skip
    return decorate(command)


def subject_options(command: F) -> F:
    """``--device``, ``--dtype`` and ``--regime``: which known times to use."""
    for decorate in (
        click.option("--regime", type=click.Choice(REGIMES), default=None,
                     help="How time was measured; default: cold, or another regime if nothing was timed cold."),
        click.option("--dtype", default="", help="Element type; default: the operation's first."),
        click.option("--device", shell_complete=DEVICE, default="",
                     help='cpu, cuda:N, or a name such as "NVIDIA H200".'),
    ):  # fmt: skip
        command = decorate(command)
    return command


def device_option(text: str) -> Callable[[F], F]:
    """``--device``: which one, with its help."""
    return click.option("--device", shell_complete=DEVICE, default="", help=text)


def folder_option(text: str) -> Callable[[F], F]:
    """``-o``: the folder to write to, with its help."""
    return click.option("-o", "folder", type=click.Path(path_type=Path), help=text)


def json_option(command: F) -> F:
    """``--json``: one JSON document on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def output_options(command: F) -> F:
    """``-v``, ``-q`` and ``--log``: what is told of a run while it goes on."""
    for decorate in (
        click.option(
            "--log", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
            help="Append what happens to FILE, as lines of JSON.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="Show no progress on stderr."),
        click.option("-v", "--verbose", is_flag=True, help="Tell each new best, and each kind of failure."),
    ):  # fmt: skip
        command = decorate(command)
    return command


def dry_run_option(command: F) -> F:
    """``--dry-run``: only tell what would be done."""
    return click.option(
        "--dry-run", is_flag=True, help="Tell what would be done, and how long it takes; touch no device."
    )(command)


def objective_option(command: F) -> F:
    """``--objective``: what to minimise, `time` alone or with others."""
    decorate = click.option(
        "--objective", default="time", show_default=True, metavar="time[,energy][,error]",
        help="Objectives to minimise; several keep a Pareto front.",
    )  # fmt: skip
    return decorate(command)


def error_limit_option(command: F) -> F:
    """``--error-limit``: the largest error that a champion may have."""
    decorate = click.option(
        "--error-limit", type=float, metavar="FACTOR",
        help="Crown no config whose rms error is more than FACTOR (1 or more) times the library's.",
    )  # fmt: skip
    return decorate(command)


def writable_folder(folder: Path) -> None:
    """Makes a folder for ``-o``. Called before the work, so that a folder without access costs no time.

    Raises:
        InputError: It cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".tuner"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"-o takes a folder that can be written, got {folder} ({error.strerror or error}); choose another"
        ) from error


def writable_file(file: Path | None) -> None:
    """Makes the folder of a file to write, before the work; does nothing for None.

    Raises:
        InputError: It cannot be written.
    """
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise InputError(
            f"the output is a file that can be written, got {file} ({error.strerror or error}); choose another"
        ) from error


def parse_problem(
    target: str, dims: Sequence[str], sets: Sequence[str], *words: str
) -> tuple[Catalogue, Problem]:
    """The problem that the arguments name, and the catalogue that has its kernels.

    Args:
        target: Name of an operation, or a user's file.
        dims: Sizes in the operation's order.
        sets: ``name=size``.
        words: Dtype, layout, precision and epilogue, as many as there are.

    Raises:
        InputError: They name no problem; the message says why.
    """
    if target.endswith(".py") or os.sep in target:
        catalogue = from_file(Path(target))
        operation = _own_operation(catalogue)
    else:
        catalogue = builtin()
        operation = catalogue.operation(target)
    return catalogue, operation.problem(_shape(operation, dims, sets), *words)


def _own_operation(catalogue: Catalogue) -> Operation:
    """The operation of a user's file: the one that its last kernel is for."""
    return catalogue.operations[catalogue.kernels[-1].operation]


def _shape(operation: Operation, dims: Sequence[str], sets: Sequence[str]) -> dict[str, int]:
    shape: dict[str, int] = {}
    names = " ".join(name.upper() for name in operation.dims)
    if dims and len(dims) != len(operation.dims):
        raise InputError(f"{operation.name} takes {names}: {len(operation.dims)} dims, got {len(dims)}")
    for name, text in zip(operation.dims, dims, strict=False):
        shape[name] = _whole(name, text)
    by_place = bool(dims)
    for pair in sets:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, got {pair!r}; give e.g. --set {operation.dims[0]}=1000")
        if name in shape:
            where = "by its place and by --set" if by_place else "by --set more than once"
            raise InputError(
                f"a dim has one size, {name} is given {where}: {shape[name]} and {text}; keep one of them"
            )
        shape[name] = _whole(name, text)
    return shape


def _whole(name: str, text: str) -> int:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise InputError(f"a dim is a whole number of 1 or more, got {name}={text!r}") from None
