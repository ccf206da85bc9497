"""``tuner serve``."""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import print_json, table
from tuner.cli.options import database_option, json_option
from tuner.errors import EnvironmentTrouble, InputError
from tuner.service.pool import ClusterChoice, checked_name

#: Packages without which there is no server.
NEEDED = ("fastapi", "jinja2", "multipart", "prometheus_client", "sse_starlette", "uvicorn")


def _here(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Devices of this machine, for the shell's completion."""
    from tuner.devices.detect import find, gpus

    return [each.spec for each in (*gpus(), find("cpu")) if each.spec.startswith(incomplete)]


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to bind to; others than this machine's need tokens.",
)
@click.option("--port", default=8421, show_default=True, type=click.IntRange(0, 65535), help="Port to bind to.")
@click.option(
    "--local-admin",
    is_flag=True,
    help="Without tokens, let everyone on this machine submit jobs and send records, too.",
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="SPEC",
    shell_complete=_here,
    help="Let jobs use this device only; repeat for several.  [default: all of this machine]",
)
@click.option("--no-jobs", is_flag=True, help="Run no jobs here.")
@click.option(
    "--cluster",
    default="",
    metavar="CLUSTER",
    help="Run jobs on a fleet: local, tcp://HOST:8786, slurm:FILE.toml or pbs:FILE.toml (docs/fleet.md).",
)
@click.option("--tls-ca", type=click.Path(path_type=Path), help="With --cluster: the authority, PEM.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="With --cluster: the certificate, PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="With --cluster: the private key, PEM.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Answer requests to this host name, too; repeat for several.",
)
@click.option("--root-path", default="", metavar="/PATH", help="Path under which a proxy serves this.")
@click.option(
    "--behind-proxy", is_flag=True, help="Believe a proxy on this machine about the client's address."
)
@click.option(
    "--db",
    envvar="TUNER_DB",
    default="sqlite:///studies.db",
    show_default=True,
    metavar="URL",
    help="Database; the variable TUNER_DB sets it, too.",
)
def serve(root_path: str, devices: tuple[str, ...], hosts: tuple[str, ...], db: str, **asked: Any) -> None:
    """Serve answers, records, jobs and pages over HTTP.

    Without tokens (`tuner token create`), only this machine is served, and may only read unless --local-admin
    is given. Jobs run in processes of their own; they go on if the server ends, and the next one finds them.
    """
    check_packages()
    if root_path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", root_path):
        raise InputError(f"--root-path is a path such as /tuner, without a slash at its end, got {root_path!r}")
    cluster = cluster_of(asked)
    gc.disable()  # what is read until the server answers stays: looking through it takes a sixth of the start
    from tuner.service.app import run
    from tuner.service.state import Settings

    run(
        Settings(
            db, asked["host"], asked["port"], devices, asked["local_admin"], hosts, root_path,
            asked["behind_proxy"], jobs=not asked["no_jobs"], cluster=cluster,
        )
    )  # fmt: skip


def cluster_of(asked: Mapping[str, Any]) -> ClusterChoice | None:
    """The cluster that runs jobs; None without one.

    Args:
        asked: Values of the command's options.

    Raises:
        InputError: It is no cluster, or its options are incomplete.
        EnvironmentTrouble: The packages of a fleet are not installed.
    """
    cluster = asked["cluster"]
    tls = tuple(asked[name].absolute() for name in ("tls_ca", "tls_cert", "tls_key") if asked[name] is not None)
    if not cluster:
        if tls:
            raise InputError("--tls-... belong to --cluster, got none; add it, or leave them out")
        return None
    if tls and len(tls) < 3:
        raise InputError(
            f"TLS takes --tls-ca, --tls-cert and --tls-key, got {len(tls)} of them; give all three"
        )
    return ClusterChoice(checked_name(cluster), tls=tls)


def check_packages() -> None:
    """Fails if the packages of the service are not installed.

    Raises:
        EnvironmentTrouble: One is missing; the message says how to install it.
    """
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise EnvironmentTrouble(
            f"the service needs packages that are not installed ({', '.join(missing)}); install them with "
            f"`pip install 'tile-tuner[serve]'`, or run it from a checkout with `scripts/tuner serve`"
        )


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
