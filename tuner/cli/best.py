"""``tuner best``, ``tuner export`` and ``tuner front``: answers from the records, and Pareto fronts."""

import functools
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from tuner.cli import options as cli
from tuner.cli.formatting import answer_rows, pairs, print_json, table, versus
from tuner.declare.catalogue import Catalogue
from tuner.declare.problem import Problem
from tuner.errors import InputError
from tuner.export import FORMATS, exported_files, write_file
from tuner.extras import provided, required
from tuner.lookup import Answer, answer
from tuner.lookup.asking import opened, parse_device, parse_key
from tuner.lookup.demand import DEMAND
from tuner.results.objectives import Front, Point, read_objectives
from tuner.results.record import Champion, ProblemKey
from tuner.results.units import config_text, duration, energy, speed

_question_options = cli.together(
    cli.problem_options,
    click.option("--kernel", shell_complete=cli.KERNEL, default="", help="Use this kernel only."),
    cli.device_option('cpu, cuda:N, or a name such as "NVIDIA H200"; default: this machine\'s.'),
    click.option(
        "--confirmed", is_flag=True,
        help="Only champions that won again in a fresh process, or were published.",
    ),
    cli.database_option,
)  # fmt: skip


@click.command()
@_question_options
@click.option(
    "--server", envvar="TUNER_SERVER", default="", metavar="URL",
    help="Ask this server; the variables TUNER_SERVER and TUNER_TOKEN set it and a token.",
)  # fmt: skip
@cli.invariant_option("Of a set with which no row changes its bits with M; see `tuner tune --invariant`.")
@cli.json_option
def best(server: str, as_json: bool, **options: Any) -> None:
    """Print the config to use for a problem, or the library. No device is touched.

    The answer is the problem's own champion; without one it comes from a model or tuned problems, from a
    similar device, or it is the kernel's default. `match` says which, `expected loss` what such answers have
    cost on known problems.
    """
    catalogue, problem = cli.named_problem(options)
    if server:
        keys = _from_server(server, problem, options)
    else:
        local = _answer(catalogue, problem, options)
        DEMAND.asked(local, options["db"])
        keys = local.to_json()
    if as_json:
        print_json(keys)
    else:
        pairs(f"Best for {problem}", lookup_rows(keys))


def _answer(catalogue: Catalogue, problem: Problem, options: Mapping[str, Any]) -> Answer:
    """The answer from the records of a database, as they are now."""
    device, kernel = parse_device(options["device"]), options["kernel"] or None
    how = {"confirmed": options["confirmed"], "invariant": options.get("invariant", "")}
    with opened(options["db"]) or nullcontext() as store:
        return answer(store, parse_key(problem), device, options["regime"], kernel, catalogue, **how)


def _from_server(server: str, problem: Problem, options: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a server, or its last one where it is away; devices of this machine are told by name."""
    device = parse_device(options["device"])
    chosen = {name: options[name] for name in ("regime", "kernel", "confirmed", "invariant")}
    client = required("client")(server)
    remote = client.best(problem, device if isinstance(device, str) else device.name, **chosen)
    return {**remote.told, "age_days": remote.age_days, "from_cache": remote.from_cache}


def lookup_rows(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows for people: how near the answer is, what it may cost, and the record's figures."""
    near: list[tuple[str, str]] = [("match", answer["match"])]
    exact = answer["match"] == "exact" and answer["record"]["regime"] == answer["regime"]
    if not exact:
        measured = f"{answer['expected_loss']:.1%} of speed: " if answer["expected_loss"] < 1 else ""
        near.append(("expected loss", measured + answer["loss_said"]))
        near += [("why", reason) for reason in answer["reasons"]]
    record = answer["record"]
    if record is None:
        predicted = _predicted_rows(answer["predicted"]) if answer["predicted"] else []
        return [
            ("kernel", answer["kernel"]), ("config", config_text(answer["config"])),
            ("device", answer["device"]["name"]), ("use", answer["use"]), *predicted, *near,
        ]  # fmt: skip
    rows = [row for row in answer_rows(answer) if exact or row[0] not in ("use", "trials")]
    if not exact:
        sizes = " x ".join(str(size) for size in record["shape"].values())
        place = f"{sizes} {record['layout']} on {record['device']['name']}, timed {record['regime']}"
        what = "regime" if answer["match"] == "exact" else "problem"
        rows += [("figures of", f"{place}; not of this {what}"), ("use", answer["use"])]
    finals = [versus(pair) for pair in answer["pairs"] if pair["one"] == answer["pairs"][0]["one"]]
    rows += [("against", f"{other}, {time}: {how}") for other, time, how in finals]
    return [*rows, ("age", f"{answer['age_days']:.1f} days"), *near]


def _predicted_rows(predicted: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Times that a model predicts."""
    rows = [("predicted", duration(predicted["kernel_time_s"]))]
    if predicted["library_time_s"]:
        rows.append(("library", f"{duration(predicted['library_time_s'])}, predicted"))
    if predicted["time_interval_s"]:
        low, high = map(duration, predicted["time_interval_s"])
        rows.append(("80 % interval", f"{low} to {high}, of what is to be used"))
    return rows


@click.command()
@_question_options
@click.option(
    "--format", "form", default="source", show_default=True,
    type=click.Choice((*FORMATS, *(form for tables in provided("tables") for form in tables.FORMATS))),
)  # fmt: skip
@click.option("-o", "folder", type=click.Path(path_type=Path), required=True, help="Folder to write to.")
def export(form: str, folder: Path, **options: Any) -> None:
    """Write the champion as source, binary, Python module or JSON. None of them needs tuner.

    vllm, sglang, triton and helion write the configs of a Triton kernel for all M that are tuned, whatever M is
    given, and a file of provenance.
    """
    catalogue, problem = cli.named_problem(options)
    if form in FORMATS:
        made = exported_files(_answer(catalogue, problem, options), catalogue, problem, form)
    else:
        named = problem.operation.name, parse_device(options["device"]), options["regime"]
        with opened(options["db"]) or nullcontext() as store:
            known = store.champions(*named) if store else []
        ask = functools.partial(_answer, catalogue, options=options)
        made = required("tables").exported(form, catalogue.of(named[0]), problem, known, ask)
    for name, data in made.items():
        click.echo(str(write_file(folder, name, data)))


# --- fronts --------------------------------------------


@click.command()
@cli.problem_options
@cli.device_option('cpu, cuda:N, or a name such as "NVIDIA H200".')
@cli.objective_option("time,error", "Objectives to minimise: two or three.")
@cli.folder_option("Write a plot of the front to this folder.")
@cli.data_options
def front(as_json: bool, folder: Path | None, **options: Any) -> None:
    """Show the Pareto front of a problem. No device is touched.

    The points are the measurements that have all these objectives, from any study of the problem; without
    one they are the published results.
    """
    from tuner.study.leaderboard import known_front  # with it the search loads, which other commands do without

    objectives = read_objectives(options["objective"])
    if len(objectives) == 1:
        raise InputError("a front has several objectives, got time alone; give e.g. --objective time,energy")
    check_plot(folder, several=True)
    _, problem = cli.named_problem(options)
    device, regime = parse_device(options["device"]), options["regime"]
    with opened(options["db"]) or nullcontext() as store:
        points, champion = known_front(store, ProblemKey.of(problem), device, regime, objectives)
    if as_json:
        where = champion.record.device
        named = {"device": {"name": where.name, "kind": where.kind}, "regime": regime}
        print_json(problem.to_json() | named | points.as_keys())
    else:
        show_front(points, champion)
    plot_front(points, champion, folder)


def show_front(front: Front, champion: Champion) -> None:
    """Prints a front: the fastest first, then the champion if it is not among the points, and the library."""
    points = [("champion" if front.is_champion(point) else "", point) for point in front.points]
    if front.champion is not None and front.champion not in front.points:
        points.append(("champion, off the front by the search's noise", front.champion))
    if front.library is not None:
        points.append(("library", front.library))
    columns = ("", "time", "speed", "energy a run", "power", "rms error", "kernel", "config")
    title = (
        f"The front of {' and '.join(front.objectives)}, as measured in the search: {champion.record.problem}"
    )
    table(title, columns, [(label, *_figures(point, front)) for label, point in points])


def _figures(point: Point, front: Front) -> tuple[str, ...]:
    error, joules, time_s = point.measurement.error, point.energy_j, point.measurement.time_s or 0.0
    return (
        duration(time_s), speed(front.work["flops"], front.work["bytes"], time_s),
        "-" if joules is None else energy(joules), "-" if joules is None else f"{joules / time_s:.0f} W",
        f"{error.rms_rel:.2e}" if error else "-", point.kernel, config_text(point.config),
    )  # fmt: skip


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
    cli.writable_folder(folder)


def plot_front(front: Front | None, champion: Champion | None, folder: Path | None) -> None:
    """Writes the plot of a front, if there is one, and prints its path on stderr."""
    if front is None or champion is None or folder is None:
        return
    click.echo(str(required("figures").write_front(front, champion.record, folder)), err=True)
