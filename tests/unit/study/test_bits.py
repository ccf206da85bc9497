"""Classes of bits: which configs share one, what does not repeat its bits, and studies that keep to a class."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fixtures.callable_records import crowned
from fixtures.fake_device import BEST, BEST_S, LEGAL, request, rule, stored, study, write_device
from fixtures.fake_gpu import H200

from tuner.cli.formatting import answer_rows
from tuner.declare import catalogue
from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Kernel
from tuner.declare.space import Config, choice
from tuner.devices.detect import find
from tuner.errors import InputError
from tuner.lookup import Answer
from tuner.lookup.asking import opened
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import read_bits
from tuner.store import Store
from tuner.study.leaderboard import HOPELESS, Leaderboard
from tuner.study.requests import StudyRequest
from tuner.study.study import run_study, with_plain_answers

DECLARED = """
from pathlib import Path
from tuner import Kernel, Operation, Source, Tensor, Work, choice

OPERATION = Operation(
    name="sums", dims=("n",),
    tensors=lambda p: (Tensor("x", (p.n, 3), p.dtype), Tensor("y", (p.n,), p.dtype, output=True)),
    work=lambda p: Work(flops=2.0 * p.n, bytes=16.0 * p.n),
    reference=lambda xp, p, arrays: arrays["x"].astype(xp.float64).sum(axis=1), terms=lambda p: 3,
)
KERNEL = Kernel(
    operation="sums", name="plain", target="cpu", source=Source(Path("sums.numba.py")), idea="adds in an order",
    parameters=(choice("ORDER", "up", "again", "down", "turns"),), starts=({"ORDER": "up"},),
)
"""
SOURCE = """
RUNS = []


def sums(x, y, n):
    RUNS.append(0)
    down = ORDER == "down" or (ORDER == "turns" and len(RUNS) % 2)
    y[:] = (x[:, 2] + x[:, 1]) + x[:, 0] if down else (x[:, 0] + x[:, 1]) + x[:, 2]
"""
#: Slower than `BEST`, with other bits.
SAME = {"BLOCK": 128, "ITEMS": 1, "ORDER": "striped"}


def test_an_order_of_sums_is_a_class_and_what_varies_is_not_repeatable(tmp_path: Path, store: Store) -> None:
    (tmp_path / "sums.numba.py").write_text(SOURCE)
    (tmp_path / "sums.py").write_text(DECLARED)
    declared = catalogue.from_file(tmp_path / "sums.py")
    asked = StudyRequest(
        declared.operation("sums").problem({"n": 5000}), declared.of("sums"), (find("cpu"),), "hot",
        seconds=None, seed=1, sampler="bruteforce", objectives=("time", "error"), finals_s=0.2,
    )  # fmt: skip
    result = run_study(asked, store)
    found: dict[str, Measurement] = {
        str(trial.config["ORDER"]): trial.measurement for trial in store.records() if trial.role == "trial"
    }
    assert found["turns"].outcome is Outcome.NOT_REPEATABLE
    assert found["up"].bits == found["again"].bits != found["down"].bits
    assert len(result.progress.classes_s) == 2
    champion = result.champion
    assert champion.record.measurement.bits in result.progress.classes_s


def test_bits_that_vary_are_a_champions_only_where_a_study_allows_them(tmp_path: Path) -> None:
    rules = [rule(BEST, latency_s=BEST_S, error_rel=3e-7, fault="varies"), rule({}, latency_s=4 * BEST_S)]
    board = write_device(tmp_path / "device.json", rules=rules)
    crowned = [study(tmp_path, board, bits=bits).champion.record for bits in ("any", "")]
    assert [dict(record.config) == BEST for record in crowned] == [True, False]
    assert [record.measurement.bits == "varies" for record in crowned] == [True, False]


def test_a_study_keeps_to_a_class_and_another_champion_is_crowned_only_without_it(tmp_path: Path) -> None:
    rules = [rule(BEST, latency_s=BEST_S, error_rel=3e-7), rule(SAME, latency_s=1.2 * BEST_S, error_rel=1e-7)]
    rules.append(rule({}, latency_s=4 * BEST_S, error_rel=1.2e-7))
    board = write_device(
        tmp_path / "device.json", rules=rules, baseline_s=2 * BEST_S, baseline_error_rel=1.2e-7, noise=1e-4
    )
    crowned = []
    for more in ({"error_limit": 1.5}, {"bits": read_bits("keep")}, {}, {"bits": "library"}):
        result = study(tmp_path, board, **more)
        crowned.append((dict(result.champion.record.config), Answer(result.champion).to_json()))
    assert [config for config, _ in crowned[:3]] == [SAME, SAME, BEST]
    bits = [answer["bits"] for _, answer in crowned]
    assert bits[0] == bits[1]
    assert {answer["baseline"]["bits"] for _, answer in crowned} == {bits[3]}
    assert set(result.progress.classes_s) == set(bits)
    assert len(set(bits)) == 3
    assert any(name == "bits" and bits[0] in text for name, text in answer_rows(crowned[0][1]))
    # What was timed is kept as it is, and is no trial of another class in a study without one.
    assert {trial.measurement.bits for trial in stored(tmp_path)} - {""} == set(bits)
    with pytest.raises(InputError, match="keep, library, any or a class of 12 hexadecimal digits, got 'same'"):
        read_bits("same")


# --- kernels that are dropped ----------------------------------------


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


@pytest.mark.usefixtures("own_records")
def test_the_champion_stands_behind_if_it_keeps_the_promise() -> None:
    config = crown(BM=64)
    named = " ".join(["warp_tiled", *(f"{name}={value}" for name, value in config.items())])
    assert behind(Session(Outcome.MEASURED)) == named


@pytest.mark.usefixtures("own_records")
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
