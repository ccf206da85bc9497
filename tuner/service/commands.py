"""``tuner serve``."""

import gc
import re
from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import print_json, show
from tuner.cli.options import DEVICE, data_options, database_option
from tuner.errors import InputError
from tuner.service import pool, tokens
from tuner.store import Store


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True,
    help="Address to bind to; others than this machine's need tokens.",
)  # fmt: skip
@click.option("--port", default=8421, show_default=True, type=click.IntRange(0, 65535), help="Port to bind to.")
@click.option(
    "--local-admin", is_flag=True,
    help="Without tokens, let everyone on this machine submit jobs and send records, too.",
)  # fmt: skip
@click.option(
    "--device", "devices", multiple=True, metavar="SPEC", shell_complete=DEVICE,
    help="Let jobs use this device only; repeat for several.  [default: all of this machine]",
)  # fmt: skip
@click.option("--no-jobs", is_flag=True, help="Run no jobs here.")
@click.option(
    "--cluster", default="", metavar="CLUSTER",
    help="Run jobs on a fleet: local, tcp://HOST:8786, slurm:FILE.toml or pbs:FILE.toml (docs/fleet.md).",
)  # fmt: skip
@click.option("--tls-ca", type=click.Path(), help="With --cluster: the authority, PEM.")
@click.option("--tls-cert", type=click.Path(), help="With --cluster: the certificate, PEM.")
@click.option("--tls-key", type=click.Path(), help="With --cluster: the private key, PEM.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME",
    help="Answer requests to this host name, too; repeat for several.",
)  # fmt: skip
@click.option("--root-path", default="", metavar="/PATH", help="Path under which a proxy serves this.")
@click.option("--behind-proxy", "proxied", is_flag=True, help="Believe a local proxy about clients' addresses.")
@database_option
def serve(no_jobs: bool, **settings: Any) -> None:
    """Serve answers, records, jobs and pages over HTTP.

    Without tokens (`tuner token create`), only this machine is served, and may only read unless --local-admin
    is given. Jobs run in processes of their own; they go on if the server ends, and the next one finds them.
    """
    path, cluster = settings["root_path"], settings["cluster"]
    if path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
        raise InputError(f"--root-path is a path such as /tuner, without a slash at its end, got {path!r}")
    if not re.fullmatch(r"(local|(tcp|tls)://.+|(slurm|pbs):.+)?", cluster):
        forms = "local, tcp://HOST:8786, tls://HOST:8786, slurm:FILE.toml or pbs:FILE.toml"
        raise InputError(f"a cluster is {forms}, got {cluster!r}; choose one of them")
    files = {name: settings.pop(f"tls_{name}") for name in ("ca", "cert", "key")}
    tls = tuple(f"--tls-{name}={path}" for name, path in files.items() if path)
    gc.disable()  # what is read until the server answers stays: looking through it takes a sixth of the start
    from tuner.service.app import run
    from tuner.service.state import Settings

    run(Settings(**settings, jobs=not no_jobs, tls=tls))


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
@data_options
def create(name: str, scopes: str, days: float, db: str, as_json: bool) -> None:
    """Make a token and print it. It is shown this once: only a hash of it is stored."""
    wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    with Store.open(db) as store:
        secret = tokens.create(store, name, wanted, days)
    if as_json:
        print_json({"name": name, "token": secret, "scopes": wanted, "days": days})
        return
    click.echo(secret)
    click.echo(f"token {name!r} is valid for {days:g} days; keep it now, it is stored nowhere", err=True)


@token.command("list")
@data_options
def list_(db: str, as_json: bool) -> None:
    """List the tokens, with what they allow and when they were last used."""
    with Store.open(db, read_only=True) as store:
        items = list(map(tokens.token_json, tokens.tokens(store)))
    rows = []
    for item in items:
        until, used = item["expires_at"][:10], (item["used_at"] or "never")[:16]
        rows.append((item["name"], item["state"], " ".join(item["scopes"]), until, used))
    show(as_json, items, "", ("token", "state", "allows", "expires", "last used"), rows)


@token.command("revoke")
@click.argument("name")
@database_option
def revoke_(name: str, db: str) -> None:
    """Revoke a token for good. A running server notices within seconds."""
    with Store.open(db) as store:
        tokens.revoke(store, name)
    click.echo(f"token {name!r} is revoked", err=True)


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--list", "listed", is_flag=True, help="List the files that are allowed on this machine.")
@click.option("--remove", is_flag=True, help="Allow FILE no more.")
@data_options
def allow(file: Path | None, listed: bool, remove: bool, db: str, as_json: bool) -> None:
    """Allow jobs of the service to name a kernel file of this machine.

    A kernel file is Python that is executed, with the rights of the server. It never comes over HTTP: put it on
    this machine, read it, and allow it. If it or a file that it uses changes, it must be allowed again. FILE is
    executed, to find what it uses.
    """
    if listed == (file is not None) or (remove and listed):
        raise InputError("allow takes a FILE, with --remove to allow it no more, or --list; give one of them")
    with Store.open(db) as store:
        if file is not None and remove:
            pool.disallow(store, file)
        elif file is not None:
            click.echo(f"allowed: {file}, with {len(pool.allow(store, file))} sources", err=True)
        files = pool.allowed_json(store)
    if listed or as_json:
        rows = [(row["file"], row["digest"][:12], row["allowed_at"][:16]) for row in files]
        show(as_json, files, "", ("file", "digest", "allowed"), rows)
