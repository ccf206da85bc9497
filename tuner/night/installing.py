"""``tuner nightly --install``: a service and timer of systemd, or lines of cron, and what they need.

Nothing here runs a command: texts are made, and written on request.
"""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from tuner.errors import InputError
from tuner.night.plan import clock_time, read_plan
from tuner.night.reporting import SECRET_VARIABLE, rendered

#: Environment that a night takes over from whoever installs it, if it is set.
KEPT = ("TUNER_CACHE", "TUNER_LOCKS", "CUDA_VISIBLE_DEVICES", SECRET_VARIABLE)
#: Seconds after which a night that does not end is stopped.
LIMIT_S = 14 * 3600


@dataclass(frozen=True)
class Setup:
    """What is installed.

    Attributes:
        plan: The plan's file, absolute.
        at: When nights begin, ``HH:MM`` local time.
        database: Its URL.
        folder: Folder for logs, reports and the environment's file, absolute.
        until: When nights end; empty if the plan's time alone says so.
        notify: Address that is told of the report; empty for none.
        limit_s: Seconds after which a night that does not end is stopped.
    """

    plan: Path
    at: str
    database: str
    folder: Path
    until: str = ""
    notify: str = ""
    limit_s: int = LIMIT_S

    @property
    def name(self) -> str:
        """Name of the units."""
        stem = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in self.plan.stem)
        return f"tile-tuner-{stem}"

    @property
    def command(self) -> list[str]:
        """The night's command."""
        until = ["--until", self.until] if self.until else []
        notify = ["--notify", self.notify] if self.notify else []
        reports = ["--report", str(self.folder / "reports")]
        return [sys.executable, "-m", "tuner", "nightly", str(self.plan), *until, *notify, *reports, "--quiet"]

    @cached_property
    def user(self) -> str:
        """Whose night it is."""
        return getpass.getuser()

    @property
    def log(self) -> Path:
        """File of what nights print."""
        return self.folder / "night.log"

    @property
    def environment_file(self) -> Path:
        """File of the night's environment: a database's password belongs on no command line."""
        return self.folder / "night.env"

    def environment(self, shown: bool = False) -> str:
        """Text of that file.

        Args:
            shown: True to leave out the secret that only the file may hold.
        """
        lines = {"TUNER_DB": self.database} | {name: os.environ[name] for name in KEPT if os.environ.get(name)}
        if shown and SECRET_VARIABLE in lines:
            lines[SECRET_VARIABLE] = "..."
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in lines.items())


def systemd(setup: Setup, system: bool) -> tuple[dict[Path, str], list[str]]:
    """Units of systemd, and the commands that take them into use.

    Args:
        setup: What is installed.
        system: True for units of the machine, which name the user; else they are the user's own.
    """
    root = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    folder = Path("/etc/systemd/system") if system else Path(root) / "systemd" / "user"
    units = {
        folder / f"{setup.name}.{kind}": _text(f"night.{kind}", setup, system) for kind in ("service", "timer")
    }
    scope = "" if system else " --user"
    linger = [] if system else [f"loginctl enable-linger {setup.user}"]
    enable = f"systemctl{scope} enable --now {setup.name}.timer"
    return units, [f"systemctl{scope} daemon-reload", enable, *linger]


def cron(setup: Setup) -> tuple[dict[Path, str], list[str]]:
    """The lines of a crontab, the night and again after a reboot, and the command that adds them."""
    path = setup.folder / "crontab"
    add = f"(crontab -l 2>/dev/null; cat {shlex.quote(str(path))}) | crontab -"
    return {path: _text("crontab", setup)}, [add]


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
    folder = (options["report"] or Path("nights")).absolute()
    if "\n" in f"{path.absolute()}{folder}":
        raise InputError("paths of a night are single lines, got one with a line break; rename it")
    until, write = options["until"] or "", options["write"]
    setup = Setup(path.absolute(), options["at"], absolute_url(db), folder, until, options["notify"])
    files, commands = cron(setup) if options["install"] == "cron" else systemd(setup, options["system"])
    files[setup.environment_file] = setup.environment(shown=not write)
    files[folder / "logrotate.conf"] = _text("logrotate.conf", setup)
    for file, text in files.items():
        if write:
            _write(file, text, 0o600 if file == setup.environment_file else 0o644)
        click.echo(f"wrote {file}" if write else f"# {file}\n{text}")
    click.echo("now run:" if write else "# --write puts these files there; then:")
    for command in commands:
        click.echo(f"  {command}")


def absolute_url(url: str) -> str:
    """A database's URL that holds in any folder."""
    prefix = "sqlite:///"
    return f"{prefix}{Path(url.removeprefix(prefix)).absolute()}" if url.startswith(prefix) else url


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode)
    path.chmod(mode)
    path.write_text(text, encoding="utf-8")


def _text(name: str, setup: Setup, system: bool = False) -> str:
    return rendered(name, setup=setup, system=system)
