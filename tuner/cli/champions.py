"""``tuner champions``: who answers, who answered before, and what an operator says about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tuner.cli.formatting import config_text, duration, print_json, table
from tuner.cli.options import database_option, device_option, json_option, parse_problem, problem_options
from tuner.study.crowns import history_json, reign_json

if TYPE_CHECKING:
    from tuner.results.crowns import Crown
    from tuner.results.record import Champion
    from tuner.store import Store
    from tuner.study.crowns import Reign


F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def champions() -> None:
    """List champions, pin them, or go back to earlier ones. Every act is kept, with who and why."""


def place_options(command: F) -> F:
    """A problem, a device by name, and the database."""
    for decorate in (
        database_option,
        click.option("--device", default="", help='A name such as "NVIDIA H200"; needed if there are several.'),
        problem_options,
    ):
        command = decorate(command)
    return command


def said_options(command: F) -> F:
    """Who says so, and why."""
    for decorate in (
        click.option("--who", default="", help="Who says so; default: the user on this machine."),
        click.option("--why", required=True, help="Why; it is kept."),
    ):
        command = decorate(command)
    return command


def _reign(store: Store, asked: dict[str, Any]) -> Reign:
    from tuner.results.record import ProblemKey
    from tuner.study.crowns import reign

    names = ("target", "dims", "sets", "dtype", "layout", "precision", "epilogue")
    _, problem = parse_problem(*(asked[name] for name in names))
    return reign(store, ProblemKey.of(problem), asked["device"], asked["regime"])


@champions.command("list")
@click.option("--operation", default="", help="Only of this operation.")
@click.option("--device", default="", help="Only on this device: a name or uuid.")
@database_option
@json_option
def list_(operation: str, device: str, db: str, as_json: bool) -> None:
    """List the champions that answer, whether they are confirmed, pinned or frozen, and since when."""
    from tuner.store import Store
    from tuner.study.crowns import reigns

    with Store.open(db, read_only=True) as store:
        found = reigns(store, operation, device)
    if as_json:
        print_json([reign_json(each) for each in found])
        return
    rows = [_row(each, each.champion) for each in found if each.champion is not None]
    table("Champions", ("problem", "device", "champion", "time", "x library", "state", "since", "id"), rows)


@champions.command()
@place_options
@json_option
def history(as_json: bool, db: str, **asked: Any) -> None:
    """Show everybody who was champion of a problem, and all that was said about them."""
    from tuner.store import Store

    with Store.open(db, read_only=True) as store:
        found = _reign(store, asked)
    if as_json:
        print_json(history_json(found))
        return
    columns = ("problem", "device", "champion", "time", "x library", "state", "crowned", "id")
    table(f"Champions of {found.place.problem}", columns, [_row(found, each) for each in found.history])
    rows = [(e.made_at[:19], e.act.value, e.champion[:8] or "-", e.who, e.why) for e in found.log]
    if rows:
        table("What was said", ("when", "act", "champion", "who", "why"), rows)


@champions.command()
@place_options
@said_options
@click.option("--champion", default="", metavar="ID", help="Its first letters do; default: who answers now.")
def pin(champion: str, who: str, why: str, db: str, **asked: Any) -> None:
    """Make one champion answer until it is unpinned, whoever is crowned meanwhile."""
    from tuner.store import Store
    from tuner.study.crowns import pin as enter

    with Store.open(db) as store:
        _told(store, asked, enter(store, _reign(store, asked), champion, why, who))


@champions.command()
@place_options
@said_options
def unpin(who: str, why: str, db: str, **asked: Any) -> None:
    """Let the latest champion answer again."""
    from tuner.store import Store
    from tuner.study.crowns import unpin as enter

    with Store.open(db) as store:
        _told(store, asked, enter(store, _reign(store, asked), why, who))


@champions.command()
@place_options
@said_options
@click.option("--to", default="", metavar="ID", help="Go back to this one; default: the one before.")
def rollback(to: str, who: str, why: str, db: str, **asked: Any) -> None:
    """Go back to the champion before. One that is crowned later answers again."""
    from tuner.store import Store
    from tuner.study.crowns import rollback as enter

    with Store.open(db) as store:
        _told(store, asked, enter(store, _reign(store, asked), why, who, to))


@champions.command()
@click.option("--off", is_flag=True, help="End it.")
@said_options
@database_option
def freeze(off: bool, who: str, why: str, db: str) -> None:
    """Let no champion that is crowned from now on answer; nights go on and their results are kept."""
    from tuner.store import Store
    from tuner.study.crowns import freeze as enter

    with Store.open(db) as store:
        entry = enter(store, None, why, who, thaw=off)
    click.echo(f"{'thawed' if off else 'frozen'} by {entry.who}")


def _told(store: Store, asked: dict[str, Any], entry: Crown) -> None:
    """Says what an entry came to."""
    found = _reign(store, asked)
    now = found.champion
    answers = (
        "nobody" if now is None else f"{now.record.kernel} {config_text(now.record.config)} ({now.id[:8]})"
    )
    click.echo(f"{entry.act.value} by {entry.who}; for {found.place} now answers {answers}")


def _row(reign: Reign, champion: Champion) -> tuple[str, ...]:
    record = champion.record
    return (
        str(record.problem), record.device.name, f"{record.kernel} {config_text(record.config)}",
        duration(record.measurement.time_s or 0.0), f"{champion.speedup:.3f}" if champion.speedup else "-",
        reign.state(champion) or "-", champion.crowned_at[:19], champion.id[:8],
    )  # fmt: skip


#: Problems that are listed unless told otherwise.
LISTED = 20


@click.command()
@device_option('Only on this device: cpu, cuda:N, or a name such as "NVIDIA H200".')
@click.option("--operation", default="", help="Only of this operation.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=LISTED, show_default=True, help="List so many at the most."
)
@click.option("--clear", is_flag=True, help="Delete the counts, of these devices and operations.")
@database_option
@json_option
def wanted(device: str, operation: str, limit: int, clear: bool, db: str, as_json: bool) -> None:
    """List what was asked for and has no exact answer, by the seconds that tuning is predicted to save.

    Calls of tuner.matmul, gemv and transpose and questions to `tuner best` are counted, unless TUNER_DEMAND=0.
    `wanted = 20` in a plan tunes the most wanted problems in the night.
    """
    from tuner.lookup.asking import parse_device
    from tuner.lookup.demand import most_wanted
    from tuner.store import Store, watched

    where = parse_device(device) if device else ""
    name = where if isinstance(where, str) else where.name
    if clear:
        with Store.open(db) as store:
            gone = watched.forget_demand(store, watched.demand(store, device=name, operation=operation))
        if as_json:
            print_json({"cleared": gone})
        else:
            click.echo(f"{gone} problem{'s' if gone != 1 else ''} forgotten")
        return
    with Store.open(db, read_only=True) as store:
        found = most_wanted(store, device=name, operation=operation, limit=limit)
    if as_json:
        print_json({"wanted": [each.to_json() for each in found]})
        return
    rows = [
        (
            str(each.problem), each.device, f"{each.calls:,}", duration(each.saves_s), each.match or "-",
            each.last_at[:16].replace("T", " "),
        )
        for each in found
    ]  # fmt: skip
    table("Wanted", ("problem", "device", "calls", "to be saved", "answered by", "last asked, UTC"), rows)
    if not found:
        click.echo("nothing was asked for that is not tuned")
