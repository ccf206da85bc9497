"""The command line, called in this process: what is answered, and what bad input is told."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, BEST_S, LEGAL, ROOT, TOY, command, stored, write_device

import tuner
from tuner.cli import health
from tuner.cli.formatting import clock, duration, speed
from tuner.cli.main import COMMANDS, GROUPS, run
from tuner.declare import catalogue
from tuner.devices.detect import find
from tuner.devices.device_lock import device_lock

#: Keys that scripts rely on, of ``best --json`` and of the last line of ``tune --json``.
CONTRACT = {
    "operation", "shape", "dtype", "layout", "device", "regime", "kernel", "config", "time_s", "noise",
    "tflops", "gbps", "baseline", "speedup", "error", "match", "expected_loss", "trials", "record_id",
    "measured_at",
}  # fmt: skip
Told = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("no_mirror")


@pytest.fixture
def told(here: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command in an empty folder: exit code, stdout, stderr."""

    def called(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(list(arguments))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return called


@pytest.fixture
def device(here: Path) -> str:
    return write_device(here / "device.json", baseline_s=2 * BEST_S)


def assert_refused(answer: tuple[int, str, str], code: int, *parts: str) -> None:
    """One clear message on stderr, nothing on stdout."""
    got, out, err = answer
    assert (got, out) == (code, ""), err
    assert "Traceback" not in err
    message = err[err.index("tuner: ") :]
    for part in parts:
        assert part in message


# --- what works ----------------------------------------


def test_tune_and_best_agree_and_keep_the_contract(told: Told, device: str, here: Path) -> None:
    arguments = (str(TOY), "--set", "n=1_000", "--device", device, "--json")
    code, out, err = told("tune", *arguments, "--sampler", "random", "--trials", "100")
    assert code == 0
    assert err.count("\n") >= 3
    tuned = json.loads(out.splitlines()[-1])
    code, out, err = told("best", *arguments)
    assert (code, err) == (0, "")
    best = json.loads(out)
    assert tuned.pop("dropped") == {}
    assert best == tuned
    assert best.keys() >= CONTRACT
    _check_answer(best)
    named = told("best", str(TOY), "1000", "--device", "fake board", "--json")
    assert json.loads(named[1]) == best
    assert len(stored(here)) == LEGAL


def _check_answer(best: dict[str, Any]) -> None:
    assert best["config"] == BEST
    assert best["shape"] == {"n": 1000}
    assert best["device"] == {"name": "Fake board", "kind": "cuda"}
    assert best["time_s"] == pytest.approx(BEST_S, rel=0.01)
    assert best["tflops"] == pytest.approx(2000 / best["time_s"] / 1e12)
    assert best["gbps"] == pytest.approx(8000 / best["time_s"] / 1e9)
    assert best["baseline"]["name"] == "CuPy"
    assert best["speedup"] == pytest.approx(2.0, rel=0.01)
    assert best["trials"]["total"] == LEGAL
    assert (best["match"], best["expected_loss"], best["stale"]) == ("exact", 0.0, False)
    assert best["error"]["rms_rel"] < 1e-6


def test_a_busy_machine_and_a_provisional_champion_are_told(told: Told, here: Path) -> None:
    busy = {"others_processes": 1}
    device = write_device(here / "busy.json", baseline_s=BEST_S, noise=0.5, machine=busy)
    code, out, err = told("tune", str(TOY), "9", "--trials", "2", "--device", device)
    assert code == 0
    assert "the machine is busy, times may be wrong: 1 other process on the GPU" in err
    assert err.count("the machine is busy") == 1
    for shown in (out, told("best", str(TOY), "9", "--device", device)[1]):
        assert re.search(r"provisional .*its times have a noise of \d+%, more than 10%", shown)
        assert "was busy: 1 other process on the GPU" in shown
    answer = json.loads(told("best", str(TOY), "9", "--device", device, "--json")[1])
    assert answer["provisional"] is True
    assert answer["busy"] == ["1 other process on the GPU"]


def test_doctor_tells_who_uses_a_device(
    told: Told, here: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"name": "Busy board", "uuid": "FAKE-2"}
    busy = find(write_device(here / "busy.json", info=others, machine={"others_processes": 2}))
    monkeypatch.setattr(health, "gpus", lambda: [busy])
    monkeypatch.setattr(health, "find", lambda spec: find(device))
    with device_lock(find(device).info, "tune something"):
        checks = {each["what"]: each for each in json.loads(told("doctor", "--json")[1])}
    load = checks[f"{busy.spec} load"]
    assert (load["state"], load["said"]) == ("note", "2 other processes on the GPU")
    assert f"process {os.getpid()} of user " in checks[f"{device} load"]["said"]
    checks = {each["what"]: each for each in json.loads(told("doctor", "--json")[1])}
    assert (checks[f"{device} load"]["state"], checks[f"{device} load"]["remedy"]) == ("ok", "")


def test_people_get_tables(told: Told, device: str, here: Path) -> None:
    failing = write_device(here / "some.json", rules=[{"where": {"BLOCK": 64}, "fault": "wrong_result"}])
    arguments = ("tune", str(TOY), "9", "--quiet", "--sampler", "random", "--trials", "100", "--device")
    code, out, err = told(*arguments, device)
    assert code == 0
    assert "Champion of toy 9 float32 plain" in out
    assert "CuPy" in out
    assert "space covered; 0:0" in err
    assert err.count("\n") == 1
    code, out, _ = told("best", str(TOY), "9", "--device", device)
    assert code == 0
    assert "BLOCK=256 ITEMS=4 ORDER=striped" in out
    # About a millisecond, with noise on either side of where the unit changes.
    assert re.search(r"CuPy, \S+ [mu]s: faster: [12]\.\d+ x \(", out)
    code, out, _ = told(*arguments, failing, "--db", "sqlite:///other.db")
    assert code == 0
    assert "WRONG_RESULT" in out


def test_devices_and_kernels_are_listed(told: Told) -> None:
    code, out, _ = told("devices", "--json")
    assert code == 0
    assert json.loads(out)[-1]["kind"] == "cpu"
    assert told("devices")[0] == 0
    code, out, _ = told("kernels", "--json")
    listed = json.loads(out)
    assert [each["name"] for each in listed] == [kernel.name for kernel in catalogue.builtin().kernels]
    for each in listed:
        assert list(each) == ["operation", "target", "name", "idea", "parameters", "constraints"]
    code, out, _ = told("kernels", "gemm")
    assert code == 0
    assert "register_tiled" in out


def test_help_names_every_command(told: Told) -> None:
    code, out, _ = told("--help")
    assert code == 0
    for name, (_, _, text) in COMMANDS.items():
        assert name in out
        assert text in " ".join(out.split())
        assert told(name, "--help")[0] == 0


def test_help_groups_the_commands(told: Told) -> None:
    _, out, _ = told("--help")
    headings = re.findall(r"^(\w+):$", out, re.MULTILINE)
    assert headings == ["Options", "Tune", "Answer", "Watch", "Records", "Service", "Look"]
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    for before, after in itertools.pairwise([*headings[1:], ""]):
        section = out.partition(f"{before}:\n")[2].partition(f"{after}:\n")[0]
        assert tuple(re.findall(r"^  ([a-z-]+) ", section, re.MULTILINE)) == GROUPS[before]


def test_python_m_tuner_is_the_command() -> None:
    command = [sys.executable, "-m", "tuner"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tuner, version {tuner.__version__}\n"
    done = subprocess.run(
        [*command, "best", "gemm", "0", "1", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("tuner: a dim is a whole number of 1 or more, got m=0")


@pytest.mark.parametrize(
    ("words", "expected"), [("tuner rec", "plain,records"), ("tuner devices --j", "plain,--json")]
)
def test_a_shell_completes_commands_and_options(words: str, expected: str) -> None:
    given = {"_TUNER_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "tuner"], env=os.environ | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [expected]


def test_numbers_are_told_with_their_unit() -> None:
    assert [duration(each) for each in (1.5, 2e-3, 3.25e-6, 4e-9, 999.4)] == [
        "1.5 s", "2 ms", "3.25 us", "4 ns", "999 s",
    ]  # fmt: skip
    assert [clock(each) for each in (0, 59.6, 61, 3600)] == ["0:00", "1:00", "1:01", "60:00"]
    assert speed(2e12, 1e9, 1.0) == "2.00 TFLOPS"
    assert speed(2e9, 1e8, 1.0) == "2.0 GFLOPS"
    assert speed(1e9, 1e9, 1e-3) == "1000.0 GB/s"


# --- bad input ----------------------------------------


BAD = {
    "zero": (["gemm", "0", "1", "1"], "a dim is a whole number of 1 or more, got m=0"),
    "negative": (["gemm", "-5", "1", "1"], "a dim is a whole number of 1 or more, got -5"),
    "fraction": (["gemm", "1", "1.5", "1"], "a dim is a whole number of 1 or more, got n='1.5'"),
    "word": (["gemm", "1", "1", "big"], "a dim is a whole number of 1 or more, got k='big'"),
    "few dims": (["gemm", "1", "1"], "gemm takes M N K: 3 dims, got 2"),
    "many dims": (["gemm", "1", "1", "1", "1"], "gemm takes M N K: 3 dims, got 4"),
    "no dims": (["gemm"], "gemm takes M N K; m, n, k missing"),
    "operation": (["gemmm", "1", "1", "1"], "unknown operation 'gemmm'; did you mean gemm"),
    "dtype": (
        ["gemm", "1", "1", "1", "--dtype", "float23"],
        "'float23'; did you mean float32",
    ),
    "layout": (["gemm", "1", "1", "1", "--layout", "nm"], "unknown layout of gemm 'nm'; did you mean"),
    "regime": (["gemm", "1", "1", "1", "--regime", "warm"], "'warm' is not one of 'cold', 'hot'"),
    "no file": (["gone.py", "--set", "n=1"], "a kernel file must exist, found none at"),
    "set": ([str(TOY), "--set", "n"], "--set takes NAME=VALUE, got 'n'; give e.g. --set n=1000"),
    "set word": ([str(TOY), "--set", "n=x"], "got n='x'"),
    "set name": ([str(TOY), "--set", "m=1"], "unknown dim of toy 'm'; choose one of: n"),
    "nothing": ([], "Missing argument"),
    "option": (["gemm", "1", "1", "1", "--colour"], "No such option '--colour'"),
}


@pytest.mark.parametrize("command", ["tune", "best"])
@pytest.mark.parametrize("case", BAD)
def test_bad_problems_are_refused_by_whatever_is_asked(told: Told, command: str, case: str) -> None:
    arguments, message = BAD[case]
    assert_refused(told(command, *arguments), 2, message)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--device", "tpu"], 2, "a device is cpu, cuda or cuda:N, got 'tpu'"),
        (["--device", "fake:gone.json"], 3, "cannot read 'gone.json'"),
        (
            ["--device", "cpu", "--kernel", "bloked"],
            2,
            "unknown cpu kernel of gemm 'bloked'; did you mean blocked",
        ),
        (["--device", "cpu", "--regime", "hot-graph"], 2, "a CPU is timed cold or hot, got regime 'hot-graph'"),
        (["--device", "cpu", "--seconds", "0"], 2, "--seconds is a number above 0, got 0"),
        (["--device", "cpu", "--seconds", "nan"], 2, "--seconds is a number above 0, got nan"),
        (["--device", "cpu", "--seconds", "inf"], 2, "--seconds is a number above 0, got inf"),
        (["--device", "cpu", "--seconds", "soon"], 2, "'soon' is not a valid float"),
        (["--device", "cpu", "--trials", "0"], 2, "--trials is 1 or more, got 0"),
        (["--device", "cpu", "--sampler", "tilde"], 2, "unknown sampler 'tilde'; did you mean tile"),
        (["--device", "cpu", "--db", "my.db"], 3, "got 'my.db'; did you mean sqlite:///my.db?"),
        (["--device", "cpu", "--db", "sqlite:////nowhere/my.db"], 3, "cannot be opened"),
        (["--device", "cpu", "--db", "sqlite:///text.txt"], 3, "it is no SQLite database"),
    ],
)
def test_bad_options_of_tune_are_refused(
    told: Told, here: Path, options: list[str], code: int, message: str
) -> None:
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


def test_a_problem_that_does_not_fit_is_refused_and_nothing_is_stored(
    told: Told, here: Path, device: str
) -> None:
    answer = told("tune", str(TOY), "2000000000", "--device", device)
    assert_refused(answer, 2, "must fit into free memory (16 GiB on Fake board)", "choose smaller dims")
    assert (
        json.loads(told("best", str(TOY), "2000000000", "--device", device, "--json")[1])["match"] == "default"
    )


def test_an_empty_space_lists_what_each_constraint_rejects(told: Told, here: Path) -> None:
    small = write_device(here / "small.json", info={"max_threads_per_block": 1})
    answer = told("tune", str(TOY), "5", "--device", small)
    assert_refused(answer, 1, "60 break: a block has no more threads than the device allows")


def test_an_operation_without_a_kernel_for_the_device_says_which_it_has(told: Told, here: Path) -> None:
    text = TOY.read_text()
    only = text[: text.index('    Kernel(\n        operation="toy",\n        name="chunks"')] + ")\n"
    (here / "toy.py").write_text(only)
    answer = told("tune", "toy.py", "--set", "n=5", "--device", "cpu")
    assert_refused(answer, 2, "toy has no kernel for cpu; it has some for cuda")


def test_16_bit_products_on_a_cpu_are_refused(told: Told) -> None:
    answer = told("tune", "gemm", "8", "8", "8", "--dtype", "bfloat16", "--device", "cpu")
    assert_refused(answer, 2, "gemm in bfloat16 has no kernel for cpu; it has some for cuda")


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("OPERATION = Operation(", "OPERATION = Operation(((", 2, "toy.py cannot be imported: SyntaxError"),
        ("KERNELS = (", "KERNELS = 1 / 0, (", 2, "cannot be imported: ZeroDivisionError: division by zero"),
        ('source=Path("toy.cu")', 'source=Path("gone.cu")', 2, "source of kernel 'blocks' cannot be read"),
        (
            "reference=reference",
            "reference=lambda *a: {}",
            2,
            "the reference of operation 'toy' gives each output",
        ),
        (
            "work=work",
            "work=lambda p: None",
            2,
            "tensors, work, scalars and terms of operation 'toy' must hold",
        ),
        ("c.BLOCK * c.ITEMS <= 8192", "c.BLOK <= 8192", 2, "a constraint must work on arrays as on scalars"),
        ("Launch(grid", "Lunch(grid", 1, "INVALID: cannot be rendered: NameError: name 'Lunch' is not defined"),
        ('target="cuda"', 'target="gpu"', 2, "target of kernel 'blocks' is one of cuda, cpu, got 'gpu'"),
        ("KERNELS = (", "KERNELS = len(", 2, "cannot be imported: TypeError"),
    ],
)
def test_a_users_file_with_a_mistake_is_told_where(
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


def test_an_export_that_cannot_be_written_is_told(told: Told, here: Path, device: str) -> None:
    arguments = (str(TOY), "--set", "n=5", "--device", device)
    assert told("tune", *arguments, "--trials", "1", "--quiet")[0] == 0
    (here / "file").write_text("mine")
    assert_refused(told("export", *arguments, "-o", "file"), 2, "an export needs a folder that can be written")
    assert_refused(told("export", *arguments, "-o", "out", "--format", "sauce"), 2, "'sauce' is not one of")
    assert_refused(told("export", *arguments), 2, "Missing option '-o'")
    assert (here / "file").read_text() == "mine"


def test_an_unknown_command_or_operation_is_told(told: Told) -> None:
    assert_refused(told("tone"), 2, "No such command 'tone'")
    assert_refused(told("kernels", "gem"), 2, "unknown operation 'gem'; did you mean")


def test_the_database_comes_from_the_environment(
    told: Told, here: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_DB", "sqlite:///from_environment.db")
    assert told("tune", str(TOY), "5", "--device", device, "--trials", "1", "--quiet")[0] == 0
    assert (here / "from_environment.db").exists()
    assert not (here / "studies.db").exists()


def test_a_second_process_is_told_who_holds_the_device(told: Told, device: str, here: Path) -> None:
    from tuner.devices.detect import find
    from tuner.study.locks import occupied

    with occupied("sqlite:///studies.db", [find(device)], "tune something"):
        answer = told("tune", str(TOY), "5", "--device", device)
    assert_refused(answer, 3, f"process {os.getpid()} on ", "(tune something, since ", "works with Fake board")


# --- in a process of its own ----------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["tune", "gemm", "x", "1", "1"], 2, "tuner: a dim is a whole number"),
        (
            ["best", "gemm", "1", "1", "1", "--device", "cpu", "--kernel", "x", "--db", "sqlite:///none.db"],
            1,
            "no kernel x is declared",
        ),
    ],
)
def test_exit_codes_are_those_of_the_process(here: Path, arguments: list[str], code: int, message: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    asked = command(*arguments)
    done = subprocess.run(asked, capture_output=True, text=True, env=environment, cwd=here, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
