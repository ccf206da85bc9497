"""``tuner records check|forget|list|show|stats|upgrade``: inspect a database."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import config_text, duration, pairs, print_json, table
from tuner.cli.formatting import show as show_rows
from tuner.cli.options import database_option, json_option, together
from tuner.errors import InputError

if TYPE_CHECKING:
    from tuner.store.health import Health


#: ``--operation``, ``--shape``, ``--device`` and ``--regime``: which records.
selection_options = together(
    click.option("--operation", default="", help="Select this operation."),
    click.option("--shape", default="", metavar="M,N,...", help="Select problems of this shape."),
    click.option("--device", default="", help="Select the device of this name or uuid."),
    click.option("--regime", default="", help="Select this regime."),
)


@click.command()
@click.option(
    "--rescue", type=click.Path(path_type=Path), metavar="NEW.db",
    help="Save everything readable to a new database.",
)  # fmt: skip
@click.option("--complete", is_flag=True, help="Add missing records to the second copy.")
@database_option
@json_option
def check(rescue: Path | None, complete: bool, db: str, as_json: bool) -> None:
    """Find damage in a database. Reports what is readable, and rescues it into a new file."""
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
            f"second copy, {saved.from_pages} more from the file's pages",
            err=True,
        )
    elif not found.sound:
        click.echo("run `tuner records check --rescue NEW.db` to save what is readable", err=True)
    if not found.sound:
        raise click.exceptions.Exit(3)


def _health_rows(found: Health) -> list[tuple[str, object]]:
    readable = (
        f"{found.records} records, {found.champions} champions, {found.retractions} retractions, "
        f"{found.surveys} parts of surveys"
    )
    rows: list[tuple[str, object]] = [
        ("sound", "yes" if found.sound else "NO"),
        ("readable", readable),
        ("damaged rows", found.damaged),
    ]
    rows += [("structure", complaint) for complaint in found.complaints]
    if found.copied is not None:
        copied = f"{found.copied} records and champions, {found.copy_damaged} damaged stretches"
        rows += [("second copy", copied), ("in the copy only", found.only_copied)]
        rows += [("not in the copy", found.only_stored)]
    return rows


@click.command("list")
@selection_options
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="Number of records.")
@database_option
@json_option
def list_(limit: int, db: str, as_json: bool, **selected: str) -> None:
    """List the records stored last, newest first. Records taken back are marked."""
    from tuner.store import Store, listing, retracting
    from tuner.store.listing import Selection

    with Store.open(db, read_only=True) as store:
        found = [record for _, record in listing.latest(store, Selection.parsed(**selected), limit)]
        retracted = retracting.retracted(store, [record.id for record in found])
    rows = (
        (
            record.measured_at[:19], record.problem, record.device.name,
            f"{record.role} {record.kernel} {config_text(record.config)}",
            record.measurement.outcome.value + (", taken back" if record.id in retracted else ""),
            duration(record.measurement.time_s) if record.measurement.time_s else "", record.id,
        )
        for record in found
    )  # fmt: skip
    columns = ("measured", "problem", "device", "kernel and config", "outcome", "time", "record")
    show_rows(
        as_json, [listing.record_json(record, retracted.get(record.id)) for record in found], "", columns, rows
    )


@click.command()
@click.argument("text", metavar="ID")
@database_option
@json_option
def show(text: str, db: str, as_json: bool) -> None:
    """Show everything stored about one record."""
    from tuner.results.record import checked_id
    from tuner.store import Store, listing

    text = checked_id(text)
    with Store.open(db, read_only=True) as store:
        record, gone = listing.record_named(store, text, db)
    keys = listing.record_json(record, gone)
    if as_json:
        print_json(keys)
        return
    measurement = keys.pop("measurement")
    keys["device"] = {name: value for name, value in keys["device"].items() if value}
    rows = keys | {name: value for name, value in measurement.items() if value not in (None, "", {})}
    cells = {
        name: config_text(value) if isinstance(value, dict) else str(value) for name, value in rows.items()
    }
    pairs(str(record.problem), [(name, text) for name, text in cells.items() if text])


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--before", metavar="DATE", default="", help="Select measurements before this date (UTC), e.g. 2026-05-31."
)
@click.option("--after", metavar="DATE", default="", help="Select measurements after this date (UTC).")
@click.option("--device", default="", help="Select measurements on the device of this name or uuid.")
@click.option(
    "--alone", is_flag=True, help="Take back the record of an ID only, not all records of its config."
)
@click.option("--reason", default="", help="Reason to store with the retraction.")
@click.option("--undo", is_flag=True, help="Undo: these records count again.")
@database_option
@json_option
def forget(ids: tuple[str, ...], alone: bool, undo: bool, db: str, as_json: bool, **options: Any) -> None:
    """Take records back. Nothing is deleted; --undo undoes it.

    Records taken back no longer answer lookups or guide searches, and they are not exported.

    The ID of a record or champion stands for all measurements of its config for that problem.
    """
    from tuner.results.record import checked_id
    from tuner.store import Store, retracting

    before, after, device = options["before"], options["after"], options["device"]
    if bool(ids) == bool(before or after or device) or (alone and not ids):
        raise InputError(
            "records are taken back by ID (--alone goes with it), or by --before, --after and --device; give "
            "the one or the other"
        )
    named = tuple(checked_id(text) for text in ids)
    chosen = retracting.Chosen(named, alone, _moment("--before", before), _moment("--after", after), device)
    with Store.open(db) as store:
        count = (retracting.give_back if undo else retracting.take_back)(store, chosen, options["reason"])
    if as_json:
        print_json({"undone" if undo else "taken_back": count})
    elif undo:
        click.echo(f"{count} records count again")
    else:
        click.echo(f"{count} records taken back; the same command with --undo lets them count again")


def _moment(option: str, text: str) -> str:
    """A date, with an optional time of day, in the form that records use."""
    if not text:
        return ""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"{option} takes a date such as 2026-05-31 or 2026-05-31T18:00, got {text!r}"
        ) from None
    utc = when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    return utc.isoformat(timespec="microseconds")


@click.command()
@database_option
@json_option
def stats(db: str, as_json: bool) -> None:
    """Count records by operation and device."""
    from tuner.store import Store, listing

    with Store.open(db, read_only=True) as store:
        tallies, surveyed, keys = (
            listing.tallies(store),
            listing.survey_tallies(store),
            listing.tallies_json(store),
        )
    counts = ("problems", "trials", "failed", "finals", "champions", "taken back")
    rows = [(*tally[:7], tally.retracted, f"{tally.first[:10]} to {tally.last[:10]}") for tally in tallies]
    show_rows(as_json, keys, "", ("operation", "device", *counts, "measured"), rows)
    if surveyed and not as_json:
        parts = [(*tally[:4], f"{tally.first[:10]} to {tally.last[:10]}") for tally in surveyed]
        table("surveys", ("operation", "device", "regime", "timings", "measured"), parts)


@click.command()
@database_option
def upgrade(db: str) -> None:
    """Upgrade a database of an older version. Every command that writes does so, too."""
    from tuner.store import Store

    Store.open(db).close()
    click.echo(f"{db} has the schema of this version", err=True)
