"""Answers for problems and devices that nobody tuned: from what is near, and never an illegal config."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.lookup_records import BOARD, NAIVE, answer, crown, gemm, library, record, source_hash, tiled
from hypothesis import given, settings
from hypothesis import strategies as st

import tuner
from tuner.declare.catalogue import builtin
from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Config
from tuner.errors import InputError, NothingFound
from tuner.lookup import Answer
from tuner.results.record import ProblemKey, Role
from tuner.store import Store
from tuner.store.published import publish

SHAPES = [(64, 64, 64), (64, 64, 80), (4096, 4096, 4096), (4096, 4096, 4000), (4000, 4096, 4096)]
SMALL, LARGE = tiled(8), tiled(32)
BUILTIN = builtin()


def tuned(
    store: Store, problem: ProblemKey, times: dict[int, float], speedup: float = 2.0, **more: Any
) -> None:
    """A study of ``tiled``: BLOCK -> time; the fastest is crowned beside the library."""
    found = [
        record(
            problem, time_s, kernel="tiled", config=tiled(block), source_hash=source_hash("tiled"),
            role=Role.FINAL, **more,
        )
        for block, time_s in times.items()
    ]  # fmt: skip
    best = min(found, key=lambda each: each.measurement.time_s or 0.0)
    store.add(found)
    crown(store, best, library(problem, speedup * min(times.values()), **more), speedup)


def tuned_shapes(store: Store) -> None:
    """Small blocks are best for small problems, large ones for large problems."""
    for m, n, k in SHAPES:
        small = m * n * k < 1e8
        tuned(
            store, gemm(m, n, k), {8: 1e-3, 16: 1.2e-3, 32: 1.4e-3} if small else {8: 4e-3, 16: 3e-3, 32: 2e-3}
        )


def test_tuned_problems_answer_near_them(store: Store) -> None:
    tuned_shapes(store)
    near = answer(store, gemm(60, 64, 70), BOARD)
    assert (near.match, near.kernel, near.config, near.record) == ("predicted", "tiled", SMALL, None)
    assert (near.expected_loss, near.loss.interval, near.to_json()["time_s"]) == (1.0, None, None)
    far = answer(store, gemm(4100, 4096, 4096), BOARD)
    assert (far.match, far.config, far.use) == ("predicted", LARGE, "kernel")
    assert far.predicted.speedup == pytest.approx(2.0, rel=0.01)
    assert far.predicted.kernel_s == pytest.approx(2e-3 * 4100 / 4096, rel=0.01)


def test_the_library_answers_unless_three_near_problems_show_a_clear_lead(store: Store) -> None:
    sizes = (4096, 4000, 4200)
    for number, size in enumerate(sizes):
        told = answer(store, gemm(4096, 4096, 4100), BOARD)
        assert told.use == "cuBLAS", number
        tuned(store, gemm(4096, 4096, size), {8: 4e-3, 32: 3e-3}, speedup=1.5)
    assert answer(store, gemm(4096, 4096, 4100), BOARD).use == "kernel"
    assert answer(store, gemm(4096, 4096, 300), BOARD).use == "cuBLAS"
    for size in sizes:
        tuned(store, gemm(4096, 4096, size), {8: 4e-3, 32: 3e-3}, speedup=1.1)
    told = answer(store, gemm(4096, 4096, 4100), BOARD)
    assert (told.match, told.use, told.config) == ("predicted", "cuBLAS", LARGE)
    assert "cuBLAS is the safer choice: the kernel has 1.10 x its speed, 1.25 x is needed" in told.reasons[-1]


def test_a_similar_device_answers_where_nothing_is_known_of_this_one(store: Store) -> None:
    tuned_shapes(store)
    nvl = replace(BOARD, name="NVIDIA H200 NVL", uuid="GPU-2", sm_count=0, max_threads_per_block=0)
    told = answer(store, gemm(4096, 4096, 4096), nvl)
    assert (told.match, told.config) == ("similar-device", LARGE)
    assert "NVIDIA H200 is of architecture sm_90, too" in told.reasons[0]
    other = replace(BOARD, name="NVIDIA GH200", uuid="GPU-3")
    assert "of architecture sm_90, too" in answer(store, gemm(64, 64, 64), other).reasons[0]
    older = replace(BOARD, name="NVIDIA A100", uuid="GPU-4", architecture="sm_80")
    assert answer(store, gemm(64, 64, 64), older).match == "default"


def test_published_results_answer_without_a_database(store: Store, tmp_path: Path) -> None:
    tuned_shapes(store)
    folder = tmp_path / "tuned"
    publish(store, folder)
    exact = answer(None, gemm(64, 64, 64), "NVIDIA H200", published=folder)
    assert (exact.match, exact.config, exact.stale) == ("exact", SMALL, False)
    near = answer(None, gemm(4100, 4096, 4096), "h200", published=folder)
    assert (near.match, near.config) == ("predicted", LARGE)


def test_a_later_record_of_the_store_comes_before_a_published_one(store: Store, tmp_path: Path) -> None:
    problem, folder = gemm(64, 64, 64), tmp_path / "tuned"
    tuned(store, problem, {8: 1e-3})
    publish(store, folder)
    tuned(store, problem, {16: 0.9e-3})
    assert answer(store, problem, BOARD, published=folder).config == tiled(16)
    assert answer(None, problem, BOARD, published=folder).config == tiled(8)


def test_another_regime_answers_before_a_default_does(store: Store) -> None:
    problem = gemm(64, 64, 64)
    best = record(problem, 1e-3, regime="hot", role=Role.FINAL)
    crown(store, best, library(problem, 2e-3, regime="hot"), 2.0)
    told = answer(store, problem, BOARD)
    assert (told.match, told.record, told.use, told.stale) == ("exact", best, "kernel", False)
    assert told.expected_loss == 1.0
    assert "timed hot for this very problem, and not cold" in told.loss.said
    assert told.reasons[0] == "nothing was timed cold on such a device; this was timed hot"
    near = answer(store, gemm(64, 64, 80), BOARD, "cold-graph")
    assert (near.match, near.config) == ("predicted", best.config)
    crown(store, record(problem, 1e-3, regime="cold", role=Role.FINAL), None)
    assert answer(store, problem, BOARD).expected_loss == 0.0
    slower = gemm(96, 96, 96)
    crown(store, record(slower, 3e-3, regime="hot-graph"), library(slower, 2e-3, regime="hot-graph"), 0.66)
    assert answer(store, slower, BOARD, "hot-graph").use == "cuBLAS"


def test_a_config_that_became_illegal_is_not_answered(store: Store) -> None:
    problem = gemm(64, 64, 64)
    crown(store, record(problem, 1e-3, config=NAIVE | {"BLOCK_X": 5}))
    assert answer(store, problem, BOARD).match == "default"


def test_new_records_are_seen_by_the_next_question(store: Store) -> None:
    problem = gemm(64, 64, 64)
    assert answer(store, problem, BOARD).match == "default"
    tuned(store, gemm(64, 64, 80), {8: 1e-3})
    assert answer(store, problem, BOARD).match == "predicted"
    small = answer(store, gemm(16, 16, 16), BOARD).predicted
    assert small.kernel_s < 0.1e-3, "the time of the only problem is that of its work"
    tuned(store, problem, {16: 1e-3})
    assert answer(store, problem, BOARD).match == "exact"


def test_where_no_config_is_legal_nothing_is_answered(store: Store) -> None:
    tiny = replace(BOARD, name="Tiny", max_threads_per_block=1)
    with pytest.raises(NothingFound, match="no config of its kernels is legal there"):
        answer(store, gemm(64, 64, 64), tiny, kernel="warp_tiled")


def is_legal(told: Answer, problem: ProblemKey, device: DeviceInfo) -> bool:
    kernel = BUILTIN.of(problem.operation, device.kind, (told.kernel,))[0]
    asked = problem.of_operation(BUILTIN.operation(problem.operation))
    values = {each.name: each.values for each in kernel.parameters}
    assert set(values) == set(told.config)
    assert all(told.config[name] in values[name] for name in values)
    config = Config({name: told.config[name] for name in values})
    return all(each.for_speed or bool(each.rule(asked, device, config)) for each in kernel.constraints)


DIMS = st.one_of(st.integers(1, 300), st.sampled_from([512, 1000, 1001, 4096, 4099, 16384]))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Tuned shapes; published results and models are known beside them."""
    with Store.open(f"sqlite:///{tmp_path_factory.mktemp('known')}/studies.db") as store:
        tuned_shapes(store)
        yield store


@settings(max_examples=40)
@given(
    m=DIMS, n=DIMS, k=DIMS, layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    kernel=st.sampled_from(["", *(each.name for each in BUILTIN.of("gemm", "cuda"))]),
    name=st.sampled_from([BOARD.name, "NVIDIA H200 NVL", "NVIDIA A100"]),
    threads=st.sampled_from([128, 512, 1024]), shared=st.sampled_from([16 << 10, 48 << 10, 227 << 10]),
    registers=st.sampled_from([16384, 65536]), capability=st.sampled_from([75, 90]),
)  # fmt: skip
def test_no_answer_is_ever_illegal(
    known: Store, m: int, n: int, k: int, layout: str, kernel: str, name: str, threads: int, shared: int,
    registers: int, capability: int,
) -> None:  # fmt: skip
    device = replace(
        BOARD, name=name, uuid="", max_threads_per_block=threads, shared_bytes_per_block=shared,
        shared_bytes_per_sm=shared + 1024, registers_per_block=registers, compute_capability=capability,
        architecture=f"sm_{capability}",
    )  # fmt: skip
    problem = gemm(m, n, k, layout)
    try:
        told = answer(known, problem, device, kernel=kernel or None, catalogue=BUILTIN, published=None)
    except NothingFound:
        return
    assert is_legal(told, problem, device)


def test_best_takes_words_and_keeps_the_database_open(store: Store, tmp_path: Path, here: Path) -> None:
    tuned_shapes(store)
    url = f"sqlite:///{tmp_path}/studies.db"
    told = tuner.best("gemm 64 64 64 float32 nn", "h200", db=url)
    assert (told.match, told.config) == ("exact", SMALL)
    problem = BUILTIN.operations["gemm"].problem({"m": 64, "n": 64, "k": 64})
    assert tuner.best(problem, BOARD, db=url) == tuner.best(gemm(64, 64, 64), BOARD, db=url)
    with pytest.raises(InputError, match="gemm takes M N K: 3 dims, got 2; give a size for each"):
        tuner.best("gemm 64 64", "h200", db=url)
    with pytest.raises(InputError, match="one layout, one precision and one epilogue, got nn nt"):
        tuner.best("gemm 64 64 64 nn nt", "h200", db=url)
    assert tuner.best("gemm 8 8 8", "cpu", db="sqlite:///none.db").kernel in {
        each.name for each in BUILTIN.of("gemm", "cpu")
    }
    assert not (here / "none.db").exists()


def test_best_sees_that_another_database_lies_there(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/studies.db", tmp_path / "studies.db"
    for block in (8, 16):
        with Store.open(url) as store:
            tuned(store, gemm(64, 64, 64), {block: 1e-3})
        assert tuner.best(gemm(64, 64, 64), BOARD, db=url).config == tiled(block)
        path.rename(tmp_path / f"{block}.db")
    assert (
        tuner.best(gemm(64, 64, 64), replace(BOARD, name="Nothing", architecture=""), db=url).match == "default"
    )
