"""``tuner nightly --install``: a service and timer of systemd, or lines of cron, and what they need.

Nothing here runs a command: texts are made, and written on request.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tuner.errors import InputError
from tuner.night.plan import LONGEST_NIGHT_H, clock_time, read_plan
from tuner.night.reporting import SECRET_VARIABLE, rendered

#: Environment that a night takes over from whoever installs it, if it is set.
KEPT = ("TUNER_CACHE", "TUNER_LOCKS", "CUDA_VISIBLE_DEVICES", SECRET_VARIABLE)


def install(path: Path, db: str, options: Mapping[str, Any]) -> None:
    """Prints, or writes, what begins a plan every night.

    Args:
        path: The plan.
        db: URL of the database.
        options: The command's.

    Raises:
        InputError: There is no such plan, or a path that cannot be named there.
    """
    read_plan(path)
    clock_time(options["at"])
    plan, folder = path.absolute(), (options["report"] or Path("nights")).absolute()
    if "\n" in f"{plan}{folder}":
        raise InputError("paths of a night are single lines, got one with a line break; rename it")
    name = f"tile-tuner-{re.sub(r'[^a-zA-Z0-9_-]', '-', plan.stem)}"
    places, commands = _cron(folder) if options["install"] == "cron" else _systemd(name, options["system"])
    values = {
        "plan": plan, "at": options["at"], "folder": folder, "name": name, "user": getpass.getuser(),
        "log": folder / "night.log", "environment": folder / "night.env", "limit_s": LONGEST_NIGHT_H * 3600,
        "command": _command(plan, folder, options), "system": options["system"],
    }  # fmt: skip
    files = {folder / "night.env": _environment(absolute_url(db), hidden=not options["write"])}
    files |= {file: rendered(template, **values) for template, file in places.items()}
    for file, text in files.items():
        if options["write"]:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            file.chmod(0o600 if file.suffix == ".env" else 0o644)
            file.write_text(text, encoding="utf-8")
        click.echo(f"wrote {file}" if options["write"] else f"# {file}\n{text}")
    click.echo("now run:" if options["write"] else "# --write puts these files there; then:")
    click.echo("\n".join(f"  {command}" for command in commands))


def _command(plan: Path, folder: Path, options: Mapping[str, Any]) -> list[str]:
    """The night's command."""
    since = options["since"] or (options["at"] if options["until"] else "")
    named = {"from": since, "until": options["until"], "notify": options["notify"]}
    more = [f"--{key}={value}" for key, value in named.items() if value]
    return [
        sys.executable, "-m", "tuner", "nightly", str(plan), *more, "--report", f"{folder}/reports", "--quiet",
    ]  # fmt: skip


def _systemd(name: str, system: bool) -> tuple[dict[str, Path], list[str]]:
    """Templates of units with their places, of the machine or the user, and the commands that begin them."""
    root = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    folder = Path("/etc/systemd/system") if system else Path(root) / "systemd" / "user"
    units = {f"night.{kind}": folder / f"{name}.{kind}" for kind in ("service", "timer")}
    scope, linger = ("", []) if system else (" --user", [f"loginctl enable-linger {getpass.getuser()}"])
    return units, [f"systemctl{scope} daemon-reload", f"systemctl{scope} enable --now {name}.timer", *linger]


def _cron(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The lines of a crontab, the night and again after a reboot, and the command that adds them."""
    path = folder / "crontab"
    return {"crontab": path}, [f"(crontab -l 2>/dev/null; cat {shlex.quote(str(path))}) | crontab -"]


def _environment(database: str, hidden: bool) -> str:
    """Text of the environment's file, for passwords belong on no command line; the secret may be hidden."""
    kept = {"TUNER_DB": database} | {name: os.environ[name] for name in KEPT if os.environ.get(name)}
    if hidden and SECRET_VARIABLE in kept:
        kept[SECRET_VARIABLE] = "..."
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in kept.items())


def absolute_url(url: str) -> str:
    """A database's URL that holds in any folder."""
    prefix = "sqlite:///"
    return f"{prefix}{Path(url.removeprefix(prefix)).absolute()}" if url.startswith(prefix) else url
