"""``tuner champions``: who answers, who answered before, and what an operator says about it."""

from typing import Any

import click

from tuner.cli import options as cli
from tuner.cli.formatting import config_text, duration, show, table
from tuner.lookup.asking import parse_device
from tuner.lookup.demand import most_wanted
from tuner.results.record import Champion, ProblemKey
from tuner.store import Store, watched
from tuner.study import crowns

COLUMNS = ("problem", "device", "champion", "time", "x library", "bits", "state")
#: A problem, a device by name, and the database.
place_options = cli.together(
    cli.problem_options,
    click.option("--device", default="", help='A name such as "NVIDIA H200"; needed if there are several.'),
    cli.database_option,
)
#: Who says so, and why.
said_options = cli.together(
    click.option("--why", required=True, help="Why; it is kept."),
    click.option("--who", default="", help="Who says so; default: the user on this machine."),
)


@click.group()
def champions() -> None:
    """List champions, pin them, or go back to earlier ones. Every act is kept, with who and why."""


def _reign(store: Store, options: dict[str, Any]) -> crowns.Reign:

    _, problem = cli.named_problem(options)
    return crowns.reign(store, ProblemKey.of(problem), options["device"], options["regime"])


@champions.command("list")
@click.option("--operation", default="", help="Only of this operation.")
@click.option("--device", default="", help="Only on this device: a name or uuid.")
@cli.data_options
def list_(operation: str, device: str, db: str, as_json: bool) -> None:
    """List the champions that answer, whether they are confirmed, pinned or frozen, and since when."""
    with Store.open(db, read_only=True) as store:
        places = crowns.reigns(store, operation, device)
    rows = (_row(place, place.champion) for place in places if place.champion is not None)
    show(as_json, [crowns.reign_json(place) for place in places], "Champions", (*COLUMNS, "since", "id"), rows)


@champions.command()
@place_options
@cli.json_option
def history(as_json: bool, db: str, **options: Any) -> None:
    """Show everybody who was champion of a problem, and all that was said about them."""
    with Store.open(db, read_only=True) as store:
        place = _reign(store, options)
    rows = [_row(place, champion) for champion in place.history]
    title = f"Champions of {place.place.problem}"
    show(as_json, crowns.history_json(place), title, (*COLUMNS, "crowned", "id"), rows)
    acts = [(e.made_at[:19], e.act.value, e.champion[:8] or "-", e.who, e.why) for e in place.log]
    if acts and not as_json:
        table("What was said", ("when", "act", "champion", "who", "why"), acts)


def _enter(act: str, db: str, options: dict[str, Any], **more: str) -> None:
    """Enters an act of `tuner.study.crowns` into the log, and says what it came to."""
    with Store.open(db) as store:
        entry = getattr(crowns, act)(
            store, _reign(store, options), why=options["why"], who=options["who"], **more
        )
        place = _reign(store, options)
    now = place.champion
    answers = f"{now.record.kernel} {config_text(now.record.config)} ({now.id[:8]})" if now else "nobody"
    click.echo(f"{entry.act.value} by {entry.who}; for {place.place} now answers {answers}")


@champions.command()
@place_options
@said_options
@click.option("--champion", default="", metavar="ID", help="Its first letters do; default: who answers now.")
def pin(champion: str, db: str, **options: Any) -> None:
    """Make one champion answer until it is unpinned, whoever is crowned meanwhile."""
    _enter("pin", db, options, champion=champion)


@champions.command()
@place_options
@said_options
def unpin(db: str, **options: Any) -> None:
    """Let the latest champion answer again."""
    _enter("unpin", db, options)


@champions.command()
@place_options
@said_options
@click.option("--to", default="", metavar="ID", help="Go back to this one; default: the one before.")
def rollback(to: str, db: str, **options: Any) -> None:
    """Go back to the champion before. One that is crowned later answers again."""
    _enter("rollback", db, options, champion=to)


@champions.command()
@click.option("--off", is_flag=True, help="End it.")
@said_options
@cli.database_option
def freeze(off: bool, who: str, why: str, db: str) -> None:
    """Let no champion that is crowned from now on answer; nights go on and their results are kept."""
    with Store.open(db) as store:
        entry = crowns.freeze(store, why, who, thaw=off)
    click.echo(f"{'thawed' if off else 'frozen'} by {entry.who}")


def _row(place: crowns.Reign, champion: Champion) -> tuple[str, ...]:
    record = champion.record
    return (
        str(record.problem), record.device.name, f"{record.kernel} {config_text(record.config)}",
        duration(record.measurement.time_s or 0.0), f"{champion.speedup:.3f}" if champion.speedup else "-",
        record.measurement.bits or "-", place.state(champion) or "-", champion.crowned_at[:19], champion.id[:8],
    )  # fmt: skip


@click.command()
@cli.device_option('Only on this device: cpu, cuda:N, or a name such as "NVIDIA H200".')
@click.option("--operation", default="", help="Only of this operation.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="List so many at the most."
)
@click.option("--clear", is_flag=True, help="Delete the counts, of these devices and operations.")
@cli.data_options
def wanted(device: str, operation: str, limit: int, clear: bool, db: str, as_json: bool) -> None:
    """List what was asked for and has no exact answer, by the seconds that tuning is predicted to save.

    Calls of tuner.matmul, gemv and transpose and questions to `tuner best` are counted, unless TUNER_DEMAND=0.
    `wanted = 20` in a plan tunes the most wanted problems in the night.
    """
    where = parse_device(device) if device else ""
    name = where if isinstance(where, str) else where.name
    if clear:
        with Store.open(db) as store:
            gone = watched.forget_demand(store, watched.demand(store, device=name, operation=operation))
        show(as_json, {"cleared": gone}, "", ("problems that were forgotten",), [(gone,)])
        return
    with Store.open(db, read_only=True) as store:
        misses = most_wanted(store, device=name, operation=operation, limit=limit)
    rows = [
        (
            miss.problem, miss.device, f"{miss.calls:,}", duration(miss.saves_s), miss.match or "-",
            miss.last_at[:16].replace("T", " "),
        )
        for miss in misses
    ]  # fmt: skip
    columns = ("problem", "device", "calls", "to be saved", "answered by", "last asked, UTC")
    show(as_json, {"wanted": [miss.to_json() for miss in misses]}, "Wanted", columns, rows)
