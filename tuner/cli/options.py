"""Options that several commands share, and what they mean."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tuner.declare.catalogue import Catalogue, builtin, from_file
from tuner.declare.problem import Operation, Problem
from tuner.devices.protocol import REGIMES
from tuner.errors import InputError
from tuner.lookup.asking import DEFAULT_DATABASE

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _suggests(names: Callable[[str], Iterable[str]], files: bool = False) -> Completer:
    """A completer of names that fit the operation or file on the line; it also lets the shell suggest files."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        # While an option lacks its value, arguments are still to be parsed.
        target = context.params.get("target") or context.params.get("operation") or next(iter(context.args), "")
        items: list[CompletionItem] = []
        with contextlib.suppress(Exception):  # nothing may be printed into the middle of a line
            items = [CompletionItem(name) for name in names(str(target)) if name.startswith(incomplete)]
        return items or ([CompletionItem(incomplete, type="file")] if files else [])

    return complete


def _kernels(target: str) -> Iterable[str]:
    if target.endswith(".py"):
        return [kernel.name for kernel in from_file(Path(target)).kernels]
    return dict.fromkeys(kernel.name for kernel in builtin().kernels if target in ("", kernel.operation))


def _devices(target: str) -> Iterable[str]:
    from tuner.devices.detect import own_devices

    return "cuda", *(device.spec for device in own_devices())


def _samplers(target: str) -> Iterable[str]:
    from tuner.search import SAMPLERS

    return SAMPLERS


#: What an argument or option of this name is completed with.
OPERATION = _suggests(lambda target: builtin().operations, files=True)
KERNEL, DEVICE, SAMPLER = _suggests(_kernels), _suggests(_devices), _suggests(_samplers)

F = TypeVar("F", bound=Callable[..., object])
_REGIME = click.Choice(REGIMES)


def together(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator for several options and arguments, in the order in which ``--help`` shows them."""

    def decorate(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def device_option(text: str) -> Callable[[F], F]:
    """``--device``: which one, with its help."""
    return click.option("--device", shell_complete=DEVICE, default="", help=text)


#: ``--regime``: how time is taken.
regime_option = click.option("--regime", type=_REGIME, default="cold", help="How time is taken.")
#: ``--precision``: what arithmetic is allowed.
precision_option = click.option(
    "--precision", default="", metavar="[ieee|emulated]",
    help="emulated allows any arithmetic that is as exact as the library's.  [default: ieee]",
)  # fmt: skip
#: ``--epilogue``: what is done to the result.
epilogue_option = click.option(
    "--epilogue", default="", metavar="PART+PART",
    help="What is done to the result: alpha, beta, bias-row, bias-col, relu, gelu, gelu-tanh, silu, "
    "residual, joined by +; of 8-bit numbers scale-tensor, scale-line or scale-block, too.",
)  # fmt: skip
#: ``OPERATION DIM...``, or ``FILE.py --set name=value``, and dtype, layout, precision, regime.
problem_options = together(
    click.argument("target", metavar="OPERATION|FILE.py", shell_complete=OPERATION),
    click.argument("dims", nargs=-1),
    click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a dim by name."),
    click.option(
        "--dtype", shell_complete=_suggests(lambda target: builtin().operation(target).dtypes), default="",
        help="Element type; default: the operation's first.",
    ),
    click.option(
        "--layout", shell_complete=_suggests(lambda target: builtin().operation(target).layouts), default="",
        help="Layout, e.g. nn, nt, tn or tt for gemm.",
    ),
    epilogue_option,
    precision_option,
    regime_option,
)  # fmt: skip
#: ``--db``, else ``TUNER_DB``, else a file in this folder.
database_option = click.option(
    "--db", envvar="TUNER_DB", default=DEFAULT_DATABASE, show_default=True, metavar="URL",
    help="Database; the variable TUNER_DB sets it, too.",
)  # fmt: skip
#: ``--regime`` of surveys and models; None for what is usual on the device.
usual_regime_option = click.option(
    "--regime", type=_REGIME, help="How time is taken; cold on a GPU, hot on a CPU unless given."
)
#: ``--device``, ``--dtype`` and ``--regime``: which known times to use.
subject_options = together(
    device_option('cpu, cuda:N, or a name such as "NVIDIA H200".'),
    click.option("--dtype", default="", help="Element type; default: the operation's first."),
    click.option(
        "--regime", type=_REGIME,
        help="How time was measured; default: cold, or another regime if nothing was timed cold.",
    ),
)  # fmt: skip
#: ``--json``: one JSON document on stdout.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
#: ``--db`` and ``--json``, of commands that print what is stored.
data_options = together(database_option, json_option)
#: ``--dry-run``, what is told of a run while it goes on, ``--db`` and ``--json``.
run_options = together(
    click.option(
        "--dry-run", is_flag=True, help="Tell what would be done, and how long it takes; touch no device."
    ),
    click.option("-v", "--verbose", is_flag=True, help="Tell each new best, and each kind of failure."),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress on stderr."),
    click.option(
        "--log", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
        help="Append what happens to FILE, as lines of JSON.",
    ),
    data_options,
)  # fmt: skip
#: ``--error-limit``: the largest error that a champion may have.
error_limit_option = click.option(
    "--error-limit", type=float, metavar="FACTOR",
    help="Crown no config whose rms error is more than FACTOR (1 or more) times the library's.",
)  # fmt: skip


def invariant_option(text: str) -> Callable[[F], F]:
    """``--invariant``: the dim that must not change the bits of a row, with its help."""
    return click.option("--invariant", metavar="m", default="", help=text)


def kernels_option(text: str) -> Callable[[F], F]:
    """``--kernel``: which ones, with its help; may be given several times."""
    return click.option("--kernel", "kernels", shell_complete=KERNEL, multiple=True, help=text)


def folder_option(text: str) -> Callable[[F], F]:
    """``-o``: the folder to write to, with its help."""
    return click.option("-o", "folder", type=click.Path(path_type=Path), help=text)


def objective_option(default: str, text: str) -> Callable[[F], F]:
    """``--objective``: what to minimise, `time` alone or with others."""
    return click.option(
        "--objective", default=default, show_default=True, metavar="time[,energy][,error]", help=text
    )


def writable_folder(folder: Path) -> None:
    """Makes a folder for ``-o``. Called before the work, so that a folder without access costs no time.

    Raises:
        InputError: It cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or error
        raise InputError(
            f"-o takes a folder that can be written, got {folder} ({why}); choose another"
        ) from error


def writable_file(file: Path | None) -> None:
    """Makes the folder of a file to write, before the work; does nothing for None.

    Raises:
        InputError: It cannot be written.
    """
    if file is not None and file.is_dir():
        raise InputError(f"the output is a file that can be written, got the folder {file}; choose another")
    if file is not None:
        writable_folder(file.parent)


def parse_problem(
    target: str, dims: Sequence[str], sets: Sequence[str], *words: str
) -> tuple[Catalogue, Problem]:
    """The problem that the arguments name, and the catalogue that has its kernels.

    Args:
        target: Name of an operation, or a user's file, of which the operation of the last kernel counts.
        dims: Sizes in the operation's order.
        sets: ``name=size``.
        words: Dtype, layout, precision and epilogue, as many as there are.

    Raises:
        InputError: They name no problem; the message says why.
    """
    is_file = target.endswith(".py") or os.sep in target
    catalogue = from_file(Path(target)) if is_file else builtin()
    operation = catalogue.operation(catalogue.kernels[-1].operation if is_file else target)
    return catalogue, operation.problem(read_shape(operation, dims, sets), *words)


def named_problem(options: Mapping[str, Any]) -> tuple[Catalogue, Problem]:
    """The problem that `problem_options` name; see `parse_problem`."""
    names = ("target", "dims", "sets", "dtype", "layout", "precision", "epilogue")
    return parse_problem(*(options[name] for name in names))


def read_shape(operation: Operation, dims: Sequence[str], sets: Sequence[str]) -> dict[str, int]:
    """The size of each dim that is given by its place or as ``name=size``.

    Raises:
        InputError: There are more or fewer than the operation has, one is given twice, or is no whole number.
    """
    shape = {name: whole(name, text) for name, text in operation.named(dims).items()} if dims else {}
    for pair in sets:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, got {pair!r}; give e.g. --set {operation.dims[0]}=1000")
        if name in shape:
            raise InputError(f"a dim has one size, got {shape[name]} and {text} for {name}; keep one of them")
        shape[name] = whole(name, text)
    return shape


def whole(name: str, text: str) -> int:
    """The size of a dim.

    Raises:
        InputError: It is no whole number.
    """
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise InputError(f"a dim is a whole number of 1 or more, got {name}={text[:40]!r}") from None
