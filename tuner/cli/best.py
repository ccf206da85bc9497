"""``tuner best`` and ``tuner export``: answers from the records."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import answer_rows, config_text, duration, pairs, print_json, versus
from tuner.cli.options import (
    KERNEL,
    database_option,
    device_option,
    json_option,
    parse_problem,
    problem_options,
)
from tuner.errors import EnvironmentTrouble
from tuner.export import FORMATS
from tuner.extras import provided

if TYPE_CHECKING:
    from tuner.declare.catalogue import Catalogue
    from tuner.declare.problem import Problem
    from tuner.lookup import Answer

#: For programs that take no chances.
confirmed_option = click.option(
    "--confirmed", is_flag=True, help="Only champions that won again in a fresh process, or were published."
)


@click.command()
@problem_options
@click.option("--kernel", shell_complete=KERNEL, default="", help="Use this kernel only.")
@device_option('cpu, cuda:N, or a name such as "NVIDIA H200"; default: this machine\'s.')
@click.option(
    "--server",
    envvar="TUNER_SERVER",
    default="",
    metavar="URL",
    help="Ask this server; the variables TUNER_SERVER and TUNER_TOKEN set it and a token.",
)
@confirmed_option
@database_option
@json_option
def best(target: str, dims: tuple[str, ...], server: str, db: str, as_json: bool, **asked: Any) -> None:
    """Print the config to use for a problem, or the library. No device is touched.

    The answer is the problem's own champion; without one it comes from a model or tuned problems, from a
    similar device, or it is the kernel's default. `match` says which, `expected loss` what such answers have
    cost on known problems.
    """
    catalogue, problem = _problem(target, dims, asked)
    if server:
        found = _from_server(server, problem, asked)
    else:
        from tuner.lookup.demand import DEMAND

        answer = _answer(catalogue, problem, db, asked)
        DEMAND.asked(answer, catalogue, db)
        found = answer.to_json()
    if as_json:
        print_json(found)
    else:
        pairs(f"Best for {problem}", lookup_rows(found))


def _problem(target: str, dims: tuple[str, ...], asked: Mapping[str, Any]) -> tuple[Catalogue, Problem]:
    parts = (asked[name] for name in ("sets", "dtype", "layout", "precision", "epilogue"))
    return parse_problem(target, dims, *parts)


def _answer(catalogue: Catalogue, problem: Problem, db: str, asked: Mapping[str, Any]) -> Answer:
    """The answer from the records of a database, as they are now."""
    from tuner.lookup import answer
    from tuner.lookup.asking import opened, parse_device, parse_key

    device, key = parse_device(asked["device"]), parse_key(problem)
    kernel, confirmed = asked["kernel"] or None, asked["confirmed"]
    with contextlib.ExitStack() as closing:
        store = opened(db)
        if store is not None:
            closing.callback(store.close)
        return answer(store, key, device, asked["regime"], kernel, catalogue, confirmed=confirmed)


def _from_server(server: str, problem: Problem, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a server, or its last one where it is away; devices of this machine are told by name."""
    from tuner.lookup.asking import parse_device

    clients = provided("client")
    if not clients:
        raise EnvironmentTrouble("--server needs the package tuner.service, which is not installed; add it")
    where = parse_device(asked["device"])
    name = where if isinstance(where, str) else where.name
    chosen = {each: asked[each] for each in ("regime", "kernel", "confirmed")}
    told = clients[0](server).best(problem, name, **chosen)
    return {**told.told, "age_days": told.age_days, "from_cache": told.from_cache}


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
        rows = [("kernel", answer["kernel"]), ("config", config_text(answer["config"]))]
        rows += [("device", answer["device"]["name"]), ("use", answer["use"])]
        return [*rows, *_predicted_rows(answer), *near]
    rows = [row for row in answer_rows(answer) if exact or row[0] not in ("use", "trials")]
    if not exact:
        sizes = " x ".join(str(size) for size in record["shape"].values())
        place = f"{sizes} {record['layout']} on {record['device']['name']}, timed {record['regime']}"
        what = "regime" if answer["match"] == "exact" else "problem"
        rows.append(("figures of", f"{place}; not of this {what}"))
        rows.append(("use", answer["use"]))
    finals = [versus(pair) for pair in answer["pairs"] if pair["one"] == answer["pairs"][0]["one"]]
    rows += [("against", f"{other}, {time}: {how}") for other, time, how in finals]
    return [*rows, ("age", f"{answer['age_days']:.1f} days"), *near]


def _predicted_rows(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Times that a model predicts; none without one."""
    told = answer["predicted"]
    if told is None:
        return []
    rows = [("predicted", duration(told["kernel_time_s"]))]
    if told["library_time_s"]:
        rows.append(("library", f"{duration(told['library_time_s'])}, predicted"))
    if told["time_interval_s"]:
        low, high = (duration(each) for each in told["time_interval_s"])
        rows.append(("80 % interval", f"{low} to {high}, of what is to be used"))
    return rows


@click.command()
@problem_options
@click.option("--kernel", shell_complete=KERNEL, default="", help="Use this kernel only.")
@device_option('cpu, cuda:N, or a name such as "NVIDIA H200"; default: this machine\'s.')
@click.option("--format", "form", type=click.Choice(tuple(FORMATS)), default="source", show_default=True)
@click.option("-o", "folder", type=click.Path(path_type=Path), required=True, help="Folder to write to.")
@confirmed_option
@database_option
def export(target: str, dims: tuple[str, ...], form: str, folder: Path, db: str, **asked: Any) -> None:
    """Write the champion as source, binary, Python module or JSON. None of them needs tuner."""
    from tuner.export import exported_files, write_file

    catalogue, problem = _problem(target, dims, asked)
    found = _answer(catalogue, problem, db, asked)
    for name, data in exported_files(found, catalogue, problem, form).items():
        click.echo(str(write_file(folder, name, data)))
