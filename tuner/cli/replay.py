"""``tuner simulate``: a study on a recorded space, without a device."""

from __future__ import annotations

from pathlib import Path

import click

from tuner.cli.formatting import clock, duration, print_json, table
from tuner.cli.options import SAMPLER, json_option


@click.command()
@click.argument("space", metavar="SPACE.json[.gz]", type=click.Path(path_type=Path))
@click.option("--trials", type=int, default=200, show_default=True, help="Trials of each study.")
@click.option(
    "--repeats", type=int, default=20, show_default=True, help="Number of studies, each with its own seed."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the first study.")
@click.option("--sampler", shell_complete=SAMPLER, default="tile", show_default=True, help="Search strategy.")
@click.option(
    "--warm-start", type=click.Path(path_type=Path), metavar="OTHER.json[.gz]",
    help="Recording of another device, used as earlier records.",
)  # fmt: skip
@json_option
def simulate(
    space: Path, trials: int, repeats: int, seed: int, sampler: str, warm_start: Path | None, as_json: bool
) -> None:
    """Replay a study on a recorded space: a Kernel Tuner cache file, or exported records of one problem.

    Prints the fraction of the space's best speed that is reached after given numbers of trials.
    """
    from tuner.exchange.recording import read_recording
    from tuner.exchange.simulate import simulate as replay

    earlier = read_recording(warm_start) if warm_start else None
    found = replay(
        read_recording(space), sampler=sampler, trials=trials, repeats=repeats, seed=seed, warm_start=earlier
    )
    if as_json:
        print_json(found.to_json())
        return
    rows = [
        (str(count), f"{mean:.3f}", f"{deviation:.3f}", f"{least:.3f}", f"{most:.3f}", clock(recorded_s))
        for count, mean, deviation, least, most, recorded_s in found.rows()
    ]
    columns = ("trials", "fraction of the optimum", "st. dev.", "least", "most", "recorded time")
    table(f"{found.space}: {found.strategy}, {len(found.replays)} studies", columns, rows)
    click.echo(f"searching takes {duration(found.search_s_per_trial)} a trial", err=True)
