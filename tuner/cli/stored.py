"""``tuner records check|list|show|stats|upgrade``: what is in a database, and whether it is sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.options import database_option, json_option
from tuner.cli.show import config_text, duration, pairs, print_json, table
from tuner.errors import InputError, NothingFound

if TYPE_CHECKING:
    from tuner.record import Record
    from tuner.store.health import Health
    from tuner.store.streams import Selection


def selection_options(command: Callable[..., object]) -> Callable[..., object]:
    """Which records."""
    for decorate in (
        click.option("--regime", default="", help="Only this regime."),
        click.option("--device", default="", help="Only the device of this name or uuid."),
        click.option("--shape", default="", metavar="M,N,...", help="Only problems of this shape."),
        click.option("--operation", default="", help="Only this operation."),
    ):
        command = decorate(command)
    return command


def selection(operation: str, shape: str, device: str, regime: str) -> Selection:
    """What the options select."""
    from tuner.store.streams import Selection

    try:
        sizes = tuple(int(size) for size in shape.replace("x", ",").split(",") if size)
    except ValueError:
        raise InputError(f"a shape is whole numbers such as 1024,1024,512, got {shape!r}") from None
    return Selection(operation, sizes, device, regime)


@click.command()
@click.option(
    "--rescue", type=click.Path(path_type=Path), metavar="NEW.db", help="Save what is readable there."
)
@click.option("--complete", is_flag=True, help="Add to the second copy what it lacks.")
@database_option
@json_option
def check(rescue: Path | None, complete: bool, db: str, as_json: bool) -> None:
    """Find damage in a database, say what is readable, and rescue it into a new file."""
    from tuner.store import health

    if complete:
        click.echo(f"{health.complete(db)} records and champions added to the second copy", err=True)
    found = health.check(db)
    saved = health.rescue(db, rescue) if rescue else None
    if as_json:
        print_json({**asdict(found), "sound": found.sound, "rescued": asdict(saved) if saved else None})
    else:
        pairs(found.where, _health_rows(found))
    if saved:
        click.echo(
            f"rescued into {rescue}: {saved.from_tables} from the tables, {saved.from_copy} more from the "
            f"second copy, {saved.from_pages} more from the file's pages. What Optuna's dashboard shows is "
            f"made anew by the next study",
            err=True,
        )
    elif not found.sound:
        click.echo("run `tuner records check --rescue NEW.db` to save what is readable", err=True)
    if not found.sound:
        raise click.exceptions.Exit(3)


def _health_rows(found: Health) -> list[tuple[str, str]]:
    rows = [
        ("sound", "yes" if found.sound else "NO"),
        ("readable", f"{found.records} records, {found.champions} champions"),
        ("damaged rows", str(found.damaged)),
        *(("structure", complaint) for complaint in found.complaints),
    ]
    if found.copied is not None:
        rows.append(
            ("second copy", f"{found.copied} records and champions, {found.copy_damaged} damaged stretches")
        )
        rows.append(("in the copy only", str(found.only_copied)))
        rows.append(("not in the copy", str(found.only_stored)))
    return rows


@click.command("list")
@selection_options
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many.")
@database_option
@json_option
def list_(operation: str, shape: str, device: str, regime: str, limit: int, db: str, as_json: bool) -> None:
    """The records stored last, the last first."""
    from tuner.store import Store, streams

    with Store.open(db, read_only=True) as store:
        found = streams.recent(store, selection(operation, shape, device, regime), limit)
    if as_json:
        print_json([_told(record) for record in found])
        return
    rows = [
        (
            record.measured_at[:19], str(record.problem), record.device.name,
            f"{record.role} {record.kernel} {config_text(record.config)}", record.measurement.outcome.value,
            duration(record.measurement.time_s) if record.measurement.time_s else "", record.id,
        )
        for record in found
    ]  # fmt: skip
    table("", ("measured", "problem", "device", "kernel and config", "outcome", "time", "record"), rows)


@click.command()
@click.argument("record_id", metavar="ID")
@database_option
@json_option
def show(record_id: str, db: str, as_json: bool) -> None:
    """All that is stored of one record."""
    from tuner.store import Store

    with Store.open(db, read_only=True) as store:
        record = store.record(record_id)
    if record is None:
        raise NothingFound(f"no record of {db} has the id {record_id}; `tuner records list` shows some")
    told = _told(record)
    if as_json:
        print_json(told)
        return
    measurement = told.pop("measurement")
    told["device"] = {name: value for name, value in told["device"].items() if value}
    rows = {**told, **{name: value for name, value in measurement.items() if value not in (None, "", {})}}
    shown = [
        (name, config_text(value) if isinstance(value, dict) else str(value)) for name, value in rows.items()
    ]
    pairs(str(record.problem), [(name, text) for name, text in shown if text])


def _told(record: Record) -> dict[str, Any]:
    import json

    from tuner.store import lines

    told: dict[str, Any] = json.loads(lines.line_of(record))["record"]
    return told


@click.command()
@database_option
@json_option
def stats(db: str, as_json: bool) -> None:
    """How much there is, by operation and device."""
    from tuner.store import Store, streams

    with Store.open(db, read_only=True) as store:
        found = streams.tallies(store)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows = [
        (
            each.operation, each.device, *map(str, (each.problems, each.trials, each.failed, each.finals)),
            str(each.champions), f"{each.first[:10]} to {each.last[:10]}",
        )
        for each in found
    ]  # fmt: skip
    table("", ("operation", "device", "problems", "trials", "failed", "finals", "champions", "measured"), rows)


@click.command()
@database_option
def upgrade(db: str) -> None:
    """Bring a database of an older version forward; every command that writes does so too."""
    from tuner.store import Store

    Store.open(db).close()
    click.echo(f"{db} has the schema of this version", err=True)
