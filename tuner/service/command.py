"""``tuner serve``."""

from __future__ import annotations

import re

import click

from tuner.errors import EnvironmentTrouble, InputError
from tuner.service.settings import HOST, PORT, Settings

#: Packages without which there is no server.
NEEDED = ("fastapi", "jinja2", "multipart", "prometheus_client", "sse_starlette", "uvicorn")


def _here(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Devices of this machine, for the shell's completion."""
    from tuner.devices.detect import find, gpus

    return [each.spec for each in (*gpus(), find("cpu")) if each.spec.startswith(incomplete)]


@click.command()
@click.option(
    "--host",
    default=HOST,
    show_default=True,
    help="Address to bind to; others than this machine's need tokens.",
)
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="Port to bind to.")
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
def serve(
    host: str, port: int, local_admin: bool, devices: tuple[str, ...], no_jobs: bool, hosts: tuple[str, ...],
    root_path: str, behind_proxy: bool, db: str,
) -> None:  # fmt: skip
    """Serve answers, records, jobs and pages over HTTP.

    Without tokens (`tuner token create`), only this machine is served, and may only read unless --local-admin
    is given. Jobs run in processes of their own; they go on if the server ends, and the next one finds them.
    """
    check_packages()
    if root_path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", root_path):
        raise InputError(f"--root-path is a path such as /tuner, without a slash at its end, got {root_path!r}")
    settings = Settings(db, host, port, devices, local_admin, hosts, root_path, behind_proxy, jobs=not no_jobs)
    from tuner.service.running import run

    run(settings)


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
