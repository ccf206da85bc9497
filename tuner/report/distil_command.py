"""``tuner distil``: chooses few configs for many shapes, and times what they lack."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import config_text, print_json, table
from tuner.cli.options import database_option, json_option, subject_options, writable_file
from tuner.devices.protocol import REGIMES
from tuner.errors import DeviceTrouble

if TYPE_CHECKING:
    from tuner.declare.hardware import DeviceInfo
    from tuner.devices.detect import DetectedDevice
    from tuner.lookup.tuned import Subject
    from tuner.report.distil import Distilled
    from tuner.store import Store
    from tuner.study.remeasure import MissingTime

#: Rounds of timing missing configs and choosing again.
ROUNDS = 20


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
    from tuner.lookup.asking import opened
    from tuner.lookup.snapshot import Snapshot
    from tuner.lookup.stale import builtin_now
    from tuner.report.distil import distilled, shapes_of
    from tuner.report.distil_text import python_text

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

        found = choose(store)
        if found.missing() and measure is not False:
            here = _here(device, where)
            if here is not None:
                found = _measured(found, here, subject, db, choose, seconds)
            elif measure:
                raise DeviceTrouble(
                    f"--measure times on {where.name}, which is not on this machine; run the command there"
                )
    text = python_text(found)
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if as_json:
        print_json(_json(found, str(output or ""), text))
    else:
        _show(found, output, text)


def _subject(
    store: Store | None, operation: str, device: str, dtype: str, regime: str | None
) -> tuple[DeviceInfo, Subject]:
    """The device, complete, and what is asked about: in the first regime with known times, unless one is named.

    Raises:
        UnknownName: No such operation, dtype, or device.
    """
    from tuner.lookup.asking import completed_device, parse_device
    from tuner.lookup.snapshot import Snapshot
    from tuner.lookup.stale import builtin_now
    from tuner.lookup.tuned import Subject

    catalogue, snapshot = builtin_now(), Snapshot.open(store)
    declared = catalogue.operation(operation)
    info = completed_device(parse_device(device), snapshot.devices())
    dtype = declared.problem(dict.fromkeys(declared.dims, 1), dtype).dtype
    subjects = [
        Subject(operation, dtype, info.kind, each, info.name) for each in ([regime] if regime else REGIMES)
    ]
    timed = (subject for subject in subjects if snapshot.tuned(subject, catalogue))
    return info, next(timed, subjects[0])


def _here(device: str, info: DeviceInfo) -> DetectedDevice | None:
    """The device on this machine; None if it has none of that name."""
    from tuner.devices.detect import find, gpus

    if device.startswith("fake:"):
        return find(device)
    return next((one for one in (*gpus(), find("cpu")) if one.info.name == info.name), None)


def _measured(
    found: Distilled,
    here: DetectedDevice,
    subject: Subject,
    db: str,
    choose: Callable[[Store], Distilled],
    seconds: float | None,
) -> Distilled:
    """Times what is missing, and chooses again, until nothing is missing or time is up."""
    from tuner.results.record import ELSEWHERE
    from tuner.store import Store
    from tuner.study.locks import occupied
    from tuner.study.remeasure import Remeasuring

    deadline_s = None if seconds is None else time.monotonic() + seconds
    study = f"{ELSEWHERE} {subject.operation}"
    tried: set[tuple[Any, ...]] = set()
    with ExitStack() as closing:
        store = closing.enter_context(Store.open(db))
        closing.enter_context(occupied(db, (here,), study))
        measuring = Remeasuring(store, here, subject.regime, study)
        closing.callback(measuring.close)
        for _ in range(ROUNDS):
            fresh = {(one.problem, one.kernel.name, one.config): one for one in found.missing()}
            fresh = {key: one for key, one in fresh.items() if key not in tried}
            if not fresh or (deadline_s is not None and time.monotonic() > deadline_s):
                break
            tried |= fresh.keys()
            measuring.run(fresh.values(), deadline_s, lambda text: click.echo(text, err=True))
            found = choose(store)
    return found


def _json(found: Distilled, file: str, text: str) -> dict[str, Any]:
    return {
        "configs": [
            {"kernel": column[0], "config": dict(column[1])} if column else {"kernel": None, "config": {}}
            for column in found.columns
        ],
        "shapes": [place.problem.to_json() for place in found.shapes.rows],
        "loss": {
            "best": vars(found.best), "decided": vars(found.decided), "left_out": vars(found.left_out),
        },
        "missing": [_wanted_json(wanted) for wanted in found.missing()], "file": file, "function": text,
    }  # fmt: skip


def _wanted_json(wanted: MissingTime) -> dict[str, Any]:
    return {**wanted.problem.to_json(), "kernel": wanted.kernel.name, "config": dict(wanted.config)}


def _show(found: Distilled, output: Path | None, text: str) -> None:
    rows = []
    fastest = [max(found.chosen, key=lambda column: speeds[column]) for speeds in found.shapes.speeds]
    for number, (column, named) in enumerate(zip(found.chosen, found.columns, strict=True)):
        kernel, config = (named[0], config_text(named[1])) if named else ("the library", "-")
        rows.append((str(number), kernel, config, f"{fastest.count(column)} of {len(fastest)}"))
    table("The configs", ("", "kernel", "config", "best for"), rows)
    costs = [
        ("the best of them", str(found.best)),
        ("the one that `choose` takes", str(found.decided)),
        ("at shapes left out of all choices", str(found.left_out)),
    ]
    table("What they cost, as a fraction of speed", ("", "loss"), costs)
    if left := found.missing():
        click.echo(f"{len(left)} times are missing; `--measure` takes them, on the device", err=True)
    click.echo(str(output) if output is not None else text)
