"""Kernels that are hopeless are dropped after their first configs, told, and kept where they are asked for."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from fixtures.fake_device import BEST, BEST_S, LEGAL, request, rule, stored, study, write_device

from tuner.declare.kernel import Kernel
from tuner.declare.space import Config, choice
from tuner.results.measurement import Measurement, Outcome
from tuner.study.leaderboard import HOPELESS, Leaderboard


@pytest.mark.parametrize(
    ("threads", "factor", "is_dropped"), [(16, 1.1, True), (16, 0.9, False), (1, 15.0, False)]
)
def test_a_kernel_is_dropped_once_its_first_configs_are_far_above_the_best(
    threads: int, factor: float, is_dropped: bool
) -> None:
    """Idle cores do not count against it."""
    fast, slow = (cast(Kernel, SimpleNamespace(name=name, threads="THREADS")) for name in ("fast", "slow"))
    board = Leaderboard(cores=16)
    board.add_trial(fast, Config({"THREADS": 16}), Measurement(Outcome.MEASURED, samples_s=(1.0,)))
    for number in range(2):
        assert board.hopeless() == {}
        pruned = Measurement(Outcome.PRUNED, "cannot win", samples_s=(factor * HOPELESS,))
        board.add_trial(slow, Config({"THREADS": threads, "X": number}), pruned)
    assert list(board.hopeless()) == ["slow"] * is_dropped
    assert not is_dropped or "--kernel slow" in board.hopeless()["slow"]


def test_a_study_tells_what_it_dropped_and_spends_its_trials_elsewhere(tmp_path: Path) -> None:
    rules = [rule({"SLOW": 1}, latency_s=200 * BEST_S), rule(BEST, latency_s=BEST_S)]
    spec = write_device(tmp_path / "device.json", rules=rules)
    # The toy, and the same under another name, which is 200 times slower.
    (toy,) = request(spec).kernels
    slow = replace(toy, name="slow", parameters=(*toy.parameters, choice("SLOW", 1)), starts=())
    result = study(tmp_path, spec, kernels=(toy, slow))
    tried = [each.kernel for each in stored(tmp_path)]
    assert tried.count("blocks") == LEGAL
    assert list(result.progress.dropped) == ["slow"]
    assert tried.count("slow") < LEGAL / 2
    assert result.champion.record.kernel == "blocks"
