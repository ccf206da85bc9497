"""``tuner records``: records to and from files, and results that come with the project."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import print_json
from tuner.cli.options import database_option, folder_option, json_option, writable_file, writable_folder
from tuner.cli.records_inspect import check, forget, list_, selection_options, show, stats, upgrade
from tuner.errors import InputError, NothingFound

if TYPE_CHECKING:
    from tuner.store.exchange import Counts
    from tuner.study.recordings import CacheFile

#: Seconds between two plain lines of progress.
PLAIN_EVERY_S = 5.0


@click.group()
def records() -> None:
    """Export, import, publish, list, check and take back records."""


@contextmanager
def _progress(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Shows progress on stderr: a bar on a terminal, a line every few seconds elsewhere."""
    if quiet or not sys.stderr.isatty():
        shown_s = time.monotonic()

        def tell(done: int, there: int) -> None:
            nonlocal shown_s
            if not quiet and time.monotonic() - shown_s > PLAIN_EVERY_S:
                shown_s = time.monotonic()
                click.echo(f"{what}: {done / max(there, 1):.0%}", err=True)

        yield tell
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, there: bar.update(task, completed=done, total=max(there, 1))


@records.command("export")
@click.argument("output", metavar="[FILE]", required=False)
@click.option("-o", "option", metavar="FILE", help="File to write to; - is stdout.  [default: -]")
@click.option(
    "--format", "form", type=click.Choice(("lines", "csv", "parquet")),
    help="lines of JSON, which `import` takes, or a table.  [default: by FILE's ending, else lines]",
)  # fmt: skip
@selection_options
@click.option("--quiet", is_flag=True, help="Show no progress.")
@database_option
def export_(
    output: str | None, option: str | None, form: str | None, quiet: bool, db: str, **chosen: str
) -> None:
    """Write records and champions as JSON lines, or records as a table.

    Give FILE with -o or as the argument; FILE.gz and FILE.zst are compressed, FILE.csv and FILE.parquet are
    tables with a row for each record.
    """
    from tuner.store import Store
    from tuner.store.exchange import export
    from tuner.store.listing import Selection

    if output and option:
        raise InputError(f"records are exported to one file, got {output} and -o {option}; give one of them")
    file = option or output or "-"
    path = None if file == "-" else Path(file)
    writable_file(path)
    wanted = Selection.parsed(**chosen)
    ending = file.rpartition(".")[2].lower()
    form = form or (ending if ending in ("csv", "parquet") else "lines")
    if form != "lines":
        from tuner.python.record_tables import export_table

        with Store.open(db, read_only=True) as store:
            rows = export_table(store, path, form, wanted)
        if not quiet:
            click.echo(f"{rows} records written to {file}", err=True)
        return
    with Store.open(db, read_only=True) as store, _progress("exporting", quiet) as progress:
        counts = export(store, path, wanted, progress=progress)
    if not quiet:
        timings = f", {counts.timings} timings of surveys" if counts.timings else ""
        click.echo(
            f"{counts.records} records and {counts.champions} champions{timings} written to {file}", err=True
        )


@records.command("import")
@click.argument("files", metavar="FILE|URL...", nargs=-1, required=True)
@click.option(
    "--skip-broken", is_flag=True, help="Import the good lines of a damaged file, and list the others."
)
@click.option("--device", default="", help="Device name of a Kernel Tuner cache.")
@click.option(
    "--kernel-file", type=click.Path(path_type=Path), help="FILE.py that declares the kernel of a cache."
)
@click.option("--kernel", default="", help="Kernel name of a cache.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a dim of a cache's problem.")
@click.option("--dtype", default="", help="Element type of a cache.")
@click.option("--layout", default="", help="Layout of a cache.")
@click.option("--regime", default="hot", show_default=True, help="How times of a cache were measured.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@database_option
@json_option
def import_(
    files: tuple[str, ...], skip_broken: bool, quiet: bool, db: str, as_json: bool, **told: Any
) -> None:
    """Add records of files.

    Files are those of `export`, other databases, and Kernel Tuner's caches (.json).

    Records are identified by UUID: import files in any order, any number of times.
    """
    from tuner.store import Store

    with Store.open(db) as store:
        for file in files:
            with _progress(f"importing {file}", quiet) as progress:
                counts = _imported(store, file, skip_broken, progress, told)
            for number, why in counts.broken:
                click.echo(f"tuner: {file}, line {number}: {why}", err=True)
            if counts.broken_lines > len(counts.broken):
                click.echo(f"tuner: {file}: {counts.broken_lines} broken lines in all", err=True)
            if as_json:
                print_json({"file": file, **asdict(counts)})
            else:
                surveys = f", {counts.surveys} parts of surveys" if counts.surveys else ""
                click.echo(
                    f"{file}: {counts.records} records and {counts.champions} champions{surveys} are new, "
                    f"{counts.known} were known"
                )


def _imported(store: Any, file: str, skip_broken: bool, progress: Any, told: dict[str, Any]) -> Counts:
    from tuner.store import Store
    from tuner.store.exchange import Counts, merge, take
    from tuner.study.recordings import is_cache, records_of

    if file == "-":
        with tempfile.NamedTemporaryFile(prefix="tuner-import-") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
            copy.flush()
            return take(store, Path(copy.name), skip_broken=skip_broken, progress=progress)
    path = Path(file)
    if "://" in file or _is_database(path):
        with Store.open(file if "://" in file else f"sqlite:///{file}", read_only=True) as source:
            return merge(store, source, progress)
    if not is_cache(path):
        return take(store, path, skip_broken=skip_broken, progress=progress)
    found = list(records_of(_cached(path, **told)))
    new = store.add(found)
    return Counts(records=new, known=len(found) - new)


def _is_database(path: Path) -> bool:
    """Whether a file is an SQLite database."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _cached(
    path: Path, *, device: str, kernel_file: Path | None, kernel: str, sets: tuple[str, ...], dtype: str,
    layout: str, regime: str,
) -> CacheFile:  # fmt: skip
    from tuner.study.recordings import CacheFile

    if kernel_file is None:
        return CacheFile(path, device, kernel=kernel, regime=regime)
    from tuner.cli.options import parse_problem
    from tuner.results.record import ProblemKey

    catalogue, problem = parse_problem(str(kernel_file), (), sets, dtype, layout)
    known = catalogue.of(problem.operation.name, only=(kernel,) if kernel else ())
    declared = known[-1]
    work = problem.work
    return CacheFile(
        path, device, ProblemKey.of(problem), declared.name, declared.source_hash,
        str(problem.operation.origin or ""),
        {"flops": work.flops, "bytes": work.bytes}, regime,
    )  # fmt: skip


@records.command()
@click.option("--device", default="", help="Select the device of this name or uuid.")
@click.option("--operation", default="", help="Select this operation.")
@click.option("--regime", default="", help="Select this regime.")
@folder_option("Folder; default: the checkout's configs/tuned.")
@database_option
def publish(device: str, operation: str, regime: str, folder: Path | None, db: str) -> None:
    """Write the champions as text for review. One file per device and operation."""
    from tuner.declare.folders import in_checkout
    from tuner.store import Store
    from tuner.store.published import tuned_folder
    from tuner.store.publishing import publish as write

    if folder is None and not in_checkout():
        raise InputError(
            "results are published into a folder of yours, and tile-tuner is installed here without its "
            "checkout; name one with -o DIR"
        )
    writable_folder(folder or tuned_folder())
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


for each in (check, forget, list_, show, stats, upgrade):
    records.add_command(each)
