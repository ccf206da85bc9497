"""``tuner distil``: chooses few configs for many shapes, times what they lack, and writes the choice down.

It is written as a Python module that imports nothing.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import config_text, print_json, table
from tuner.cli.options import database_option, json_option, subject_options, writable_file
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.devices.detect import DetectedDevice, find, gpus, is_spec
from tuner.devices.protocol import REGIMES
from tuner.errors import DeviceTrouble
from tuner.export.symbolic import in_python, traced
from tuner.export.templates import filled
from tuner.lookup.asking import completed_device, opened, parse_device
from tuner.lookup.snapshot import Column, Snapshot, Subject, TunedProblem
from tuner.lookup.stale import builtin_now
from tuner.report.distil import Distilled, Fork, Tree, distilled, shapes_of
from tuner.results.record import ELSEWHERE
from tuner.store import Store
from tuner.study.first_use import remeasure
from tuner.study.locks import occupied
from tuner.version import __version__
from tuner.workers.device_worker import Crew

#: Rounds of timing missing configs and choosing again.
ROUNDS = 20
#: Length of lines of the written function.
WIDTH = 110


@click.command()
@click.argument("operation")
@click.option(
    "--configs",
    "count",
    type=click.IntRange(1),
    default=12,
    show_default=True,
    help="Largest number of configs.",
)
@click.option("--library", is_flag=True, help="Let the function choose the library, too.")
@click.option(
    "-o", "output", type=click.Path(path_type=Path), default=None, help="Write the function to this file."
)
@subject_options
@click.option(
    "--measure/--no-measure",
    default=None,
    help="Time missing configs; default: if this machine has the device.",
)
@click.option("--seconds", type=float, default=None, help="Seconds for timing; default: no limit.")
@database_option
@json_option
def distil(
    operation: str, count: int, library: bool, output: Path | None, device: str, dtype: str, regime: str | None,
    measure: bool | None, seconds: float | None, db: str, as_json: bool,
) -> None:  # fmt: skip
    """Find few configs for many shapes, and write a Python function that chooses among them."""
    writable_file(output)
    with ExitStack() as closing:
        store = opened(db)
        if store is not None:
            closing.callback(store.close)
        where, subject = _subject(store, operation, device, dtype, regime)
        catalogue = builtin_now()

        def choose(known: Store | None) -> Distilled:
            tuned = Snapshot.open(known).tuned(subject, catalogue)
            return distilled(shapes_of(tuned, subject, catalogue, library=library), count)

        choice = choose(store)
        if choice.missing() and measure is not False:
            here = _here(device, where)
            if here is not None:
                choice = _measured(choice, here, subject, db, choose, seconds)
            elif measure:
                raise DeviceTrouble(
                    f"--measure times on {where.name}, which is not on this machine; run the command there"
                )
    text = python_text(choice)
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if as_json:
        print_json(_json(choice, str(output or ""), text))
    else:
        _show(choice)
        click.echo(str(output) if output is not None else text)


def _subject(
    store: Store | None, operation: str, device: str, dtype: str, regime: str | None
) -> tuple[DeviceInfo, Subject]:
    """The device, complete, and what is asked about: in the first regime with known times, unless one is named.

    Raises:
        UnknownName: No such operation, dtype, or device.
    """
    catalogue, snapshot = builtin_now(), Snapshot.open(store)
    declared = catalogue.operation(operation)
    info = completed_device(parse_device(device), snapshot.devices())
    dtype = declared.problem(dict.fromkeys(declared.dims, 1), dtype).dtype
    regimes = [regime] if regime else REGIMES
    subjects = [Subject(operation, dtype, info.kind, regime, info.name) for regime in regimes]
    timed = (subject for subject in subjects if snapshot.tuned(subject, catalogue))
    return info, next(timed, subjects[0])


def _here(device: str, info: DeviceInfo) -> DetectedDevice | None:
    """The device on this machine; None if it has none of that name."""
    if is_spec(device):
        return find(device)
    return next((each for each in (*gpus(), find("cpu")) if each.info.name == info.name), None)


def _measured(
    choice: Distilled, here: DetectedDevice, subject: Subject, db: str, choose: Callable[[Store], Distilled],
    seconds: float | None,
) -> Distilled:  # fmt: skip
    """Times what is missing, and chooses again, until nothing is missing or time is up."""
    deadline_s = None if seconds is None else time.monotonic() + seconds
    study = f"{ELSEWHERE} {subject.operation}"
    tried: set[tuple[Any, ...]] = set()
    with Store.open(db) as store, occupied(db, (here,), study), Crew([here]) as crew:
        for _ in range(ROUNDS):
            missing = {(each.problem, each.kernel.name, each.config): each for each in choice.missing()}
            fresh = {key: each for key, each in missing.items() if key not in tried}
            if not fresh or (deadline_s is not None and time.monotonic() > deadline_s):
                break
            tried |= fresh.keys()
            remeasure(
                store, crew, fresh.values(), subject.regime, study, deadline_s,
                lambda text: click.echo(text, err=True),
            )  # fmt: skip
            choice = choose(store)
    return choice


def _json(choice: Distilled, file: str, text: str) -> dict[str, Any]:
    return {
        "configs": [
            {"kernel": column[0], "config": dict(column[1])} if column else {"kernel": None, "config": {}}
            for column in choice.columns
        ],
        "shapes": [place.problem.to_json() for place in choice.shapes.rows],
        "loss": {name: vars(losses) for name, losses in choice.losses.items()},
        "missing": [
            {**each.problem.to_json(), "kernel": each.kernel.name, "config": dict(each.config)}
            for each in choice.missing()
        ],
        "file": file, "function": text,
    }  # fmt: skip


def _show(choice: Distilled) -> None:
    rows, fastest = [], choice.fastest
    for number, (column, named) in enumerate(zip(choice.chosen, choice.columns, strict=True)):
        kernel, config = (named[0], config_text(named[1])) if named else ("the library", "-")
        rows.append((str(number), kernel, config, f"{fastest.count(column)} of {len(fastest)}"))
    table("The configs", ("", "kernel", "config", "best for"), rows)
    names = ("the best of them", "the one that `choose` takes", "at shapes left out of all choices")
    costs = [(name, str(losses)) for name, losses in zip(names, choice.losses.values(), strict=True)]
    table("What they cost, as a fraction of speed", ("", "loss"), costs)
    if missing := choice.missing():
        click.echo(f"{len(missing)} times are missing; `--measure` takes them, on the device", err=True)


# ---- the function


def python_text(choice: Distilled) -> str:
    """A module with ``CONFIGS``, a ``legal_N`` for each that asks something of the shape, and ``choose``.

    ``choose(dims..., layout)`` returns (kernel, config). A kernel of ``None`` stands for the library.
    """
    like = choice.shapes.rows[0]
    dims, layouts = list(like.problem.operation.dims), like.problem.operation.layouts
    has_layouts = layouts != ("",)
    names = [*dims, *(["layout"] if has_layouts else [])]
    return filled(
        Path(__file__).with_name("templates") / "choose.py.jinja",
        {},
        choice=choice,
        like=like,
        version=__version__,
        columns=[_written(column) for column in choice.columns],
        legal=[_conditions(choice, column) for column in choice.columns],
        parameters=", ".join([*dims, *([f'layout="{layouts[0]}"'] if has_layouts else [])]),
        names=", ".join(names),
        shown=", ".join(f"{name}={{{name}}}" for name in names),
        branches=_branches(choice.tree, "    "),
    )


def _written(column: Column | None) -> str:
    if column is None:
        return "(None, {})"
    config = textwrap.fill(
        json.dumps(dict(column[1])).replace("true", "True").replace("false", "False"),
        WIDTH - 4, initial_indent=" " * 8, subsequent_indent=" " * 9,
    )  # fmt: skip
    return f'("{column[0]}",\n{config})'


def _branches(tree: Tree, indent: str) -> str:
    if not isinstance(tree, Fork):
        return f"{indent}return ({', '.join(map(str, tree))},)"
    yes, no = _branches(tree.yes, indent + "    "), _branches(tree.no, indent)
    return f"{indent}if {tree.question}:\n{yes}\n{no}"


def _conditions(choice: Distilled, column: Column | None) -> list[tuple[str, str]]:
    """What a config asks of the layout and then of the dims, as Python; empty where it asks nothing."""
    if column is None:
        return []
    shapes = choice.shapes
    layouts = shapes.rows[0].problem.operation.layouts
    by_rule: dict[str, list[str]] = {}
    for layout in layouts:
        rows = [place for place in shapes.rows if place.problem.layout == layout]
        rule = _rule_of(shapes.kernels[column[0]], column, rows or shapes.rows, layout)
        if rule is not None:
            by_rule.setdefault(rule, []).append(layout)
    if list(by_rule.values()) == [list(layouts)]:
        (rule,) = by_rule
        return [("", rule)] if rule else []
    rules = [(f"layout in {tuple(where)!r}", rule or "True") for rule, where in by_rule.items()]
    return [*rules, ("", "False")]


def _rule_of(kernel: Kernel, column: Column, rows: Sequence[TunedProblem], layout: str) -> str | None:
    """The conditions under which the rules hold as they do at a shape where they all do; None without one."""
    device, binding = rows[0].device, [rule for rule in kernel.constraints if not rule.for_speed]
    for place in rows:
        like = place.problem
        problem = like.operation.problem(like.dims, like.dtype, layout, like.precision, like.epilogue)
        if not kernel.allows(problem, device, column[1]):
            continue
        dims, trace = traced(problem)
        try:
            for constraint in binding:
                bool(constraint.rule(dims, device, column[1]))
        except Exception:  # a rule that cannot be followed holds for this one shape, as far as is known
            return " and ".join(f"{name} == {size}" for name, size in problem.shape)
        conditions = [in_python(assumption.condition) for assumption in trace.assumptions]
        return " and ".join(f"({text})" if " or " in text else text for text in conditions)
    return None
