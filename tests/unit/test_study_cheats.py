"""Kernels that only seem to compute: found, told, and no harm to those that do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fixtures.fake_device import (
    BEST,
    BEST_S,
    BOARD,
    database,
    request,
    rule,
    stored,
    study,
    write_device,
)

from tuner import catalogue
from tuner.devices.detect import find
from tuner.measurement import Measurement, Outcome
from tuner.progress import Request
from tuner.record import Record, Role
from tuner.space import Config
from tuner.store import Store
from tuner.study import Study

CHEATING = Path(__file__).parents[1] / "fixtures" / "cheating_cpu.py"
HONEST = {"none", "also_none"}


@pytest.mark.parametrize("regime", ["cold", "hot"])
def test_kernels_that_only_seem_to_compute_are_wrong_and_the_others_are_not(tmp_path: Path, regime: str) -> None:
    declared = catalogue.from_file(CHEATING)
    problem = declared.operation("cheating_cpu").problem({"n": 100_000})
    asked = Request(
        problem, declared.of("cheating_cpu"), (find("cpu"),), regime, seconds=None, seed=1, sampler="random",
        finals_s=0.5,
    )  # fmt: skip
    with Store.open(database(tmp_path)) as store:
        result = Study(asked, store).run()
        trials = [record for record in store.records() if record.role is Role.TRIAL]
    found = {record.config["CHEAT"]: record.measurement for record in trials}
    reasons = {cheat: each.reason for cheat, each in found.items() if each.outcome is Outcome.WRONG_RESULT}
    for cheat in ("zeroes", "writes"):
        assert reasons.pop(cheat) == "wrote into the input x, which kernels only read"
    for cheat in ("remembers", "returns"):
        # It is told that this was no error of rounding.
        assert "stale" in reasons[cheat] or "unwritten" in reasons[cheat]
        assert reasons.pop(cheat).startswith("in a timed run: ")
    # Where inputs are placed anew before each run, one that looks whether they are computes each time.
    assert set(reasons) == ({"glances"} if regime == "hot" else set())
    assert {found[each].outcome for each in HONEST} <= {Outcome.MEASURED, Outcome.PRUNED}
    assert result.champion is not None
    assert result.champion.record.config["CHEAT"] in HONEST | ({"glances"} if regime == "cold" else set())
