"""Which kernel and config to use, as told from a store."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.lookup_records import BOARD, CPU, NAIVE, answer, crown, gemm, library, record, source_hash, tiled

from tuner.declare.catalogue import Catalogue, builtin
from tuner.errors import NothingFound, UnknownName
from tuner.lookup import best, staleness
from tuner.lookup.answers import EXACT
from tuner.lookup.stale import installed_compiler
from tuner.results.measurement import KINDS_OF_INPUTS, Measurement, Outcome
from tuner.results.record import ProblemKey, Role, new_id
from tuner.results.verdict import Act, Crown
from tuner.store import Store

#: Keys that scripts rely on, in the order in which they are printed.
CONTRACT = [
    "operation", "shape", "dtype", "layout", "device", "regime", "kernel", "config", "time_s", "noise",
    "tflops", "gbps", "baseline", "speedup", "error", "match", "expected_loss", "trials", "record_id",
    "measured_at",
]  # fmt: skip


def test_the_answer_is_the_json_that_scripts_rely_on(store: Store) -> None:
    problem = gemm(1024, 512, 256, "nt")
    best = record(problem, role=Role.FINAL)
    crown(store, best, library(problem), speedup=0.5)
    told = json.loads(json.dumps(answer(store, problem, BOARD).to_json(), allow_nan=False))
    assert list(told)[: len(CONTRACT)] == CONTRACT
    assert {key: told[key] for key in CONTRACT if key not in ("noise", "measured_at")} == {
        "operation": "gemm", "shape": {"m": 1024, "n": 512, "k": 256}, "dtype": "float32", "layout": "nt",
        "device": {"name": "NVIDIA H200", "kind": "cuda"}, "regime": "cold", "kernel": "naive",
        "config": NAIVE, "time_s": 2e-3, "tflops": 1.0, "gbps": 6.0,
        "baseline": {"name": "cuBLAS", "version": "130100", "time_s": 1e-3, "tflops": 2.0}, "speedup": 0.5,
        "error": {"max_rel": 1e-6, "rms_rel": 2e-7}, "match": "exact", "expected_loss": 0.0,
        "trials": {"total": 9, "measured": 7, "failed": 2, "CRASHED": 2}, "record_id": best.id,
    }  # fmt: skip
    assert told["measured_at"] == best.measured_at
    assert (told["provisional"], told["stale"], told["pairs"]) == (False, False, [])


@pytest.mark.parametrize(
    ("speedup", "use"), [(0.5, "cuBLAS"), (1.0, "kernel"), (1.25, "kernel"), (0.0, "kernel")]
)
def test_the_library_is_the_answer_where_it_was_faster(store: Store, speedup: float, use: str) -> None:
    problem = gemm(64, 64, 64)
    crown(store, record(problem), library(problem), speedup)
    assert answer(store, problem, BOARD).to_json()["use"] == use


def test_a_plain_kernel_answers_for_a_precision_only_where_its_promise_was_tested(store: Store) -> None:
    problem = replace(gemm(512, 640, 8192), precision="emulated")
    untested = record(problem, role=Role.FINAL)
    crown(store, untested, library(problem), 2.0)
    told = answer(store, problem, BOARD)
    assert (told.match, told.use) == ("default", "cuBLAS")
    tested = replace(untested.measurement, circumstances={KINDS_OF_INPUTS: 13.0})
    crown(store, replace(untested, id=new_id(), measurement=tested), library(problem), 2.0)
    told = answer(store, problem, BOARD)
    assert (told.match, told.kernel, told.use) == ("exact", "naive", "kernel")
    assert answer(store, replace(problem, layout="tt"), CPU).use == "NumPy", "plain kernels are all there is"
    near = answer(store, replace(problem, shape=(("m", 512), ("n", 640), ("k", 8000))), BOARD)
    assert near.kernel != "naive", "its promise was tested at another problem"


def test_the_library_answers_once_a_watch_saw_it_faster_until_the_next_champion(store: Store) -> None:
    problem = gemm(64, 64, 64)
    champion = crown(store, record(problem, role=Role.FINAL), library(problem), 2.0)
    assert answer(store, problem, BOARD).use == "kernel"
    place = problem, BOARD.kind, BOARD.name, "cold"
    store.add(Crown(Act.BEHIND, *place, champion.id, "tuner watch", "slower in both processes"))
    told = answer(store, problem, BOARD)
    assert (told.match, told.use, told.champion) == ("exact", "cuBLAS", champion)
    assert "cuBLAS was seen to be faster" in told.reasons[0]
    crown(store, record(problem, role=Role.FINAL), library(problem), 2.0)
    assert answer(store, problem, BOARD).use == "kernel"


def test_a_study_without_finals_is_answered_by_its_best_trial(store: Store) -> None:
    problem = gemm(64, 64, 64)
    best, changed = record(problem, 2e-3), record(problem, 1e-9, source_hash="before")
    failed = record(problem, measurement=Measurement(Outcome.CRASHED, "signal 11"))
    store.add([record(problem, 3e-3), best, changed, failed, library(problem, 1e-3)])
    told = answer(store, problem, BOARD).to_json()
    assert (told["record_id"], told["provisional"], told["stale"]) == (best.id, True, False)
    assert (told["speedup"], told["use"]) == (0.5, "cuBLAS")
    assert told["trials"] == {"total": 4, "measured": 3, "failed": 1, "MEASURED": 3, "CRASHED": 1}
    assert answer(store, problem, BOARD, kernel="naive").champion.record == best
    assert answer(store, problem, BOARD, kernel="register_tiled").match == "default"


def test_a_kernel_that_has_changed_since_is_marked(store: Store) -> None:
    crown(store, record(gemm(64, 64, 64), source_hash="before"))
    crown(store, record(gemm(65, 64, 64), kernel="removed"))
    told = answer(store, gemm(64, 64, 64), BOARD).to_json()
    assert told["stale"] is True
    assert "has changed since: its source was before and is" in told["stale_reason"]
    told = answer(store, gemm(65, 64, 64), BOARD).to_json()
    assert told["stale"] is True
    assert "'removed' is no longer declared" in told["stale_reason"]


def test_no_code_that_a_database_names_is_run(store: Store, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("raise SystemExit('was run')\n")
    crown(store, record(gemm(64, 64, 64), origin=str(own)))
    told = answer(store, gemm(64, 64, 64), BOARD).to_json()
    assert told["stale"] is None
    assert str(own) in told["stale_reason"]
    catalogue = Catalogue(builtin().operations, builtin().kernels)
    assert answer(store, gemm(64, 64, 64), BOARD, catalogue=catalogue).stale is False


def test_a_device_is_asked_for_by_name_or_by_a_part_of_it_that_is_of_one_alone(store: Store) -> None:
    champion = crown(store, record(gemm(64, 64, 64)))
    crown(store, record(gemm(64, 64, 64), device=CPU, source_hash=source_hash(target="cpu")))
    for name in ("NVIDIA H200", "nvidia h200", "GPU-1", "h200"):
        assert answer(store, gemm(64, 64, 64), name).champion == champion
    assert answer(store, gemm(64, 64, 64), "avx-512").to_json()["device"]["name"] == CPU.name
    with pytest.raises(
        UnknownName, match=r"unknown device 'NVIDIA H100'; did you mean NVIDIA H200\? Known: AMD"
    ):
        answer(store, gemm(64, 64, 64), "NVIDIA H100")
    crown(store, record(gemm(64, 64, 64), device=replace(BOARD, name="NVIDIA L4", uuid="GPU-2")))
    with pytest.raises(UnknownName, match="unknown device 'nvidia'"):
        answer(store, gemm(64, 64, 64), "nvidia")


def test_another_driver_or_compiler_makes_a_record_stale(store: Store) -> None:
    found = crown(store, record(gemm(64, 64, 64), versions={"compiler": "NVRTC 13.0"})).record
    assert staleness(found) == (False, "")
    newer = replace(BOARD, driver="590.1")
    assert answer(store, gemm(64, 64, 64), newer).stale
    assert "driver was 580.1 when it was measured and is 590.1" in staleness(found, None, newer)[1]
    stale, why = staleness(found, None, BOARD, {"compiler": "NVRTC 13.4", "driver": "580.1"})
    assert (stale, "compiler was NVRTC 13.0" in why) == (True, True)
    assert staleness(found, None, replace(newer, name="NVIDIA L4")) == (False, "")
    cpu = record(gemm(8, 8, 8), device=CPU, source_hash=source_hash(target="cpu"))
    assert staleness(cpu, None, replace(CPU, driver="Linux 7")) == (False, "")


@pytest.mark.parametrize(("version", "stale"), [("13.1.0.3", False), ("13.2.1.1", True)])
def test_another_version_of_a_library_makes_a_record_of_its_algorithm_stale(
    store: Store, monkeypatch: pytest.MonkeyPatch, version: str, stale: bool
) -> None:
    config = next(kernel for kernel in builtin().of("gemm", "cuda") if kernel.is_library).first_configs()[0]
    own = {"kernel": "cublaslt", "config": dict(config), "source_hash": source_hash("cublaslt")}
    crown(store, record(gemm(64, 64, 64), versions={"library": "cuBLAS 130100"}, **own))
    crown(store, record(gemm(64, 64, 32), versions={"library": "cuBLAS 130100"}))
    monkeypatch.setattr("importlib.metadata.version", lambda package: version)
    installed_compiler.cache_clear()
    told, ours = (answer(store, gemm(64, 64, k), BOARD) for k in (64, 32))
    installed_compiler.cache_clear()
    assert (told.kernel, told.stale, ours.stale) == ("cublaslt", stale, False)
    assert ("cuBLAS 130100 when it was measured and is cuBLAS 130201" in told.stale_reason) is stale


def test_without_database_the_default_answers_and_the_library_is_to_be_used() -> None:
    told = answer(None, gemm(100, 100, 100), BOARD)
    assert (told.match, told.record, told.use, told.stale) == ("default", None, "cuBLAS", False)
    data = json.loads(json.dumps(told.to_json(), allow_nan=False))
    assert list(data)[: len(CONTRACT)] == CONTRACT
    assert (data["time_s"], data["baseline"], data["record_id"]) == (None, None, "")
    assert data["loss_said"].startswith("not measured")
    assert told.expected_loss == 1.0
    assert data["config"] == dict(told.config)
    assert answer(None, gemm(8, 8, 8), CPU, kernel="naive").kernel == "naive"


@pytest.mark.parametrize(("shape", "kernel"), [
    ((4096, 4096, 4096), "warp_tiled"), ((16, 8192, 8192), "thin"), ((4096, 8192, 32), "shallow"),
    ((256, 256, 256), "small"),
])  # fmt: skip
def test_the_default_is_of_a_kernel_meant_for_the_shape(shape: tuple[int, int, int], kernel: str) -> None:
    assert answer(None, gemm(*shape), BOARD).kernel == kernel


def test_the_command_for_what_cannot_be_answered(store: Store) -> None:
    told = r"no kernel nosuch is declared. Run `tuner tune gemm 8 9 10 --kernel nosuch --device cpu --layout tt"
    with pytest.raises(NothingFound, match=told):
        answer(store, gemm(8, 9, 10, "tt"), CPU, "hot", "nosuch")


def test_the_command_for_a_users_own_operation(store: Store) -> None:
    own = ProblemKey("smooth", (("n", 100), ("radius", 3)), "float32", "")
    crown(store, record(own, origin="/my kernels/smooth.py"))
    asked = ProblemKey("smooth", (("n", 200), ("radius", 3)), "float32", "")
    with pytest.raises(NothingFound, match=r"`tuner tune '/my kernels/smooth\.py' --set n=200 --set radius=3`"):
        answer(store, asked, BOARD)


# --- Lookups of problems with an epilogue: their own records first, then what is known without it

PLAIN = gemm(1024, 512, 256)
FINISHED = replace(PLAIN, epilogue="bias-col+gelu")


def final(problem: ProblemKey, kernel: str = "naive", time_s: float = 1e-3) -> object:
    config = NAIVE if kernel == "naive" else tiled(16) if kernel == "tiled" else {}
    return record(
        problem, time_s, role=Role.FINAL, kernel=kernel, config=config, source_hash=source_hash(kernel)
    )


def test_its_own_champion_answers_and_no_other_problem_is_told_of_it(store: Store) -> None:
    crown(store, final(PLAIN), library(PLAIN), 2.0)
    crown(store, final(FINISHED, "tiled"), library(FINISHED), 3.0)
    found, plain = answer(store, FINISHED, BOARD), answer(store, PLAIN, BOARD)
    assert (found.match, found.kernel, found.to_json()["epilogue"]) == (EXACT, "tiled", "bias-col+gelu")
    assert (plain.match, plain.kernel, "epilogue" in plain.to_json()) == (EXACT, "naive", False)


def test_the_problem_without_it_answers_and_says_so(store: Store) -> None:
    crown(store, final(PLAIN), library(PLAIN), 2.0)
    found = answer(store, FINISHED, BOARD)
    assert (found.match, found.kernel, found.use) == ("predicted", "naive", "kernel")
    assert "nothing was timed with epilogue bias-col+gelu" in found.reasons[0]
    assert "without bias-col+gelu" in found.loss.said
    assert found.record.problem == PLAIN


def test_the_library_stays_the_library(store: Store) -> None:
    crown(store, final(PLAIN), library(PLAIN), 0.5)
    assert answer(store, FINISHED, BOARD).use == "cuBLASLt's first choice + element-wise"


def test_a_model_answers_without_it() -> None:
    """Published results of the H200 have a model; the words of a problem may have the epilogue."""
    found = best("gemm 3000 2000 1000 nt gelu+bias-col", "NVIDIA H200", db="sqlite:////nothing/here.db")
    assert found.question.problem.epilogue == "bias-col+gelu"
    assert found.match == "predicted"
    assert any("answered without it" in reason for reason in found.reasons)
    assert found.kernel in ("tiled", "register_tiled", "warp_tiled")
