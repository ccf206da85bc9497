"""``tuner wanted``: what programs asked for and nobody tuned."""

from __future__ import annotations

import click

from tuner.cli.formatting import duration, print_json, table
from tuner.cli.options import DEVICE, database_option, json_option

#: Problems that are listed unless told otherwise.
LISTED = 20


@click.command()
@click.option(
    "--device",
    shell_complete=DEVICE,
    default="",
    help='Only on this device: cpu, cuda:N, or a name such as "NVIDIA H200".',
)
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
    from tuner.lookup.wanted import most_wanted
    from tuner.store import Store, demand

    where = parse_device(device) if device else ""
    name = where if isinstance(where, str) else where.name
    if clear:
        with Store.open(db) as store:
            gone = demand.forget(store, demand.read(store, device=name, operation=operation))
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
