"""Kernels that are hopeless are dropped after their first configs, told, and kept where they are asked for."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fixtures.callable_records import crowned
from fixtures.fake_device import BEST, BEST_S, LEGAL, request, rule, stored, study, write_device
from fixtures.fake_gpu import H200

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Kernel
from tuner.declare.space import Config, choice
from tuner.lookup.asking import opened
from tuner.results.measurement import Measurement, Outcome
from tuner.study.leaderboard import HOPELESS, Leaderboard
from tuner.study.study import with_plain_answers


@pytest.mark.parametrize(
    ("threads", "factor", "is_dropped"), [(16, 1.1, True), (16, 0.9, False), (1, 15.0, False)]
)
def test_a_kernel_of_slow_first_configs_is_dropped(threads: int, factor: float, is_dropped: bool) -> None:
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


# --- Which plain kernel stands behind one that does not take every input

pytestmark = pytest.mark.usefixtures("own_records")
GEMM = builtin().operation("gemm")
(EMULATED,) = builtin().of("gemm", "cuda", ("emulated",))
(WARP_TILED,) = builtin().of("gemm", "cuda", ("warp_tiled",))
PROBLEM = GEMM.problem({"m": 516, "n": 508, "k": 524}, precision="emulated")


class Session:
    """Stands for a study's: compiles everything, and judges what it is told to."""

    def __init__(self, outcome: Outcome) -> None:
        self.problem, self.store = PROBLEM, opened()
        self.device, self.regime = H200, "cold"
        self.worker, self.outcome = SimpleNamespace(info=H200, finals=self.finals), outcome
        self.pool = SimpleNamespace(compile_all=dict)

    def finals(self, compiled: list[object], budget_s: float) -> list[Measurement]:
        return [Measurement(self.outcome, "") for _ in compiled]


def crown(**changes: Any) -> Config:
    config = Config({**WARP_TILED.default_config(), **changes})
    crowned("gemm", PROBLEM.dims, kernel="warp_tiled", device=H200, config=dict(config))
    return config


def behind(session: Session) -> str:
    (kernel,) = with_plain_answers(session, (EMULATED,))
    return kernel.falls_back_to(EMULATED.default_config())


def test_the_champion_stands_behind_if_it_keeps_the_promise() -> None:
    config = crown(BM=64)
    named = " ".join(["warp_tiled", *(f"{name}={value}" for name, value in config.items())])
    assert behind(Session(Outcome.MEASURED)) == named


@pytest.mark.parametrize(
    ("crowns", "outcome"),
    [({}, Outcome.INACCURATE), ({"PITCH": 4}, Outcome.MEASURED), (None, Outcome.MEASURED)],
    ids=["breaks the promise", "more than a launch", "no champion"],
)
def test_else_the_declared_one_does(crowns: dict[str, int] | None, outcome: Outcome) -> None:
    if crowns is not None:
        crown(**crowns)
    assert behind(Session(outcome)).startswith("double_sums ")
    assert with_plain_answers(Session(outcome), (WARP_TILED,)) == (WARP_TILED,)
