"""What begins a night is accepted by systemd and by a shell, and says all that a night needs."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from fixtures.systemd import analyze

from tuner.night.command import nightly
from tuner.night.installing import Setup, cron, enabling, systemd, units_folder, written

PLAN = '[[problems]]\noperation = "gemm"\nshape = [64, 64, 64]\n'


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    folder = tmp_path / "odd 100% 'name'"
    folder.mkdir()
    (folder / "my plan.toml").write_text(PLAN)
    return Setup(
        folder / "my plan.toml", "22:30", "postgresql://me:secret@db/tuner", tmp_path / "nights", "06:30",
        "https://example.org/hook?a=1%20b",
    )  # fmt: skip


@pytest.mark.parametrize("system", [False, True])
def test_systemd_accepts_the_units(setup: Setup, tmp_path: Path, system: bool) -> None:
    setup.folder.mkdir()
    units = written(tmp_path / "units", systemd(setup, system))
    done = subprocess.run([analyze(), "verify", *units], capture_output=True, text=True, check=False)
    # A machine without systemd as its first process has no manager to ask about the rest.
    said = [line for line in done.stderr.splitlines() if "my" in line and "tile-tuner" in line]
    assert said == []
    assert done.returncode == 0, done.stderr


def test_systemd_finds_a_mistake(setup: Setup, tmp_path: Path) -> None:
    units = {name: text.replace("Type=oneshot", "Type=never") for name, text in systemd(setup, False).items()}
    done = subprocess.run(
        [analyze(), "verify", *written(tmp_path / "units", units)], capture_output=True, text=True, check=False
    )
    assert "never" in done.stderr


def test_units_have_user_nice_time_limit_log_and_what_follows_a_reboot(setup: Setup) -> None:
    service, timer = systemd(setup, True).values()
    for line in ("User=", "Nice=5", "TimeoutStartSec=50400", "KillSignal=SIGINT", "StandardOutput=append:"):
        assert line in service
    assert "SuccessExitStatus=4" in service
    assert "secret" not in service
    assert "OnCalendar=*-*-* 22:30:00" in timer
    assert "Persistent=true" in timer
    assert "User=" not in systemd(setup, False)[f"{setup.name}.service"]
    assert enabling(setup, False)[1].startswith("systemctl --user enable --now tile-tuner-my-plan.timer")
    assert units_folder(True) == Path("/etc/systemd/system")


def test_lines_of_cron_are_a_shell_s_and_have_a_lock(setup: Setup) -> None:
    for line in cron(setup).splitlines():
        if line.startswith("#"):
            continue
        command = line.partition("sleep 120; ")[2] if line.startswith("@reboot") else line.split(None, 5)[5]
        command = command.replace(r"\%", "%")
        assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0
        assert "flock -n" in command
        assert "nice -n 5" in command
    assert cron(setup).startswith("# A night")
    assert "\n30 22 * * * " in cron(setup)


def test_the_command_prints_and_with_write_puts_files_there(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "plan.toml").write_text(PLAN)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    monkeypatch.setenv("TUNER_NOTIFY_SECRET", "hush hush")

    def ran(*more: str) -> str:
        done = CliRunner().invoke(
            nightly, ["plan.toml", "--db", "sqlite:///n.db", *more], catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        return done.output

    shown = ran("--install", "systemd")
    assert "hush" not in shown
    assert "systemctl --user enable" in shown
    assert not (here / "config").exists()
    ran("--install", "systemd", "--write")
    assert (here / "config/systemd/user/tile-tuner-plan.timer").exists()
    environment = here / "nights/night.env"
    assert f"TUNER_DB=sqlite:///{here}/n.db" in environment.read_text()
    assert "hush hush" in environment.read_text()
    assert stat.S_IMODE(environment.stat().st_mode) == 0o600
    assert "* * * cd" in ran("--install", "cron")
    assert "crontab -" in ran("--install", "cron", "--write")
    assert not (here / "n.db").exists()
