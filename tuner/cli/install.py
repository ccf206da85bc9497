"""``tuner nightly --install`` and ``--last``: how nights are set up, and how the last one ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import print_json
from tuner.errors import InputError


def install(
    how: str, path: Path, *, at: str, until: str | None, notify: str, db: str, folder: Path | None,
    system: bool, write: bool,
) -> None:  # fmt: skip
    """Prints, or writes, what begins a plan every night.

    Raises:
        InputError: There is no such plan, or a path that cannot be named there.
    """
    from tuner.nightly.plan import clock_time, read_plan
    from tuner.watch import installing

    read_plan(path)
    clock_time(at)
    where = (folder or Path("nights")).absolute()
    if any("\n" in str(each) for each in (path.absolute(), where)):
        raise InputError("paths of a night are single lines, got one with a line break; rename it")
    setup = installing.Setup(path.absolute(), at, _absolute(db), where, until or "", notify)
    if how == "cron":
        _cron(setup, write)
    else:
        _systemd(setup, system, write)


def _absolute(db: str) -> str:
    """A database's URL that holds in any folder."""
    prefix = "sqlite:///"
    if not db.startswith(prefix) or db.startswith(f"{prefix}/"):
        return db
    return f"{prefix}{Path(db.removeprefix(prefix)).absolute()}"


def _systemd(setup: Any, system: bool, write: bool) -> None:
    from tuner.watch import installing

    units, folder = installing.systemd(setup, system), installing.units_folder(system)
    if not write:
        for name, text in units.items():
            click.echo(f"# {folder / name}\n{text}")
        _beside(setup, write)
        click.echo("# --write puts these files there; then:")
    else:
        for path in installing.written(folder, units):
            click.echo(f"wrote {path}")
        _beside(setup, write)
        click.echo("now run:")
    for command in installing.enabling(setup, system):
        click.echo(f"  {command}")


def _cron(setup: Any, write: bool) -> None:
    from tuner.watch import installing

    lines = installing.cron(setup)
    if write:
        (path,) = installing.written(setup.folder, {"crontab": lines})
        _beside(setup, write)
        click.echo(f"wrote {path}; now run:\n  (crontab -l 2>/dev/null; cat {path}) | crontab -")
        return
    click.echo(lines)
    _beside(setup, write)
    click.echo("# --write puts these files there; `crontab -e` takes the lines")


def _beside(setup: Any, write: bool) -> None:
    """The environment's file, readable by its owner alone, and rules for the log."""
    from tuner.watch import installing

    if write:
        for path in installing.written(setup.folder, {"night.env": setup.environment()}, 0o600):
            click.echo(f"wrote {path}")
        for path in installing.written(setup.folder, {"logrotate.conf": installing.logrotate(setup)}):
            click.echo(f"wrote {path}; link it into /etc/logrotate.d to have the log rotated")
        return
    click.echo(f"# {setup.environment_file} (mode 600)\n{setup.environment(shown=True)}")
    click.echo(f"# {setup.folder / 'logrotate.conf'}\n{installing.logrotate(setup)}")


def tell_last(db: str, as_json: bool) -> None:
    """Says how the last night ended.

    Raises:
        NothingFound: None began.
    """
    from tuner.store import Store
    from tuner.watch.reporting import last_night

    with Store.open(db, read_only=True) as store:
        found = last_night(store)
    if as_json:
        print_json(found)
        return
    begun = found["begun_at"][:19].replace("T", " ")
    if found["ended_at"] is None:
        click.echo(
            f"the night of {begun} (UTC, {found['plan']} on {found['host']}) did not end: it still runs, or "
            f"was killed, or the machine went down; the same command goes on"
        )
        return
    counts = ", ".join(f"{count} {state}" for state, count in found["counts"].items()) or "no problems"
    stopped = f"; stopped: {found['stopped']}" if found["stopped"] else ""
    unseen = f"; no sentinels: {found['no_sentinels']}" if found["no_sentinels"] else ""
    ended = found["ended_at"][:19].replace("T", " ")
    click.echo(
        f"the night of {begun} (UTC, {found['plan']} on {found['host']}) ended {ended}: {counts}, "
        f"{found['alerts']} alerts{unseen}{stopped}; `tuner report LAST` tells the rest"
    )
