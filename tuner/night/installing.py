"""Sets a night up: a service and timer of systemd, or lines of cron, and what is needed beside them.

Nothing here runs a command: texts are made, and written on request.
"""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

#: Environment that a night takes over from whoever installs it, if it is set.
KEPT = ("TUNER_CACHE", "TUNER_LOCKS", "CUDA_VISIBLE_DEVICES", "TUNER_NOTIFY_SECRET")


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
        hours: Hours after which a night that does not end is stopped.
    """

    plan: Path
    at: str
    database: str
    folder: Path
    until: str = ""
    notify: str = ""
    hours: float = 14.0

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
        if shown and "TUNER_NOTIFY_SECRET" in lines:
            lines["TUNER_NOTIFY_SECRET"] = "..."
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in lines.items())


def systemd(setup: Setup, system: bool) -> dict[str, str]:
    """Units of systemd: file name -> text.

    Args:
        setup: What is installed.
        system: True for units of the machine, which name the user; else they are the user's own.
    """
    return {f"{setup.name}.service": _service(setup, system), f"{setup.name}.timer": _timer(setup)}


def _service(setup: Setup, system: bool) -> str:
    user = f"User={getpass.getuser()}\n" if system else ""
    log = _escaped(setup.folder / "night.log")
    return f"""\
[Unit]
Description=A night of tile-tuner: {setup.plan.name}
After=network-online.target nvidia-persistenced.service
Wants=network-online.target

[Service]
Type=oneshot
{user}WorkingDirectory={_escaped(setup.plan.parent)}
EnvironmentFile={_escaped(setup.environment_file)}
ExecStart={" ".join(_quoted(each) for each in setup.command)}
# 4: alerts, which are in the report.
SuccessExitStatus=4
Nice=5
IOSchedulingClass=best-effort
IOSchedulingPriority=6
TimeoutStartSec={int(setup.hours * 3600)}
# The night ends as by Ctrl-C: finished trials are kept.
KillSignal=SIGINT
TimeoutStopSec=120
StandardOutput=append:{log}
StandardError=append:{log}
"""


def _timer(setup: Setup) -> str:
    return f"""\
[Unit]
Description=Begins a night of tile-tuner: {setup.plan.name}

[Timer]
OnCalendar=*-*-* {setup.at}:00
# After a reboot in mid-night, and for a night that was missed: it goes on where the last one stopped.
Persistent=true
OnBootSec=5min
RandomizedDelaySec=60
Unit={setup.name}.service

[Install]
WantedBy=timers.target
"""


def units_folder(system: bool) -> Path:
    """Where systemd looks for units."""
    if system:
        return Path("/etc/systemd/system")
    root = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(root) / "systemd" / "user"


def enabling(setup: Setup, system: bool) -> list[str]:
    """The commands that take the units into use."""
    scope = "" if system else " --user"
    linger = [] if system else [f"loginctl enable-linger {getpass.getuser()}"]
    return [f"systemctl{scope} daemon-reload", f"systemctl{scope} enable --now {setup.name}.timer", *linger]


def cron(setup: Setup) -> str:
    """The lines of a crontab: the night, and again after a reboot."""
    hour, minute = setup.at.split(":")
    limit = f"timeout --signal=INT --kill-after=120 {int(setup.hours * 3600)}"
    folder, log, lock, environment = (
        shlex.quote(str(each))
        for each in (
            setup.plan.parent, setup.folder / "night.log", setup.folder / "night.lock", setup.environment_file,
        )
    )  # fmt: skip
    run = f"cd {folder} && set -a && . {environment} && set +a && nice -n 5 flock -n {lock}"
    # In a crontab a percent sign ends the command.
    line = f"{run} {limit} {shlex.join(setup.command)} >> {log} 2>&1".replace("%", r"\%")
    return (
        f"# A night of tile-tuner: {setup.plan.name}. While one still runs, flock lets no second one begin.\n"
        f"{int(minute)} {int(hour)} * * * {line}\n"
        f"# After a reboot the night goes on where it stopped.\n"
        f"@reboot sleep 120; {line}\n"
    )


def logrotate(setup: Setup) -> str:
    """Rules of logrotate for the night's log."""
    return (
        f'"{setup.folder / "night.log"}" {{\n    weekly\n    rotate 8\n    compress\n    missingok\n'
        "    notifempty\n    copytruncate\n}\n"
    )


def written(folder: Path, texts: dict[str, str], mode: int = 0o644) -> list[Path]:
    """Writes files into a folder, which is made; returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in texts.items():
        path = folder / name
        path.touch(mode)
        path.chmod(mode)
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def _escaped(path: Path) -> str:
    """A path in a unit: a percent sign begins a specifier there."""
    return str(path).replace("%", "%%")


def _quoted(text: str) -> str:
    """A word of a unit's command line (systemd.service(5), "Command lines")."""
    text = text.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    if not text or any(letter in text for letter in " \t\"';"):
        return '"' + text.replace('"', '\\"') + '"'
    return text
