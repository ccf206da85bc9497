"""Defaults of files: where they hold, and where they come from."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from fixtures.fake_device import TOY, write_device

import tuner
from tuner.cli.main import command_line, run
from tuner.lookup.asking import default_database


@pytest.fixture
def folders(here: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder that commands run in, and the user's own."""
    own = here / "own config"
    own.mkdir()
    monkeypatch.setenv("TUNER_CONFIG", str(own))
    return here, own


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["config", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_folder_goes_before_the_user_and_a_command_before_all(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, own = folders
    device = write_device(here / "device.json")
    (own / "tuner.toml").write_text(
        f'device = "{device}"\nquiet = true\n[tune]\ntrials = 7\nsampler = "random"\n'
    )
    (here / "tuner.toml").write_text('db = "sqlite:///mine.db"\n[tune]\ntrials = 4\n')
    assert run(["tune", str(TOY), "1000"]) == 0
    assert capsys.readouterr().err.count("\n") == 1
    assert len(tuner.records(role="trial")) == 4
    assert (here / "mine.db").exists()
    assert run(["tune", str(TOY), "1000", "--trials", "6"]) == 0
    capsys.readouterr()
    assert len(tuner.records(role="trial")) == 6
    rows = {(each["command"], each["option"]): each for each in shown(capsys)["values"]}
    assert rows["tune", "trials"] == {
        "command": "tune", "option": "trials", "value": 4, "from": str(here / "tuner.toml"),
    }  # fmt: skip
    assert rows["tune", "sampler"]["from"] == str(own / "tuner.toml")
    monkeypatch.setenv("TUNER_DB", "sqlite:///other.db")
    assert default_database() == "sqlite:///other.db"
    assert shown(capsys)["values"][0]["from"] == "TUNER_DB"


def test_without_files_nothing_is_set(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys)["values"] == []
    assert run(["config"]) == 0
    assert "tuner.toml: not there" in capsys.readouterr().out
    assert default_database() == "sqlite:///studies.db"


@pytest.mark.parametrize(("text", "command", "message"), [
    ("devise = 1", "config", "unknown option in {file} 'devise'; did you mean device"),
    ("[tunes]\nseconds = 1", "config", "unknown command in {file} 'tunes'; did you mean tune"),
    ("[best]\nseconds = 1", "best gemm 8 8 8", "unknown option of best in {file} 'seconds'"),
    ("seconds =", "best gemm 8 8 8", "{file} holds defaults as TOML, it cannot be read"),
])  # fmt: skip
def test_what_a_file_says_wrongly_is_told(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str], text: str, command: str, message: str
) -> None:
    file = folders[0] / "tuner.toml"
    file.write_text(text)
    assert run(command.split()) == 2
    assert message.format(file=file) in capsys.readouterr().err


# --- completion ----------------------------------------


@pytest.mark.parametrize(("line", "incomplete", "some", "none"), [
    ("", "rec", {"records"}, {"tune"}),
    ("devices", "--j", {"--json"}, {"--help"}),
    ("tune", "ge", {"gemm", "gemv"}, {"transpose"}),
    ("tune gemm --kernel", "", {"register_tiled", "packed"}, {"blocks"}),
    (f"tune {TOY} --kernel", "", {"blocks", "chunks"}, {"packed"}),
    ("tune gone.py --kernel", "", set(), {"packed"}),
    ("tune gemm --device", "c", {"cpu", "cuda"}, set()),
    ("tune gemm --sampler", "t", {"tile", "tpe"}, {"random"}),
    ("tune gemm --layout", "", {"nn", "tt"}, set()),
    ("tune gemm --dtype", "", {"float32", "bfloat16"}, {"int8"}),
    ("tune gemm --regime", "", {"cold", "hot"}, set()),
])  # fmt: skip
def test_names_are_suggested(line: str, incomplete: str, some: set[str], none: set[str]) -> None:
    shell = ShellComplete(command_line, {}, "tuner", "_TUNER_COMPLETE")
    suggested = {item.value for item in shell.get_completions(line.split(), incomplete)}
    assert some <= suggested
    assert not none & suggested
