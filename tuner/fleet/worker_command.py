"""``tuner worker``: this machine's devices work for a fleet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])


def tls_options(command: F) -> F:
    """``--tls-ca``, ``--tls-cert`` and ``--tls-key``: certificates for Dask."""
    for name, told in (
        ("--tls-key", "Private key, PEM."),
        ("--tls-cert", "Certificate of this process, PEM."),
        ("--tls-ca", "Certificate of the authority, PEM."),
    ):
        command = click.option(name, type=click.Path(path_type=Path), help=told)(command)
    return command


@click.command()
@click.option("--scheduler", required=True, metavar="tcp://HOST:8786", help="Address of the scheduler.")
@click.option(
    "--devices", default="", metavar="SPEC", help="cuda (every GPU), cuda:N or cpu; default: all GPUs."
)
@click.option("--name", default="", help="Name of the worker; default: the machine and the device.")
@click.option("--folder", type=click.Path(path_type=Path), help="For its own records and caches.")
@click.option("--idle-exit", type=float, metavar="S", help="End after so many seconds without work.")
@click.option("--lifetime", type=float, metavar="S", help="End after so many seconds; a slice ends orderly.")
@click.option("--stall", type=float, default=240.0, metavar="S", help="Limit without progress.  [default: 240]")
@click.option("--interface", default="", metavar="NAME", help="Network interface, e.g. eth0 or ib0.")
@click.option(
    "--db", envvar="TUNER_DB", default="", metavar="URL",
    help="How this machine reaches the database, if not by the coordinator's URL; TUNER_DB sets it, too.",
)  # fmt: skip
@tls_options
def worker(scheduler: str, devices: str, name: str, folder: Path | None, **more: Any) -> None:
    """Work for a fleet: one process for each device, which takes slices of nights.

    The worker runs what the scheduler's clients send, as Dask does: connect it to a scheduler that you trust,
    and let nobody else reach that scheduler.
    """
    from tuner.devices.detect import find_each
    from tuner.fleet.clusters import Certificates
    from tuner.fleet.worker import Options, serve, serve_each

    certificates = Certificates(more["tls_ca"], more["tls_cert"], more["tls_key"])
    certificates.security("worker")
    found = find_each(devices)
    if len(found) == 1:
        url = "" if more["db"].startswith("sqlite") else more["db"]
        options = Options(
            scheduler, folder, name, url, more["idle_exit"], more["lifetime"], more["stall"], certificates,
            more["interface"],
        )  # fmt: skip
        serve(found[0], options)
        return
    given = _again(scheduler, folder, more)
    sys.exit(serve_each(found, lambda each: [*given, "--devices", each.spec, *_named(name, each.spec)]))


def _again(scheduler: str, folder: Path | None, more: dict[str, Any]) -> list[str]:
    """The same command without its devices; the database's URL stays in the environment."""
    names = ("stall", "interface", "idle_exit", "lifetime", "tls_ca", "tls_cert", "tls_key")
    given = {"--scheduler": scheduler, "--folder": folder}
    given |= {f"--{name.replace('_', '-')}": more[name] for name in names}
    values = [(option, str(value)) for option, value in given.items() if value not in (None, "")]
    return ["worker", *(text for pair in values for text in pair)]


def _named(name: str, spec: str) -> list[str]:
    return ["--name", f"{name}-{spec}"] if name else []
