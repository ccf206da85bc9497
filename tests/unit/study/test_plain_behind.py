"""Which plain kernel stands behind one that does not take every input."""

from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.callable_records import crowned, empty_database, own_records
from fixtures.fake_gpu import H200

from tuner.declare.catalogue import builtin
from tuner.declare.space import Config
from tuner.lookup.asking import opened
from tuner.results.measurement import Measurement, Outcome
from tuner.study.study import with_plain_answers

__all__ = ["empty_database", "own_records"]
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
