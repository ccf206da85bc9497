"""What begins a night is accepted by systemd and by a shell, and says all that a night needs."""

import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.cli.main import run

PLAN = '[[problems]]\noperation = "gemm"\nshape = [64, 64, 64]\n'
Shown = Callable[..., tuple[dict[Path, str], list[str]]]


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shown:
    """What `--install` prints: the texts of its files, and the commands."""
    folder = tmp_path / "odd 100% 'name'"
    folder.mkdir()
    (folder / "my plan.toml").write_text(PLAN)

    def called(*kind: str) -> tuple[dict[Path, str], list[str]]:
        options = ["--at", "22:30", "--until", "06:30", "--notify", "https://example.org/hook?a=1%20b"]
        where = ["--db", "postgresql://me:secret@db/tuner", "--report", str(tmp_path / "nights")]
        assert run(["nightly", str(folder / "my plan.toml"), "--install", *kind, *options, *where]) == 0
        _, *parts = re.split(r"^# (/.*)\n", capsys.readouterr().out, flags=re.MULTILINE)
        files, _, commands = parts[-1].partition("# --write puts these files there; then:\n")
        parts[-1] = files
        named = zip(map(Path, parts[::2]), parts[1::2], strict=True)
        return dict(named), [line.strip() for line in commands.splitlines()]

    return called


def verified(folder: Path, units: dict[Path, str]) -> subprocess.CompletedProcess[str]:
    """What systemd says of units: they are never taken for checked where it is missing."""
    analyze = shutil.which("systemd-analyze")
    assert analyze, "scripts/test installs systemd where it may, else run `apt-get install systemd`"
    paths = [folder / path.name for path in units]
    for path, text in zip(paths, units.values(), strict=True):
        path.write_text(text)
    return subprocess.run([analyze, "verify", *paths], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("system", [False, True])
def test_systemd_accepts_the_units(shown: Shown, tmp_path: Path, system: bool) -> None:
    files, commands = shown("systemd", *(["--system"] if system else []))
    units = {path: text for path, text in files.items() if path.suffix in (".service", ".timer")}
    done = verified(tmp_path, units)
    # A machine without systemd as its first process has no manager to ask about the rest.
    assert [line for line in done.stderr.splitlines() if "my" in line and "tile-tuner" in line] == []
    assert done.returncode == 0, done.stderr
    assert commands[1].endswith(" enable --now tile-tuner-my-plan.timer")
    assert ("--user" in commands[1]) != system
    service, timer = units.values()
    for part in ("\nNice=5", "\nTimeoutStartSec=50400", "\nKillSignal=SIGINT", " --from=22:30 --until=06:30 "):
        assert part in service
    assert ("\nUser=" in service) == system
    assert "secret" not in service
    assert "OnCalendar=*-*-* 22:30:00" in timer


def test_lines_of_cron_are_a_shell_s_and_have_a_lock(shown: Shown) -> None:
    (text,) = (text for path, text in shown("cron")[0].items() if path.name == "crontab")
    assert text.startswith("# A night")
    assert "\n30 22 * * * " in text
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 2
    for line in lines:
        command = line.partition("sleep 120; ")[2] if line.startswith("@reboot") else line.split(None, 5)[5]
        command = command.replace(r"\%", "%")
        assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0
        assert "flock -n" in command
        assert "nice -n 5" in command
        assert "a=1%20b" in command


def test_the_command_prints_and_with_write_puts_files_there(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "plan.toml").write_text(PLAN)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    monkeypatch.setenv("TUNER_NOTIFY_SECRET", "hush hush")

    def printed(*more: str) -> str:
        assert run(["nightly", "plan.toml", "--db", "sqlite:///n.db", "--install", *more]) == 0
        return capsys.readouterr().out

    text = printed("systemd")
    assert "hush" not in text
    assert "systemctl --user enable" in text
    assert not (here / "config").exists()
    printed("systemd", "--write")
    assert (here / "config/systemd/user/tile-tuner-plan.timer").exists()
    environment = here / "nights/night.env"
    assert f"TUNER_DB=sqlite:///{here}/n.db" in environment.read_text()
    assert "hush hush" in environment.read_text()
    assert stat.S_IMODE(environment.stat().st_mode) == 0o600
    assert "* * * cd" in printed("cron")
    assert "crontab -" in printed("cron", "--write")
    assert not (here / "n.db").exists()
