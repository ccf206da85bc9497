"""The process that measures beside a program: asked, heard, replaced, left behind; and one that measures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import ROOT

from tuner.python import misses
from tuner.python.misses import MeasuringProcess
from tuner.results.record import ProblemKey
from tuner.store import Store

pytestmark = pytest.mark.usefixtures("own_records")
#: Answers a question as its n says, like the real one: a line for a line.
PLAYED = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    n = asked["problem"]["shape"]["n"]
    if n == 13:
        os._exit(3)
    print(json.dumps({"id": asked["id"], "outcome": "measured", "why": f"{n} {asked['db']}"}), flush=True)
"""


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, here: Path) -> Iterator[MeasuringProcess]:
    (here / "played.py").write_text(PLAYED)

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "played.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=here
        )

    monkeypatch.setattr(misses, "_started", started)
    own = MeasuringProcess()
    yield own
    own.release()


def ask(process: MeasuringProcess, n: int) -> Any:
    key = ProblemKey("transpose", (("m", 1), ("n", n)), "float32", "")
    return process.ask(key, "cpu", 1.0, lambda: None)


def ended(pending: Any) -> tuple[str, str]:
    return pending.result(timeout=60)


def test_a_process_that_dies_or_cannot_be_started_fails_what_it_was_asked_and_is_replaced(
    process: MeasuringProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> subprocess.Popen[str]:
        raise OSError("no more processes")

    with monkeypatch.context() as patch:
        patch.setattr(misses, "_started", none)
        why = "the process that measures cannot be started: no more processes"
        assert ended(ask(process, 1)) == ("failed", why)
    assert ended(ask(process, 13)) == ("failed", "the process that measures ended with exit code 3")
    assert ended(ask(process, 9))[0] == "measured"


@pytest.mark.parametrize("how", ["environment", "file"])
def test_the_database_is_that_which_answers_from_any_folder(
    how: str, process: MeasuringProcess, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_DB", "sqlite:///mine.db" if how == "environment" else "")
    if how == "file":
        (here / "tuner.toml").write_text('db = "sqlite:///mine.db"\n')
    asked = ask(process, 1)
    assert ask(process, 1) is asked, "a question is asked once"
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert ended(asked)[1] == f"1 sqlite:///{here}/mine.db"


PROGRAM = """
import sys, numpy, tuner
tuner.on_miss("measure", seconds=0.2, wait=sys.argv[1] == "wait")
a = numpy.ones((64, 48), "float32")
tuner.transpose(a)
print(tuner.explain(a).match)
"""


def run(how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, how], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_a_program_that_ends_does_not_wait_and_nothing_of_it_is_lost() -> None:
    """Two processes ask at once: one measures, both find the result, and the first does not wait for it."""
    left, waiting = run("go on"), run("wait")
    out, error = left.communicate(timeout=60)
    assert (left.returncode, error) == (0, "")
    assert out.strip() != "exact"
    out, error = waiting.communicate(timeout=120)
    assert (waiting.returncode, out.strip(), error) == (0, "exact", "")
    with Store.open(os.environ["TUNER_DB"], read_only=True) as store:
        [champion] = store.champions(operation="transpose")
        assert len({record.session for record in store.records()}) == 1
    assert champion.record.problem.dims == {"m": 64, "n": 48}
