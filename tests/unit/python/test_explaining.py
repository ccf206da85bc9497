"""`tuner.explain`: what would run, and why."""

import json
from typing import Any

import numpy as np
import pytest
from fixtures.callable_records import crowned
from fixtures.operands import stored

import tuner
from tuner.errors import TunerError, UnknownName

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
