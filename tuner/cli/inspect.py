"""``tuner devices``, ``tuner kernels`` and ``tuner doctor``: inspect devices, kernels and this machine."""

from __future__ import annotations

import click

from tuner.cli.formatting import print_json, table
from tuner.cli.options import OPERATION, database_option, json_option
from tuner.declare.catalogue import builtin
from tuner.lookup.asking import DEFAULT_DATABASE
from tuner.requests.catalogue import devices_json, kernels_json, own_devices


@click.command()
@json_option
def devices(as_json: bool) -> None:
    """List the devices of this machine; commands use the first unless --device names another."""
    found = own_devices()
    if as_json:
        print_json(devices_json(found))
        return
    rows = [
        (
            each.spec, each.info.name, each.info.architecture, f"{each.info.memory_bytes / 2**30:.0f} GiB",
            " ".join((each.info.driver, each.info.runtime)), each.info.uuid,
        )
        for each in found
    ]  # fmt: skip
    table("", ("device", "name", "architecture", "memory", "driver", "uuid"), rows)


@click.command()
@click.argument("operation", required=False, shell_complete=OPERATION)
@json_option
def kernels(operation: str | None, as_json: bool) -> None:
    """List the kernels, with their parameters and constraints."""
    catalogue = builtin()
    found = catalogue.of(operation) if operation else catalogue.kernels
    if as_json:
        print_json(kernels_json(catalogue, operation or ""))
        return
    for kernel in found:
        rows = [(each.name, " ".join(map(str, each.values))) for each in kernel.parameters]
        table(f"{kernel.operation} {kernel.target} {kernel.name}: {kernel.idea}", ("parameter", "values"), rows)
        for constraint in kernel.constraints:
            click.echo(f"  - {constraint.sentence}")
        click.echo()


@click.command()
@database_option
@json_option
def doctor(db: str, as_json: bool) -> None:
    """Check this machine, and print a remedy for each problem."""
    from tuner.cli.health import checks

    found = list(checks(db or DEFAULT_DATABASE))
    if as_json:
        print_json([each.to_json() for each in found])
    else:
        marks = {"ok": "ok", "note": "note", "bad": "BAD"}
        rows = [(marks[each.state], each.what, each.said, each.remedy) for each in found]
        table("", ("", "what", "found", "what to do"), rows)
    if any(each.state == "bad" for each in found):
        raise click.exceptions.Exit(3)
