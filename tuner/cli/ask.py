"""``tuner best`` and ``tuner export``: answers from the store."""

from __future__ import annotations

from pathlib import Path

import click

from tuner.catalogue import Catalogue
from tuner.cli.options import asked, database_option, json_option, problem_options
from tuner.cli.show import answer_rows, pairs, print_json
from tuner.devices.detect import find
from tuner.hardware import DeviceInfo
from tuner.lookup import Answer
from tuner.preparation import key_of
from tuner.problem import Problem

#: Formats of an export.
FORMATS = ("source", "binary", "python", "json")


def device_asked(text: str) -> DeviceInfo | str:
    """What ``--device`` means to a lookup: a device here, or the name of one in the store."""
    if text in ("", "cpu", "cuda") or text.startswith(("cuda:", "fake:")):
        return find(text).info
    return text


def answered(catalogue: Catalogue, problem: Problem, device: str, regime: str, kernel: str, db: str) -> Answer:
    """The store's answer.

    Raises:
        NothingFound: There is none.
    """
    from tuner.lookup import answer
    from tuner.store import Store

    with Store.open(db, read_only=True) as store:
        return answer(store, key_of(problem), device_asked(device), regime, kernel or None, catalogue)


@click.command()
@problem_options
@click.option("--kernel", default="", help="Only this kernel.")
@click.option("--device", default="", help='cpu, cuda:N, or a name such as "NVIDIA H200".')
@database_option
@json_option
def best(
    target: str, dims: tuple[str, ...], sets: tuple[str, ...], dtype: str, layout: str, regime: str,
    kernel: str, device: str, db: str, as_json: bool,
) -> None:  # fmt: skip
    """The stored champion for a problem, without touching a device."""
    catalogue, problem = asked(target, dims, sets, dtype, layout)
    found = answered(catalogue, problem, device, regime, kernel, db).to_json()
    if as_json:
        print_json(found)
    else:
        pairs(f"Best for {problem}", [*answer_rows(found), ("match", found["match"])])


@click.command()
@problem_options
@click.option("--kernel", default="", help="Only this kernel.")
@click.option("--device", default="", help='cpu, cuda:N, or a name such as "NVIDIA H200".')
@click.option("--format", "form", type=click.Choice(FORMATS), default="source", show_default=True)
@click.option("-o", "folder", type=click.Path(path_type=Path), required=True, help="Folder to write to.")
@database_option
def export(
    target: str, dims: tuple[str, ...], sets: tuple[str, ...], dtype: str, layout: str, regime: str,
    kernel: str, device: str, form: str, folder: Path, db: str,
) -> None:  # fmt: skip
    """Write the champion as source, binary, Python module or JSON that runs without tuner."""
    from tuner.export import export as write

    catalogue, problem = asked(target, dims, sets, dtype, layout)
    found = answered(catalogue, problem, device, regime, kernel, db)
    record = found.champion.record
    declared = catalogue.of(problem.operation.name, record.device.kind, (record.kernel,))[0]
    for path in write(found, declared, problem, form, folder):
        click.echo(str(path))
