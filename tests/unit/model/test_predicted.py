"""Answers from a device's model of times: which, when the library, and what is said of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.lookup_records import BOARD, answer, crown, gemm, library, record
from fixtures.model_survey import BLOCKS, CONFIGS, GEMM, KERNELS, evidence_of, plain_model

from tuner.declare.catalogue import Catalogue, builtin
from tuner.declare.kernel import Scope
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.lookup import Answer, best
from tuner.model import provider
from tuner.model.predict import Model, Predictor
from tuner.model.stored import path_of, to_bytes
from tuner.results.record import ProblemKey
from tuner.store import Store
from tuner.study.starting import Predictions

CATALOGUE = Catalogue(builtin().operations, (BLOCKS,))
#: The plain model says 0 for the library: its roofline, which no kernel is below.
LARGE = gemm(2000, 1000, 3000)


def published(folder: Path, model: Model) -> Path:
    """A folder of published results with a model."""
    path = path_of("gemm", model.device.name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_bytes(model))
    return folder


def asked(folder: Path, problem: ProblemKey = LARGE, store: Store | None = None, **more: Any) -> Answer:
    where = more.pop("device", BOARD)
    return answer(store, problem, where, published=folder, catalogue=CATALOGUE, **more)


def surveyed(margin: float = -9.0, **provenance: Any) -> Model:
    """A model that takes a kernel at any price, of the kernels as they are now."""
    sources = {"blocks": BLOCKS.source_hash} | provenance.pop("sources", {})
    told = {"timings": 5, "problems": 50, "regime": "cold", "sources": sources, **provenance}
    return replace(plain_model(margin), provenance=told)


def test_a_shape_that_nobody_tuned_is_answered_by_the_model(tmp_path: Path) -> None:
    told = asked(published(tmp_path, surveyed()))
    assert (told.match, told.kernel, told.use, told.stale) == ("predicted", "blocks", "kernel", False)
    assert set(told.config) == {each.name for each in BLOCKS.parameters}
    assert 0 < told.expected_loss < 0.1
    assert told.loss.cases == 50
    assert told.loss.interval[0] <= told.expected_loss <= told.loss.interval[1]
    data = json.loads(json.dumps(told.to_json(), allow_nan=False))
    assert data["expected_loss_interval"] == list(told.loss.interval)
    assert (data["record"], data["time_s"], data["record_id"]) == (None, None, "")
    low, high = data["predicted"]["time_interval_s"]
    assert low < data["predicted"]["kernel_time_s"] < high


def test_a_survey_with_the_epilogue_answers_before_one_without(tmp_path: Path) -> None:
    folder, relu = published(tmp_path, surveyed(timings=5)), replace(LARGE, epilogue="relu")
    finishing = Catalogue(builtin().operations, (replace(BLOCKS, scope=Scope(epilogues=True)),))
    without = answer(None, relu, BOARD, published=folder, catalogue=finishing)
    assert (without.match, without.reasons[1]) == ("predicted", "predicted from 5 timings at 50 problems")
    own = path_of("gemm float32 relu", BOARD.name, folder)
    own.write_bytes(to_bytes(surveyed(timings=7, epilogue="relu")))
    told = answer(None, relu, BOARD, published=folder, catalogue=finishing)
    assert told.reasons == ("predicted from 7 timings at 50 problems",)


def test_the_library_is_answered_unless_the_gain_outweighs_the_uncertainty(tmp_path: Path) -> None:
    told = asked(published(tmp_path, surveyed(margin=0.05)))
    assert (told.match, told.use) == ("predicted", "cuBLAS")
    assert "cuBLAS is the safer choice" in told.reasons[0]
    assert told.kernel == "blocks"


def test_a_kernel_that_lost_near_by_is_not_answered_though_it_is_predicted_to_win(tmp_path: Path) -> None:
    model = replace(surveyed(), evidence=evidence_of(range(len(CONFIGS)), -99.0))
    told = asked(published(tmp_path / "lost", model))
    assert (told.match, told.use) == ("predicted", "cuBLAS")
    assert "x its speed, 0.00 x with what was timed near by, and" in told.reasons[0]
    trusting = replace(model, calibration=replace(model.calibration, doubt=0.0))
    assert asked(published(tmp_path / "trusting", trusting)).use == "kernel"


def test_a_champion_of_the_problem_itself_goes_before_a_prediction(tmp_path: Path, store: Store) -> None:
    config = {"BM": 64, "BN": 64, "SPLIT": 1, "LOAD": "plain"}
    more = {"kernel": "blocks", "config": config, "source_hash": BLOCKS.source_hash}
    crown(store, record(LARGE, **more), library(LARGE), 1.5)
    folder = published(tmp_path / "tuned", surveyed())
    assert asked(folder, store=store).match == "exact"
    assert asked(folder, gemm(2000, 1000, 2999), store=store).match == "predicted"


def test_a_similar_device_is_answered_by_the_others_model_and_says_what_is_unknown(tmp_path: Path) -> None:
    nvl = replace(BOARD, name="NVIDIA H200 NVL", uuid="GPU-2")
    told = asked(published(tmp_path, surveyed()), device=nvl)
    assert (told.match, told.use) == ("similar-device", "cuBLAS")
    assert (told.expected_loss, told.loss.interval) == (1.0, None)
    assert told.loss.said.startswith("not measured")
    assert "NVIDIA H200 is of architecture sm_90, too" in told.reasons[0]
    assert told.to_json()["predicted"]["time_interval_s"] is None


@pytest.mark.parametrize(("model", "why"), [
    (surveyed(sources={"blocks": "old"}), "kernels have changed since the survey: blocks"),
    (replace(surveyed(), device=replace(BOARD, driver="1")), "the driver was 1 in the survey and is 580.1"),
])  # fmt: skip
def test_what_has_changed_since_the_survey_is_told(tmp_path: Path, model: Model, why: str) -> None:
    told = asked(published(tmp_path, model))
    assert told.stale
    assert why in told.stale_reason


def test_what_the_model_does_not_know_is_answered_without_it(tmp_path: Path) -> None:
    folder = published(tmp_path, surveyed())
    assert asked(folder, replace(LARGE, layout="tt")).match == "default"
    assert asked(folder, replace(LARGE, precision="emulated")).match == "default"
    assert asked(folder, device=replace(BOARD, name="NVIDIA L4", architecture="sm_89")).match == "default"


def test_a_damaged_model_is_refused_by_its_name(tmp_path: Path) -> None:
    folder = published(tmp_path, surveyed())
    path = path_of("gemm", BOARD.name, folder)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"gemm\.json: a model is JSON"):
        asked(folder)


def test_a_model_of_other_sources_starts_no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "model_of", lambda *_: surveyed(sources={"blocks": "old"}))
    found = Predictions(GEMM.problem(LARGE.dims), tuple(KERNELS.values()), BOARD, "cold")
    assert (found.starts, found.elsewhere, found.further()) == ([], [], [])
    assert found.beside({("blocks", BLOCKS.default_config()): 1e-6}) == []


@pytest.mark.parametrize(("problem", "kernel", "use", "kernel_s"), [
    ("gemm 2097 8 340 float32 nt", "small", "kernel", 6.70811e-06),
    ("gemm 1407 342 2200 bfloat16 tt", "wgmma_tma", "kernel", 2.04434e-05),
    ("gemm 23 568 134 float16 tt", "cublaslt", "cublasGemmEx", 6.50747e-06),
    ("gemv 9 465", "streaming", "kernel", 4.27721e-06),
    ("transpose 31 28", "naive", "kernel", 3.67147e-06),
])  # fmt: skip
def test_published_models_answer_as_they_did(problem: str, kernel: str, use: str, kernel_s: float) -> None:
    """With networks and without, of both formats."""
    told = best(problem, BOARD.name, db="sqlite:////nothing/here.db")
    assert (told.match, told.kernel, told.use) == ("predicted", kernel, use)
    assert told.predicted.kernel_s == pytest.approx(kernel_s, rel=1e-4)


# --- Answers rest on what was timed near a problem, and on what is beside it

PROBLEM = GEMM.problem({"m": 512, "n": 512, "k": 512})


def test_only_what_was_good_near_by_is_answered() -> None:
    model = replace(plain_model(), evidence=evidence_of([3, 20], 0.5, [0.0, 0.9]))
    fastest = Predictor(model, KERNELS).candidates(PROBLEM)
    assert [candidate.config for candidate in fastest] == [CONFIGS[3][1]]


UNALIGNED = GEMM.problem({"m": 500, "n": 300, "k": 402})


def differing(one: Config, other: Config) -> int:
    return sum(one[name] != other[name] for name in one)


def timed(predictor: Predictor) -> dict[tuple[str, Config], float]:
    """The three best predicted, as if their times were those."""
    return {
        (candidate.kernel, candidate.config): candidate.time_s
        for candidate in predictor.candidates(UNALIGNED, 3)
    }


def test_what_is_predicted_to_be_faster_comes_first_and_is_legal_and_new() -> None:
    predictor = Predictor(plain_model(), KERNELS)
    known = timed(predictor)
    fastest = predictor.beside(UNALIGNED, known, 2, 8)
    assert len(fastest) == 8
    assert [candidate.time_s for candidate in fastest] == sorted(candidate.time_s for candidate in fastest)
    assert not {(candidate.kernel, candidate.config) for candidate in fastest} & set(known)
    # k is no multiple of 4, so no wide loads; configs that the model does not keep come up, too.
    assert {candidate.config["LOAD"] for candidate in fastest} == {"plain"}
    assert any((candidate.kernel, candidate.config) not in CONFIGS for candidate in fastest)
    parents = list(known)[:2]
    assert all(any(differing(config, candidate.config) <= 2 for _, config in parents) for candidate in fastest)
