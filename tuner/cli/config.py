"""``tuner config``: the defaults that hold here, and where they come from; and how commands get them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.formatting import print_json, table
from tuner.cli.options import json_option
from tuner.devices.settings import Setting, files, read
from tuner.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def default_map(group: click.Group, name: str, known: Mapping[tuple[str, str], Setting]) -> dict[str, Any]:
    """Defaults of a command, as click takes them.

    Args:
        group: The group of all commands.
        name: The command.
        known: What files say.

    Raises:
        UnknownName: A file sets an option that the command does not have.
    """
    command = group.get_command(click.Context(group), name)
    assert command is not None
    return _defaults(command, name, known)


def _defaults(command: click.Command, name: str, known: Mapping[tuple[str, str], Setting]) -> dict[str, Any]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        within = {each: command.get_command(context, each) for each in command.list_commands(context)}
        shared = {key: each for key, each in known.items() if key[0] in ("", name)}
        return {
            each: _defaults(one, each, {("", option): told for (_, option), told in shared.items()})
            for each, one in within.items()
            if one is not None
        }
    options = {option: each.name for each in command.params for option in _words(each)}
    found: dict[str, Any] = {}
    for (of, option), told in sorted(known.items(), key=lambda each: each[0][0] != ""):
        word = option.replace("-", "_")
        if of == name and word not in options:
            raise UnknownName(f"option of {name} in {told.file}", option, options)
        if of in ("", name) and word in options and options[word] is not None:
            found[str(options[word])] = told.value
    return found


def _words(parameter: click.Parameter) -> list[str]:
    """The names by which a file may set an option."""
    if isinstance(parameter, click.Argument):
        return []
    return [each.lstrip("-").replace("-", "_") for each in parameter.opts if each.startswith("--")]


def check_known(group: click.Group, known: Mapping[tuple[str, str], Setting]) -> None:
    """Refuses tables and options that no command has.

    Raises:
        UnknownName: There is one; the message names the file.
    """
    context = click.Context(group)
    commands = group.list_commands(context)
    every: set[str] = set()
    for name in commands:
        command = group.get_command(context, name)
        assert command is not None
        parts = command.commands.values() if isinstance(command, click.Group) else (command,)
        every |= {word for part in parts for each in part.params for word in _words(each)}
    for (of, option), told in known.items():
        if of and of not in commands:
            raise UnknownName(f"command in {told.file}", of, commands)
        if not of and option.replace("-", "_") not in every:
            raise UnknownName(f"option in {told.file}", option, every)


@click.command()
@json_option
@click.pass_context
def config(context: click.Context, as_json: bool) -> None:
    """Show the defaults that tuner.toml and the environment set here, and where they come from.

    A file holds names of options with their values: what stands above all tables holds for every command that
    has such an option, what stands in a table [tune] for that command. tuner.toml in this folder goes before
    the one in the user's config folder; the environment and the command line go before both.
    """
    known = read()
    group = context.find_root().command
    assert isinstance(group, click.Group)
    check_known(group, known)
    rows = list(_rows(known))
    if as_json:
        print_json(
            {"files": [{"path": str(each), "found": each.is_file()} for each in files()], "values": rows}
        )
        return
    for each in files():
        click.echo(f"{each}: {'read' if each.is_file() else 'not there'}")
    if rows:
        shown = [(row["command"] or "all", row["option"], str(row["value"]), row["from"]) for row in rows]
        table("", ("command", "option", "value", "from"), shown)
    else:
        click.echo("nothing is set: every option has the default that --help shows")


def _rows(known: Mapping[tuple[str, str], Setting]) -> Iterator[dict[str, Any]]:
    for variable, option in (("TUNER_DB", "db"),):
        if os.environ.get(variable):
            yield {"command": "", "option": option, "value": os.environ[variable], "from": variable}
    for (command, option), told in sorted(known.items()):
        yield {"command": command, "option": option, "value": told.value, "from": str(told.file)}
