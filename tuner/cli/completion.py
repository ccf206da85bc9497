"""Completion in the shell: operations, kernels, devices, samplers are suggested as they are here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

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
