"""``tuner token`` and ``tuner allow``: who may use the service, and which kernel files its jobs may name."""

from __future__ import annotations

from pathlib import Path

import click

from tuner.cli.formatting import print_json, table
from tuner.cli.options import database_option, json_option
from tuner.errors import InputError


@click.group()
def token() -> None:
    """Make, list and revoke tokens of the service."""


@token.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", default="read", show_default=True, metavar="read,submit,records,admin",
    help="What it allows: read answers and pages; submit and cancel jobs; send records; all of it.",
)  # fmt: skip
@click.option("--days", type=float, default=90.0, show_default=True, help="Days for which it is valid.")
@database_option
@json_option
def create(name: str, scopes: str, days: float, db: str, as_json: bool) -> None:
    """Make a token and print it. It is shown this once: only a hash of it is stored."""
    from tuner.service.tokens import create as new_token
    from tuner.store import Store

    wanted = [each.strip() for each in scopes.split(",") if each.strip()]
    with Store.open(db) as store:
        secret = new_token(store, name, wanted, days)
    if as_json:
        print_json({"name": name, "token": secret, "scopes": wanted, "days": days})
        return
    click.echo(secret)
    click.echo(f"token {name!r} is valid for {days:g} days; keep it now, it is stored nowhere", err=True)


@token.command("list")
@database_option
@json_option
def list_(db: str, as_json: bool) -> None:
    """List the tokens, with what they allow and when they were last used."""
    from tuner.store import Store, access

    with Store.open(db, read_only=True) as store:
        found = [each.to_json() for each in access.every(store)]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["name"], each["state"], " ".join(each["scopes"]), each["expires_at"][:10],
            (each["used_at"] or "never")[:16],
        )
        for each in found
    ]  # fmt: skip
    table("", ("token", "state", "allows", "expires", "last used"), rows)


@token.command()
@click.argument("name")
@database_option
def revoke(name: str, db: str) -> None:
    """Revoke a token for good. A running server notices within seconds."""
    from tuner.store import Store, access

    with Store.open(db) as store:
        access.revoke(store, name)
    click.echo(f"token {name!r} is revoked", err=True)


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--list", "listed", is_flag=True, help="List the files that are allowed on this machine.")
@click.option("--remove", is_flag=True, help="Allow FILE no more.")
@database_option
@json_option
def allow(file: Path | None, listed: bool, remove: bool, db: str, as_json: bool) -> None:
    """Allow jobs of the service to name a kernel file of this machine.

    A kernel file is Python that is executed, with the rights of the server. It never comes over HTTP: put it on
    this machine, read it, and allow it. If it or a file that it uses changes, it must be allowed again. FILE is
    executed, to find what it uses.
    """
    from tuner.service import job_queue
    from tuner.store import Store

    if listed == (file is not None) or (remove and listed):
        raise InputError("allow takes a FILE, with --remove to allow it no more, or --list; give one of them")
    with Store.open(db) as store:
        if file is not None and remove:
            job_queue.disallow(store, file)
        elif file is not None:
            told = job_queue.allow(store, file)
            click.echo(f"allowed: {told.path} ({len(told.covers)} files)", err=True)
        found = [each.to_json() for each in job_queue.files(store)]
    if as_json:
        print_json(found)
    elif listed:
        rows = [(each["file"], each["digest"][:12], each["allowed_at"][:16]) for each in found]
        table("", ("file", "digest", "allowed"), rows)
