"""scripts/bench/first_trials: how trials are counted and losses told, and its flow on a fake device."""

from __future__ import annotations

import json
import math
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixtures.fake_device import BEST_S, TOY, write_device

from tuner.declare.space import Config
from tuner.results.measurement import Measurement, Outcome

SCRIPT = Path(__file__).parents[2] / "scripts/bench/first_trials"
BENCH = SimpleNamespace(**runpy.run_path(str(SCRIPT), run_name="first_trials"))


def pick(number: int) -> tuple[str, Config]:
    """A config by its number."""
    return "toy", Config({"BLOCK": number})


def after(*times: float) -> list[tuple[str, Config] | None]:
    """Incumbents of a study whose trials, numbered from 0, took these times."""
    return BENCH.incumbents([BENCH.Trial(pick(number), time_s) for number, time_s in enumerate(times)])


def test_incumbents_are_the_fastest_so_far_and_the_first_of_equals() -> None:
    assert after(math.inf, 3.0, 4.0, 2.0, 2.0, math.inf, 1.0) == [
        None, pick(1), pick(1), pick(3), pick(3), pick(3), pick(6),
    ]  # fmt: skip
    assert after() == []


def test_only_what_was_timed_to_the_end_has_a_time() -> None:
    assert BENCH.seconds(Measurement(Outcome.MEASURED, "", (1.0, 2.0, 9.0))) == 2.0
    assert BENCH.seconds(Measurement(Outcome.PRUNED, "", (1.0,))) == math.inf
    assert BENCH.seconds(Measurement(Outcome.WRONG_RESULT)) == math.inf
    assert BENCH.seconds(None) == math.inf


def test_the_first_the_last_dozen_and_those_whose_losses_are_told_are_timed_again() -> None:
    falling = after(*(float(40 - number) for number in range(40)))
    assert BENCH.to_time(falling) == [pick(number) for number in (0, 7, 11, *range(28, 40))]
    assert BENCH.to_time(after(math.inf, 3.0, 4.0, 2.0)) == [pick(1), pick(3)]
    assert BENCH.to_time(after(math.inf)) == []
    assert BENCH.to_time([]) == []


def test_a_lucky_trial_does_not_count_but_what_it_takes_when_timed_again() -> None:
    incumbents = after(5.0, 1.0, 0.9, 0.8)
    again = {pick(0): 5.0, pick(1): 1.005, pick(2): 1.3, pick(3): 1.0}
    told = BENCH.figures("model", incumbents, again, 1.0)
    assert (told["model_trials"], told["model_of"], told["model_best_s"]) == (2, 4, 1.0)
    assert told["model_loss_after"] == pytest.approx({"1": 0.8, "8": 0.0, "12": 0.0})


def test_an_incumbent_that_fails_when_timed_again_counts_as_infinite() -> None:
    told = BENCH.figures("plain", after(math.inf, 1.0), {pick(1): math.inf}, 1.0)
    assert (told["plain_trials"], told["plain_best_s"]) == (None, None)
    assert told["plain_loss_after"] == {"1": 1.0, "8": 1.0, "12": 1.0}
    json.dumps(told, allow_nan=False)


def test_what_is_told_of_all_shapes() -> None:
    rows = [
        {"model_trials": trials, "model_loss_after": {"1": 0.5, "8": loss, "12": -0.01}}
        for trials, loss in ((1, 0.0), (12, 0.1), (13, 0.2), (None, 0.3))
    ]
    assert BENCH.told(rows, "model") == (
        "model: median trials to within 1% of the best 12.5; within it after 12 trials 2 of 4 shapes (50%); "
        "mean loss after 1: 50.0%, 8: 15.0%, 12: -1.0%"
    )


def test_both_studies_are_judged_by_what_is_timed_in_turn(tmp_path: Path) -> None:
    spec = write_device(tmp_path / "device.json", baseline_s=2 * BEST_S)
    options = ["--operation", "toy", "--file", str(TOY), "--device", spec, "--shapes", "2", "--seed", "7"]
    options += ["--long", "5", "--short", "5", "--json", str(tmp_path / "figures.json")]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    told = json.loads((tmp_path / "figures.json").read_text())
    assert (told["seed"], told["device"], len(told["rows"])) == (7, "Fake board", 2)
    for row in told["rows"]:
        assert row["plain_trials"] <= row["plain_of"]
        assert row["timed_again"] >= 1
        assert row["best_s"] <= row["plain_best_s"]
        assert set(row["model_loss_after"]) == {"1", "8", "12"}
    first, *_, model, plain = done.stdout.splitlines()
    assert first == "Fake board, seed 7"
    assert (model.split(":")[0], plain.split(":")[0]) == ("model", "plain")
