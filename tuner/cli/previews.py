"""Prints what ``--dry-run`` tells of a study or a night."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tuner.cli.formatting import clock, print_json, table


def show_night(told: Mapping[str, Any], device: str, as_json: bool) -> None:
    """Problems with their states, and the time that they ask for."""
    if as_json:
        print_json({**told, "device": device})
        return
    rows = [
        (each["problem"], each["state"], _budget(each), each["why"].splitlines()[0] if each["why"] else "")
        for each in told["problems"]
    ]
    table(f"A night on {device}", ("problem", "state", "budget", "why"), rows)
    for each in told["surveys"]:
        click.echo(f"survey of {each['operation']}: {clock(each['seconds'])}")
    asked = "without limit" if told["asked_s"] is None else clock(told["asked_s"])
    given = "no deadline" if told["given_s"] is None else f"{clock(told['given_s'])} until the deadline"
    counts = ", ".join(f"{count} {state}" for state, count in told["counts"].items())
    click.echo(f"{counts}; time asked for: {asked}, {given}")
    if told["given_s"] is not None and (told["asked_s"] or 0) > told["given_s"]:
        click.echo("problems share what there is in slices, by what each gains")


def _budget(item: Mapping[str, Any]) -> str:
    parts = [
        f"{item['seconds']:g} s" if item["seconds"] else "",
        f"{item['trials']} trials" if item["trials"] else "",
    ]
    return " and ".join(filter(None, parts))
