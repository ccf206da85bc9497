"""The command line, called in this process: what bad input is told."""

import json
import sys
from pathlib import Path

import pytest
from fixtures.commands import Told, assert_refused, device, told
from fixtures.fake_device import TOY, write_device

__all__ = ["device", "told"]


BAD = {
    "zero": (["gemm", "0", "1", "1"], "a dim is a whole number of 1 or more, got m=0"),
    "negative": (["gemm", "-5", "1", "1"], "a dim is a whole number of 1 or more, got -5"),
    "word": (["gemm", "1", "1", "big"], "a dim is a whole number of 1 or more, got k='big'"),
    "regime": (["gemm", "1", "1", "1", "--regime", "warm"], "'warm' is not one of 'cold', 'hot'"),
    "set": ([str(TOY), "--set", "n"], "--set takes NAME=VALUE, got 'n'; give e.g. --set n=1000"),
    "twice": (["gemm", "6", "6", "6", "--set", "m=5"], "a dim has one size, got 6 and 5 for m"),
    "option": (["gemm", "1", "1", "1", "--colour"], "No such option '--colour'"),
}


@pytest.mark.parametrize("command", ["tune", "best"])
@pytest.mark.parametrize("case", BAD)
def test_bad_problems_are_refused_by_whatever_is_asked(told: Told, command: str, case: str) -> None:
    arguments, message = BAD[case]
    assert_refused(told(command, *arguments), 2, message)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("options", "code", "message"), [
    (["--device", "tpu"], 2, "a device is cpu, cuda or cuda:N, got 'tpu'"),
    (["--device", "fake:gone.json"], 3, "cannot read 'gone.json'"),
    (["--device", "cpu", "--regime", "hot-graph"], 2, "a CPU is timed cold or hot, got regime 'hot-graph'"),
    (["--device", "cpu", "--seconds", "0"], 2, "--seconds is a number above 0, got 0"),
    (["--device", "cpu", "--trials", "0"], 2, "--trials is 1 or more, got 0"),
    (["--device", "cpu", "--db", "my.db"], 3, "got 'my.db'; did you mean sqlite:///my.db?"),
    (["--device", "cpu", "--db", "sqlite:////nowhere/my.db"], 3, "cannot be opened"),
    (["--device", "cpu", "--db", "sqlite:///text.txt"], 3, "it is no SQLite database"),
])  # fmt: skip
def test_bad_options_are_refused(told: Told, here: Path, options: list[str], code: int, message: str) -> None:
    (here / "text.txt").write_text("something else\n")
    assert_refused(told("tune", "gemm", "8", "8", "8", *options), code, message)
    assert (here / "text.txt").read_text() == "something else\n"


def test_a_gpu_asked_for_where_there_is_none_is_trouble(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for name in ("cuda", "cuda:0"):
        answer = told("tune", "gemm", "8", "8", "8", "--device", name)
        assert_refused(
            answer, 3, f"device {name} needs an NVIDIA GPU and its driver, found none; use --device cpu"
        )


def test_a_problem_that_does_not_fit_is_refused_and_nothing_is_stored(told: Told, device: str) -> None:
    problem = (str(TOY), "2000000000", "--device", device)
    assert_refused(
        told("tune", *problem), 2, "must fit into free memory (16 GiB on Fake board)", "smaller dims"
    )
    assert json.loads(told("best", *problem, "--json")[1])["match"] == "default"


def test_an_operation_without_a_kernel_for_the_device_says_which_it_has(told: Told, here: Path) -> None:
    text = TOY.read_text()
    only = text[: text.index('    Kernel(\n        operation="toy", name="chunks"')] + ")\n"
    (here / "toy.py").write_text(only)
    answer = told("tune", "toy.py", "--set", "n=5", "--device", "cpu")
    assert_refused(answer, 2, "toy has no kernel for cpu; it has some for cuda")


@pytest.mark.parametrize(("old", "new", "code", "message"), [
    ('Path("toy.cu")', 'Path("gone.cu")', 2, "source of kernel 'blocks' cannot be read"),
    ('xp.square(arrays["x"].astype(xp.float64)) + 1', "{}", 2, "of operation 'toy' gives each output"),
    ("c.BLOCK * c.ITEMS <= 8192", "c.BLOK <= 8192", 2, "a constraint must work on arrays as on scalars"),
    ("Launch(grid", "Lunch(grid", 1, "invalid: cannot be rendered: NameError: name 'Lunch' is not defined"),
])  # fmt: skip
def test_a_files_mistake_is_told_where(
    told: Told, here: Path, device: str, old: str, new: str, code: int, message: str
) -> None:
    text = TOY.read_text()
    assert old in text
    (here / "toy.py").write_text(text.replace(old, new))
    (here / "toy.cu").write_text(TOY.with_suffix(".cu").read_text())
    (here / "toy.numba.py").write_text(TOY.with_suffix(".numba.py").read_text())
    answer = told("tune", "toy.py", "--set", "n=500", "--device", device, "--trials", "2")
    assert_refused(answer, code, message)


def test_what_is_not_tuned_is_answered_from_what_is_near(told: Told, here: Path, device: str) -> None:
    def matched(*arguments: str) -> str:
        code, out, err = told("best", str(TOY), *arguments, "--json")
        assert (code, err) == (0, "")
        return str(json.loads(out)["match"])

    assert matched("5", "--device", device) == "default"
    assert matched("5", "--device", device, "--db", "sqlite:///x.db") == "default"
    assert not (here / "x.db").exists()
    told("tune", str(TOY), "5", "--device", device, "--trials", "1", "--quiet")
    assert matched("6", "--device", device) == "predicted"
    other = write_device(here / "other.json", info={"name": "Other board", "uuid": "OTHER-1"})
    assert matched("5", "--device", other) == "similar-device"
    assert matched("5", "--device", device, "--regime", "hot") == "exact"  # of another regime, and told so
    assert_refused(told("best", str(TOY), "5", "--device", "Fake bored"), 2, "did you mean Fake board")
    assert "no survey was made" in told("best", str(TOY), "6", "--device", device)[1]
    refused = told("export", str(TOY), "6", "--device", device, "-o", "out")
    assert_refused(refused, 1, "toy 6 float32 plain on Fake board (cold) is not tuned", "tuner tune")


def test_an_unknown_command_or_operation_is_told(told: Told) -> None:
    assert_refused(told("tone"), 2, "No such command 'tone'")
    assert_refused(told("kernels", "gem"), 2, "unknown operation 'gem'; did you mean")


@pytest.mark.parametrize("group", ["records", "champions"])
def test_a_group_without_a_command_shows_its_help(group: str, told: Told) -> None:
    code, out, err = told(group)
    assert (code, out) == (2, "")
    assert err.startswith(f"Usage: tuner {group} ")
