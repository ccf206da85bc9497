"""The precision of a product: as the call, its context or the environment says. No GPU: one is played."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fixtures.callable_records import crowned
from fixtures.fake_gpu import H200, CupyArray, Log, on_gpu

import tuner
from tuner.errors import InputError, UnknownName

pytestmark = pytest.mark.usefixtures("own_records")
DIMS = {"m": 12, "n": 7, "k": 5}


def operands(dtype: str = "float32") -> tuple[CupyArray, CupyArray]:
    rng = np.random.default_rng(3)
    sizes = ((DIMS["m"], DIMS["k"]), (DIMS["k"], DIMS["n"]))
    a, b = (CupyArray(on_gpu(rng.standard_normal(size).astype(dtype))) for size in sizes)
    return a, b


def emulated(gpu: Log) -> int:
    """Runs of the emulated precision."""
    return sum(run.endswith(" emulated") for run in gpu.runs)


def emulated_champion(speedup: float = 3.0) -> None:
    crowned("gemm", DIMS, layout="nn", kernel="tiled", device=H200, speedup=speedup, precision="emulated")


def test_a_call_takes_the_champion_of_its_precision_and_a_context_holds_in_its_own_thread(gpu: Log) -> None:
    emulated_champion()
    a, b = operands()
    tuner.matmul(a, b)
    assert emulated(gpu) == 0
    tuner.matmul(a, b, precision="emulated")
    assert emulated(gpu) == 1
    with tuner.precision("emulated"):
        tuner.matmul(a, b)
        tuner.matmul(a, b, precision="ieee")
        with tuner.precision("ieee"):
            tuner.matmul(a, b)
        other = threading.Thread(target=tuner.matmul, args=(a, b))
        other.start()
        other.join()
    assert emulated(gpu) == 2


def test_without_a_result_of_its_own_the_library_answers(gpu: Log) -> None:
    """The champion of the usual precision was not tested at inputs of all kinds."""
    crowned("gemm", DIMS, layout="nn", kernel="tiled", device=H200)
    a, b = operands()
    got = tuner.matmul(a, b, precision="emulated")
    np.testing.assert_allclose(got.host, a.host @ b.host, rtol=1e-4, atol=1e-4)
    assert gpu.runs == []
    told = tuner.explain("gemm", **DIMS, layout="nn", device="NVIDIA H200", precision="emulated")
    assert (told.use, told.problem) == ("cuBLAS", "gemm 12 x 7 x 5 float32 nn emulated")


def test_a_call_that_asks_for_float64_emulated_is_refused_and_a_context_leaves_it_alone(gpu: Log) -> None:
    a, b = operands("float64")
    with pytest.raises(InputError, match="precision 'emulated' is for float32, got float64; convert"):
        tuner.matmul(a, b, precision="emulated")
    with tuner.precision("emulated"):
        assert tuner.matmul(a, b).dtype == np.float64
    with pytest.raises(UnknownName, match="unknown precision 'emulate'; did you mean emulated"):
        tuner.matmul(a, b, precision="emulate")
