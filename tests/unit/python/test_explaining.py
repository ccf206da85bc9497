"""`tuner.explain`: what would run, and why."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fixtures.callable_records import crowned
from fixtures.fake_gpu import H200, CupyArray, Log, on_gpu
from fixtures.operands import normal, stored

import tuner
from tuner.errors import InputError, TunerError, UnknownName

pytestmark = pytest.mark.usefixtures("own_records")
SHAPE = {"m": 40, "n": 30, "k": 20}


def arrays(m: int = 40, n: int = 30, k: int = 20) -> tuple[Any, Any]:
    return np.ones((m, k), np.float32), np.ones((k, n), np.float32)


def test_a_champion_is_told_with_its_record_and_nothing_is_run_or_compiled(ran: list[str]) -> None:
    champion = crowned("gemm", SHAPE, speedup=1.5)
    out = np.zeros((40, 30), np.float32)
    told = tuner.explain(*arrays(), out=out)
    assert (told.use, told.kernel, told.match, told.expected_loss) == ("kernel", "blocked", "exact", 0.0)
    assert told.config == champion.record.config
    assert told.record_id == champion.record.id
    assert told.speedup == pytest.approx(1.5)
    for words in ("gemm 40 x 30 x 20 float32 nn", "kernel        blocked", "BLOCK=", "1.500 x", told.record_id):
        assert words in str(told)
    assert json.loads(json.dumps(told.to_json()))["function"] == "matmul"
    assert (ran, out.any()) == ([], False)


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_every_way_of_asking_gives_the_same(layout: str) -> None:
    crowned("gemm", SHAPE, layout=layout)
    a, b = arrays()
    a = stored(a, layout[0])
    told = tuner.explain(a, b)
    assert told.problem == f"gemm 40 x 30 x 20 float32 {layout}"
    assert told.memory["a"] == ("a as it lies" if layout == "nn" else "the transpose of a as it lies")
    assert told == tuner.explain(tuner.matmul, a, b) == tuner.explain("matmul", a, b)
    assert told == tuner.explain("gemm", **SHAPE, layout=layout, device="cpu")
    if layout == "nn":
        assert told == tuner.explain(shapes=[a.shape, b.shape], device="cpu")
    assert tuner.explain(a, np.ones(20, np.float32)).function == "gemv"
    assert tuner.explain([[1.0, 2.0]]).function == "transpose"


def test_the_library_is_told_with_the_reason() -> None:
    crowned("gemm", SHAPE, speedup=0.8)
    told = tuner.explain(*arrays())
    assert (told.use, told.kernel) == ("NumPy", "blocked")
    assert "0.800 of its speed" in told.why
    half = np.ones((4, 4), np.float16)
    told = tuner.explain(half, half)
    assert (told.use, told.problem) == ("NumPy", "")
    assert "no kernel computes gemm 4 x 4 x 4 float16 nn on cpu" in told.why
    assert "use           NumPy" in str(told)


@pytest.mark.parametrize(("speedups", "use", "why"), [
    ({"cold": 1.01}, "NumPy", "too small to count on"), ({"cold": 1.03}, "kernel", ""),
    ({"cold": 1.5, "hot": 0.9}, "NumPy", "in the hot regime"), ({"cold": 1.5, "hot": 1.3}, "kernel", ""),
])  # fmt: skip
def test_a_lead_is_more_than_noise_in_every_regime(speedups: dict[str, float], use: str, why: str) -> None:
    for regime, speedup in speedups.items():
        crowned("gemm", SHAPE, speedup=speedup, regime=regime)
    told = tuner.explain(*arrays())
    assert (told.use, told.speedup, why in told.why) == (use, pytest.approx(speedups["cold"]), True)


def test_a_kernel_answers_at_another_shape_only_where_three_near_ones_speak_for_it() -> None:
    crowned("gemm", SHAPE, config={"BLOCK": 32}, speedup=3.0)
    needed = "1.25 x is needed at 3 problems with all dims within 4 x"
    one = tuner.explain(*arrays(m=41))
    assert (one.match, one.use, needed in one.why) == ("predicted", "NumPy", True)
    for size in (20, 80):
        crowned("gemm", SHAPE | {"m": size}, config={"BLOCK": 32}, speedup=3.0)
    tuner.clear_caches()
    three = tuner.explain(*arrays(m=41))
    assert (three.match, three.use) == ("predicted", "kernel")
    assert "the best time at gemm 40 x 30 x 20" in three.why
    far = tuner.explain(*arrays(m=400))
    assert (far.match, far.use, needed in far.why) == ("predicted", "NumPy", True)


@pytest.mark.parametrize(("call", "named", "kind", "words"), [
    ((), {}, ValueError, "takes 2 arrays .*, got 0; give the arrays"),
    (("mathmul",), SHAPE, UnknownName, "did you mean matmul"),
    ((), SHAPE, ValueError, "name it"),
    (("matmul",), {"shapes": [(2, 3), (4, 5)], "device": "cpu"}, ValueError, "core dimensions"),
    (("gemm",), {**SHAPE, "device": "NVIDIA H900"}, TunerError, "H900"),
])  # fmt: skip
def test_what_is_wrong_is_said(call: Any, named: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        tuner.explain(*call, **named)


# --- precision ----------------------------------------


DIMS = {"m": 12, "n": 7, "k": 5}


def on_board(*shape: int, dtype: str = "float32", device: int = 0) -> CupyArray:
    return CupyArray(on_gpu(normal(*shape, dtype=dtype)), device)


def operands(dtype: str = "float32") -> tuple[CupyArray, CupyArray]:
    return on_board(12, 5, dtype=dtype), on_board(5, 7, dtype=dtype)


def emulated(gpu: Log) -> int:
    """Runs of the emulated precision."""
    return sum(run.endswith(" emulated") for run in gpu.runs)


def test_a_call_takes_the_champion_of_its_precision_and_a_context_holds_in_its_own_thread(gpu: Log) -> None:
    crowned("gemm", DIMS, layout="nn", kernel="tiled", device=H200, speedup=3.0, precision="emulated")
    a, b = operands()
    tuner.matmul(a, b)
    assert emulated(gpu) == 0
    tuner.matmul(a, b, precision="emulated")
    assert emulated(gpu) == 1
    with tuner.precision("emulated"), ThreadPoolExecutor(1) as other:
        tuner.matmul(a, b)
        tuner.matmul(a, b, precision="ieee")
        with tuner.precision("ieee"):
            tuner.matmul(a, b)
        other.submit(tuner.matmul, a, b).result()
    assert emulated(gpu) == 2


def test_a_champion_of_the_usual_precision_is_no_answer(gpu: Log) -> None:
    """It was not tested at inputs of all kinds."""
    crowned("gemm", DIMS, layout="nn", kernel="tiled", device=H200)
    a, b = operands()
    got = tuner.matmul(a, b, precision="emulated")
    np.testing.assert_allclose(got.host, a.host @ b.host, rtol=1e-4, atol=1e-4)
    told = tuner.explain("gemm", **DIMS, layout="nn", device="NVIDIA H200", precision="emulated")
    assert (told.match, told.problem) == ("predicted", "gemm 12 x 7 x 5 float32 nn emulated")
    assert told.kernel != "tiled"


def test_a_call_that_asks_for_float64_emulated_is_refused_and_a_context_leaves_it_alone(gpu: Log) -> None:
    a, b = operands("float64")
    with pytest.raises(InputError, match="precision 'emulated' is for float32, got float64; convert"):
        tuner.matmul(a, b, precision="emulated")
    with tuner.precision("emulated"):
        assert tuner.matmul(a, b).dtype == np.float64
    with pytest.raises(UnknownName, match="unknown precision 'emulate'; did you mean emulated"):
        tuner.matmul(a, b, precision="emulate")


SIZES = {"m": 256, "n": 128, "k": 256}
CONFIG = {"WIDTH": 64, "STAGES": 8, "CLUSTER": 1, "CHUNK": 32, "PROMOTION": "compensated"}


def champions(*rows: int, layout: str = "nn", versions: Any = None, **config: Any) -> None:
    for m in rows or (256,):
        given = {"kernel": "emulated", "device": H200, "precision": "emulated", "config": CONFIG | config}
        crowned("gemm", {**SIZES, "m": m}, layout=layout, versions=versions, **given)


def test_explain_names_the_plain_kernel_that_was_measured_behind() -> None:
    told = "double_sums BM=64 BN=64 BK=32 WM=16 WN=32 STAGES=3 VECTOR=4 SWATH=8 SPLIT_K=1"
    champions(versions={"fallback": told})
    found = tuner.explain("gemm", **SIZES, layout="nn", device="NVIDIA H200", precision="emulated")
    assert found.fallback == told


def test_without_a_kernel_that_packs_it_is_a_copy(gpu: Log) -> None:
    a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    packed = tuner.pack(b)
    assert packed.bytes == b.nbytes
    np.testing.assert_array_equal(tuner.matmul(a, packed), a @ b)
    out = np.empty((3, 5), np.float32)
    assert tuner.matmul(a, packed, out=out) is out


@pytest.mark.parametrize(("a", "given", "kind", "words"), [
    (on_board(9, 7), {}, ValueError, r"are equal, got \(9, 7\) and \(256, 128\)"),
    (on_board(9, 256, dtype="float64"), {}, InputError, "is for float32, got float64"),
    (on_board(9, 256), {"precision": "ieee"}, InputError, "is for precision 'emulated', got 'ieee'"),
    (on_board(9, 256), {"activation": "relu"}, InputError, "an epilogue is for arrays, got a packed"),
])  # fmt: skip
def test_what_does_not_fit_is_told(a: Any, given: Any, kind: type[Exception], words: str, gpu: Log) -> None:
    champions()
    packed = tuner.pack(on_board(256, 128))
    with pytest.raises(kind, match=words):
        tuner.matmul(a, packed, **given)
    with pytest.raises(InputError, match=r"pack: b is a matrix of float32, got float32 of shape \(8,\)"):
        tuner.pack(on_board(8))


def test_products_that_fell_back_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuner.fallbacks() == 0
    launching = pytest.importorskip("tuner.devices.cuda.launching", reason="counting needs CuPy")
    monkeypatch.setattr(launching, "_COUNTERS", {0: np.array([3], np.uint32), 1: np.array([4], np.uint32)})
    assert tuner.fallbacks() == 7


@pytest.mark.parametrize("letter", ["n", "t"])
def test_a_product_takes_what_was_packed_once_whatever_happens_to_the_array(letter: str, gpu: Log) -> None:
    champions(256, 384, layout=f"n{letter}")
    b = on_board(256, 128) if letter == "n" else on_board(128, 256).T
    packed, before = tuner.pack(b), b.host.copy()
    assert f"packed float32 of shape (256, 128) on cuda:0, {packed.bytes} bytes" in repr(packed)
    assert packed.bytes > 2 * 4 * 256 * 128, "the packed form and a copy"
    b.host[...] = 0
    for rows in (256, 384, 256):
        a = on_board(rows, 256)
        np.testing.assert_allclose(tuner.matmul(a, packed).host, a.host @ before, rtol=1e-3, atol=1e-3)
    assert (len(gpu.packed), gpu.took_packed) == (1, [True] * 3)


def test_another_packed_form_leaves_the_copy_to_the_product(gpu: Log) -> None:
    champions(256)
    champions(4096, CHUNK=64)
    tuner.matmul(on_board(4096, 256), tuner.pack(on_board(256, 128)))
    assert gpu.took_packed == [False]
