"""Pareto fronts for people: a table on stdout, a plot in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import clock, config_text, duration, energy, print_json, speed, table
from tuner.cli.options import (
    SAMPLER,
    database_option,
    device_option,
    folder_option,
    json_option,
    parse_problem,
    problem_options,
    writable_folder,
)
from tuner.declare.problem import Problem
from tuner.errors import InputError
from tuner.extras import required
from tuner.results.objectives import Front, Point, read_objectives
from tuner.results.record import Champion


@click.command()
@problem_options
@device_option('cpu, cuda:N, or a name such as "NVIDIA H200".')
@click.option("--objective", default="time,error", show_default=True, metavar="time[,energy][,error]",
              help="Objectives to minimise: two or three.")  # fmt: skip
@folder_option("Write a plot of the front to this folder.")
@database_option
@json_option
def front(target: str, dims: tuple[str, ...], sets: tuple[str, ...], **options: Any) -> None:
    """Show the Pareto front of a problem. No device is touched.

    The points are the measurements that have all these objectives, from any study of the problem; without
    one they are the published results.
    """
    objectives = read_objectives(options["objective"])
    if len(objectives) == 1:
        raise InputError("a front has several objectives, got time alone; give e.g. --objective time,energy")
    check_plot(options["folder"], several=True)
    words = (options[name] for name in ("dtype", "layout", "precision", "epilogue"))
    _, problem = parse_problem(target, dims, sets, *words)
    found, champion = _known(problem, objectives, options)
    if options["as_json"]:
        where = champion.record.device
        named = {"device": {"name": where.name, "kind": where.kind}, "regime": options["regime"]}
        print_json(problem.to_json() | named | found.as_keys())
    else:
        show_front(found, champion)
    plot_front(found, champion, options["folder"])


def _known(problem: Problem, objectives: tuple[str, ...], options: Mapping[str, Any]) -> tuple[Front, Champion]:
    """The front of what was measured, and the champion.

    Raises:
        NothingFound: Nothing was measured.
    """
    from tuner.lookup.asking import opened, parse_device
    from tuner.results.record import ProblemKey
    from tuner.study.leaderboard import known_front

    store = opened(options["db"])
    try:
        return known_front(
            store, ProblemKey.of(problem), parse_device(options["device"]), options["regime"], objectives
        )
    finally:
        if store is not None:
            store.close()


def show_front(front: Front, champion: Champion) -> None:
    """Prints the front of a study on stdout."""
    record = champion.record
    title = f"The front of {' and '.join(front.objectives)}, as measured in the search: {record.problem}"
    _front_table(title, front)


def check_plot(folder: Path | None, several: bool) -> None:
    """Refuses a plot, before any work, that would be empty or that cannot be written.

    Raises:
        InputError: The folder cannot be written, or there is one objective.
    """
    if folder is None:
        return
    if not several:
        raise InputError(
            "-o writes a plot of the front, which takes several objectives, got time alone; "
            "add e.g. --objective time,error, or leave -o away"
        )
    writable_folder(folder)


def plot_front(front: Front | None, champion: Champion | None, folder: Path | None) -> None:
    """Writes the plot of a front, if there is one, and prints its path on stderr."""
    if front is None or champion is None or folder is None:
        return
    click.echo(str(required("figures").write_front(front, champion.record, folder)), err=True)


def _front_table(title: str, front: Front) -> None:
    """The points, the fastest first, then the champion if it is not among them, and the library."""
    rows = [_cells("champion" if front.is_champion(each) else "", each, front) for each in front.points]
    if front.champion is not None and not any(front.is_champion(each) for each in front.points):
        rows.append(_cells("champion, off the front by the search's noise", front.champion, front))
    if front.library is not None:
        rows.append(_cells("library", front.library, front))
    names = ("", "time", "speed", "energy a run", "power", "rms error", "kernel", "config")
    shown = [at for at in range(len(names)) if any(row[at] not in ("", "-") for row in rows)]
    table(title, [names[at] for at in shown], [[row[at] for at in shown] for row in rows])


def _cells(label: str, point: Point, front: Front) -> tuple[str, ...]:
    found, joules = point.measurement, point.energy_j
    time_s = found.time_s or 0.0
    return (
        label,
        duration(time_s),
        speed(front.work["flops"], front.work["bytes"], time_s),
        "-" if joules is None else energy(joules),
        "-" if joules is None else f"{joules / time_s:.0f} W",
        f"{found.error.rms_rel:.2e}" if found.error else "-",
        point.kernel,
        config_text(point.config),
    )


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
    from tuner.study.recordings import read_recording
    from tuner.study.simulate import simulate as replay

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
