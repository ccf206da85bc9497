"""``tuner records``: records to and from files, what a database holds, and published results."""

import io
import shutil
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tuner.cli import options as cli
from tuner.cli.formatting import config_text, duration, fields, print_json, show, table
from tuner.declare.folders import in_checkout
from tuner.errors import InputError, NothingFound
from tuner.extras import provided
from tuner.results.record import checked_id
from tuner.store import Store, health, listing, retracting
from tuner.store.exchange import Counts, export, merge, take
from tuner.store.kernel_tuner import records_of
from tuner.store.published import publish as write
from tuner.store.published import tuned_folder

#: A date, with or without a time of day.
DATE = click.DateTime(("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"))
#: ``--operation``, ``--shape``, ``--device`` and ``--regime``: which records.
selection_options = cli.together(
    click.option("--operation", default="", help="Select this operation."),
    click.option("--shape", default="", metavar="M,N,...", help="Select problems of this shape."),
    click.option("--device", default="", help="Select the device of this name or uuid."),
    click.option("--regime", default="", help="Select this regime."),
)


@click.group()
def records() -> None:
    """Export, import, publish, list, check and take back records."""


def _status(what: str, quiet: bool) -> AbstractContextManager[object]:
    """Shows on a terminal's stderr that something is going on."""
    from rich.console import Console

    return nullcontext() if quiet else Console(stderr=True).status(what)


@records.command("export")
@click.argument("output", metavar="[FILE]", required=False)
@click.option("-o", "option", metavar="FILE", help="File to write to; - is stdout.  [default: -]")
@click.option(
    "--format", "form", type=click.Choice(("lines", "csv", "parquet")),
    help="lines of JSON, which `import` takes, or a table.  [default: by FILE's ending, else lines]",
)  # fmt: skip
@selection_options
@click.option("--quiet", is_flag=True, help="Show no progress.")
@cli.database_option
def export_(
    output: str | None, option: str | None, form: str | None, quiet: bool, db: str, **chosen: str
) -> None:
    """Write records and champions as JSON lines, or records as a table.

    Give FILE with -o or as the argument; FILE.gz and FILE.zst are compressed, FILE.csv and FILE.parquet are
    tables with a row for each record.
    """
    if output and option:
        raise InputError(f"records are exported to one file, got {output} and -o {option}; give one of them")
    file = option or output or "-"
    path, wanted = None if file == "-" else Path(file), listing.Selection.parsed(**chosen)
    cli.writable_file(path)
    ending = file.rpartition(".")[2].lower()
    form = form or (ending if ending in ("csv", "parquet") else "lines")
    if form == "parquet" and path is None:
        raise InputError("Parquet goes to a file, got none; name it with -o FILE.parquet")
    with Store.open(db, read_only=True) as store, _status("exporting", quiet):
        if form == "lines":
            counts = export(store, path, wanted)
            timings = f", {counts.timings} timings of surveys" if counts.timings else ""
            written = f"{counts.records} records and {counts.champions} champions{timings}"
        else:
            from tuner.python.tuned import export_table

            written = f"{export_table(store, path, wanted, form == 'parquet')} records"
    if not quiet:
        click.echo(f"{written} written to {file}", err=True)


@records.command("import")
@click.argument("files", metavar="FILE|URL...", nargs=-1, required=True)
@click.option("--skip-broken", is_flag=True, help="Import the good lines of a damaged file, list the others.")
@click.option("--device", default="", help="Device name of a cache or table.")
@click.option(
    "--kernel-file", type=click.Path(path_type=Path), help="FILE.py that declares the kernel of a file."
)
@click.option("--kernel", default="", help="Kernel name of a cache.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a dim of a cache's problem.")
@click.option("--dtype", default="", help="Element type of a cache.")
@click.option("--layout", default="", help="Layout of a cache.")
@click.option("--regime", default="hot", show_default=True, help="How times of a cache were measured.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@cli.data_options
def import_(
    files: tuple[str, ...], skip_broken: bool, quiet: bool, db: str, as_json: bool, **cache: Any
) -> None:
    """Add records of files.

    Files are those of `export`, other databases, and Kernel Tuner's caches (.json). With --kernel-file also
    configs for vLLM, SGLang, Helion (.json) or Triton (.py): studies try them first and tell the loss of each.

    Records are identified by UUID: import files in any order, any number of times.
    """
    with Store.open(db) as store:
        for file in files:
            with _status(f"importing {file}", quiet):
                counts = _imported(store, file, skip_broken, cache)
            for number, why in counts.broken:
                click.echo(f"tuner: {file}, line {number}: {why}", err=True)
            if counts.broken_lines > len(counts.broken):
                click.echo(f"tuner: {file}: {counts.broken_lines} broken lines in all", err=True)
            if as_json:
                print_json({"file": file, **asdict(counts)})
                continue
            surveys = f", {counts.surveys} parts of surveys" if counts.surveys else ""
            click.echo(
                f"{file}: {counts.records} records and {counts.champions} champions{surveys} are new, "
                f"{counts.known} were known"
            )


def _imported(store: Store, file: str, skip_broken: bool, cache: dict[str, Any]) -> Counts:
    if file == "-":
        with tempfile.NamedTemporaryFile(prefix="tuner-import-") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
            copy.flush()
            return take(store, Path(copy.name), skip_broken=skip_broken)
    path = Path(file)
    with path.open("rb") if path.is_file() else nullcontext(io.BytesIO()) as content:
        is_database = content.read(16) == b"SQLite format 3\0"
    if "://" in file or is_database:
        with Store.open(file if "://" in file else f"sqlite:///{file}", read_only=True) as source:
            return merge(store, source)
    if path.name.removesuffix(".gz").rpartition(".")[2] not in ("json", "py"):
        return take(store, path, skip_broken=skip_broken)
    cached = _cached(path, **cache)
    new = store.add(cached)
    return Counts(records=new, known=len(cached) - new)


def _cached(
    path: Path, *, kernel_file: Path | None, kernel: str, sets: tuple[str, ...], dtype: str, layout: str,
    **recorded: Any,
) -> list[Any]:  # fmt: skip
    """The records of a Kernel Tuner cache, of the kernel and problem that a file declares, if there is one.

    So are those of a table of configs, which need such a file.
    """
    if kernel_file is None:
        return list(records_of(path, kernel=kernel, **recorded))
    named = sets, dtype, layout, recorded["device"]
    for tables in provided("tables"):
        if rows := tables.read(path):
            return list(tables.records_of(path, rows, kernel_file, kernel, *named))
    catalogue, problem = cli.parse_problem(str(kernel_file), (), sets, dtype, layout)
    declared = catalogue.of(problem.operation.name, only=(kernel,) if kernel else ())[-1]
    return list(records_of(path, declared=(declared, problem), **recorded))


@records.command()
@click.option("--device", default="", help="Select the device of this name or uuid.")
@click.option("--operation", default="", help="Select this operation.")
@click.option("--regime", default="", help="Select this regime.")
@cli.folder_option("Folder; default: the checkout's configs/tuned.")
@cli.database_option
def publish(device: str, operation: str, regime: str, folder: Path | None, db: str) -> None:
    """Write the champions as text for review. One file per device and operation."""
    if folder is None and not in_checkout():
        raise InputError(
            "results are published into a folder of yours, and tile-tuner is installed here without its "
            "checkout; name one with -o DIR"
        )
    cli.writable_folder(folder or tuned_folder())
    with Store.open(db, read_only=True) as store:
        written = write(store, folder, operation=operation, device=device, regime=regime)
        for champion in store.champions(operation or None, device or None, regime or None):
            if champion.doubts:
                why = "; ".join(champion.doubts)
                click.echo(f"{champion.record.problem}: provisional, not published: {why}", err=True)
    if not written:
        raise NothingFound(f"no champion of a built-in kernel in {db} fits; run `tuner tune`, or name others")
    for path in written:
        click.echo(str(path))


# --- what a database holds ----------------------------


@records.command()
@click.option("--rescue", type=click.Path(path_type=Path), metavar="NEW.db", help="Save what is readable.")
@click.option("--complete", is_flag=True, help="Add missing records to the second copy.")
@cli.data_options
def check(rescue: Path | None, complete: bool, db: str, as_json: bool) -> None:
    """Find damage in a database. Reports what is readable, and rescues it into a new file."""
    if complete:
        click.echo(f"{health.complete(db)} records and champions added to the second copy", err=True)
    state = health.check(db)
    saved = health.rescue(db, rescue) if rescue else None
    if as_json:
        print_json({**asdict(state), "sound": state.sound, "rescued": asdict(saved) if saved else None})
    else:
        complaints = "; ".join(state.complaints)
        fields(
            state.where, {"sound": "yes" if state.sound else "NO", **asdict(state), "complaints": complaints}
        )
    if saved:
        click.echo(
            f"rescued into {rescue}: {saved.from_tables} from the tables, {saved.from_copy} more from the "
            f"second copy, {saved.from_pages} more from the file's pages",
            err=True,
        )
    elif not state.sound:
        click.echo("run `tuner records check --rescue NEW.db` to save what is readable", err=True)
    if not state.sound:
        raise click.exceptions.Exit(3)


@records.command("list")
@selection_options
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="Number of records.")
@cli.data_options
def list_(limit: int, db: str, as_json: bool, **selected: str) -> None:
    """List the records stored last, newest first. Records taken back are marked."""
    with Store.open(db, read_only=True) as store:
        latest = [record for _, record in listing.latest(store, listing.Selection.parsed(**selected), limit)]
        retracted = retracting.retracted(store, [record.id for record in latest])
    rows = (
        (
            record.measured_at[:19], record.problem, record.device.name,
            f"{record.role} {record.kernel} {config_text(record.config)}",
            record.measurement.outcome.value + (", taken back" if record.id in retracted else ""),
            duration(record.measurement.time_s) if record.measurement.time_s else "", record.id,
        )
        for record in latest
    )  # fmt: skip
    columns = ("measured", "problem", "device", "kernel and config", "outcome", "time", "record")
    keys = [listing.record_json(record, retracted.get(record.id)) for record in latest]
    show(as_json, keys, "", columns, rows)


@records.command("show")
@click.argument("text", metavar="ID")
@cli.data_options
def show_(text: str, db: str, as_json: bool) -> None:
    """Show everything stored about one record."""
    text = checked_id(text)
    with Store.open(db, read_only=True) as store:
        record, gone = listing.record_named(store, text, db)
    keys = listing.record_json(record, gone)
    if as_json:
        print_json(keys)
        return
    fields(str(record.problem), keys | keys.pop("measurement"))


@records.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--before", type=DATE, metavar="DATE", help="Measured before this date (UTC), e.g. 2026-05-31.")
@click.option("--after", type=DATE, metavar="DATE", help="Select measurements after this date (UTC).")
@click.option("--device", default="", help="Select measurements on the device of this name or uuid.")
@click.option("--alone", is_flag=True, help="Take back the record of an ID only, not all of its config.")
@click.option("--reason", default="", help="Reason to store with the retraction.")
@click.option("--undo", is_flag=True, help="Undo: these records count again.")
@cli.data_options
def forget(
    ids: tuple[str, ...], before: datetime | None, after: datetime | None, device: str, alone: bool,
    reason: str, undo: bool, db: str, as_json: bool,
) -> None:  # fmt: skip
    """Take records back. Nothing is deleted; --undo undoes it.

    Records taken back no longer answer lookups or guide searches, and they are not exported.

    The ID of a record or champion stands for all measurements of its config for that problem.
    """
    if bool(ids) == bool(before or after or device) or (alone and not ids):
        raise InputError(
            "records are taken back by ID (--alone goes with it), or by --before, --after and --device; give "
            "the one or the other"
        )
    named = tuple(checked_id(text) for text in ids)
    chosen = retracting.Chosen(named, alone, _moment(before), _moment(after), device)
    with Store.open(db) as store:
        count = (retracting.give_back if undo else retracting.take_back)(store, chosen, reason)
    if as_json:
        print_json({"undone" if undo else "taken_back": count})
    else:
        taken = "taken back; the same command with --undo lets them count again"
        click.echo(f"{count} records {'count again' if undo else taken}")


def _moment(date: datetime | None) -> str:
    """A date in the form that records use; empty without one."""
    return date.replace(tzinfo=UTC).isoformat(timespec="microseconds") if date else ""


@records.command()
@cli.data_options
def stats(db: str, as_json: bool) -> None:
    """Count records by operation and device."""
    with Store.open(db, read_only=True) as store:
        tallies, surveyed = listing.tallies(store), listing.survey_tallies(store)
    names = ("operation", "device", "problems", "trials", "failed", "finals", "champions")

    def rows(tallied: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
        return [
            (*(tally[name] for name in names), f"{tally['first'][:10]} to {tally['last'][:10]}")
            for tally in tallied
        ]

    columns = (*names, "taken back", "measured")
    show(as_json, [*tallies, *surveyed], "", columns, rows(tallies, *names, "retracted"))
    if surveyed and not as_json:
        named = ("operation", "device", "regime", "timings")
        table("surveys", (*named, "measured"), rows(surveyed, *named))
