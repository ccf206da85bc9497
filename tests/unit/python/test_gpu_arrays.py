"""Callables on CuPy arrays, PyTorch tensors and arrays that share memory, on a GPU made of the host's."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from fixtures.callable_records import crowned, empty_database, own_records
from fixtures.fake_gpu import H200, CupyArray, Log, Shared, TorchTensor, aligned, install, on_gpu
from numpy.typing import NDArray

import tuner
from tuner.python import CallableWarning, calls, functions

__all__ = ["empty_database", "own_records"]
RNG = np.random.default_rng(3)
LAYOUTS = ("nn", "nt", "tn", "tt")


@pytest.fixture(autouse=True)
def log(own_records: None, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(functions, "_key_of", dict(functions._key_of))
    calls.device_info.cache_clear()
    return install(monkeypatch)


def normal(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def stored(array: Any, letter: str) -> Any:
    return on_gpu(array if letter == "n" else np.ascontiguousarray(array.T).T)


def champion_of(operation: str, layout: str = "", speedup: float = 2.0, **shape: int) -> None:
    kernel = {"gemm": "naive", "gemv": "row_per_thread", "transpose": "naive"}[operation]
    crowned(operation, shape, layout=layout, speedup=speedup, kernel=kernel, device=H200)


def close(got: Any, wanted: Any) -> None:
    assert got.host.shape == wanted.shape
    np.testing.assert_allclose(got.host, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["n", "t"])
def test_a_library_call_is_the_one_that_the_operation_declares(layout: str, log: Log) -> None:
    champion_of("gemv", layout, speedup=0.9, m=7, n=5)
    champion_of("transpose", speedup=0.9, m=7, n=5)
    a, x = stored(normal(7, 5), layout), on_gpu(normal(5))
    close(tuner.gemv(CupyArray(a), CupyArray(x)), a @ x)
    dense = on_gpu(normal(7, 5))
    close(tuner.transpose(CupyArray(dense)), dense.T)
    assert (log.runs, log.library) == ([], ["cuBLAS gemv", "cuBLAS geam"])


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_a_problem_of_its_own_and_nothing_is_copied(layout: str, kind: Any, log: Log) -> None:
    champion_of("gemm", layout, m=7, n=6, k=5)
    a, b = stored(normal(7, 5), layout[0]), stored(normal(5, 6), layout[1])
    got = tuner.matmul(kind(a), kind(b))
    assert isinstance(got, kind)
    close(got, a @ b)
    assert log.runs == [f"gemm 7 x 6 x 5 float32 {layout}"]
    assert tuner.explain(kind(a), kind(b)).copies == ()
    out = kind(on_gpu(np.zeros((7, 6), np.float32)))
    assert tuner.matmul(kind(a), kind(b), out=out) is out
    close(out, a @ b)
    assert log.library == []


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
def test_a_column_major_result_is_written_as_it_lies(kind: Any, log: Log) -> None:
    champion_of("gemm", "tn", m=6, n=7, k=5)
    a, b = stored(normal(7, 5), "t"), stored(normal(5, 6), "t")
    champion_of("gemm", "nn", m=6, n=7, k=5)
    out = kind(aligned((6, 7), np.float32).T)
    assert tuner.matmul(kind(a), kind(b), out=out) is out
    close(out, a @ b)
    assert log.runs == ["gemm 6 x 7 x 5 float32 nn"]


def test_vectors_and_transposes(log: Log) -> None:
    champion_of("gemv", "t", m=7, n=5)
    champion_of("transpose", m=7, n=5)
    a, x = stored(normal(7, 5), "t"), on_gpu(normal(5))
    close(tuner.gemv(CupyArray(a), CupyArray(x)), a @ x)
    close(tuner.matmul(CupyArray(x), CupyArray(a.T)), a @ x)
    dense = on_gpu(normal(7, 5))
    close(tuner.transpose(CupyArray(dense)), dense.T)
    assert log.runs == ["gemv 7 x 5 float32 t", "gemv 7 x 5 float32 t", "transpose 7 x 5 float32"]


def test_the_library_runs_where_it_was_faster(log: Log) -> None:
    champion_of("gemm", "nn", speedup=0.9, m=4, n=4, k=4)
    a = CupyArray(on_gpu(normal(4, 4)))
    close(tuner.matmul(a, a), a.host @ a.host)
    assert (log.runs, log.library) == ([], ["matmul"])
    assert tuner.explain(a, a).use == "cuBLAS"


def test_an_array_that_begins_in_between_is_another_call(log: Log) -> None:
    champion_of("gemm", "nn", m=4, n=4, k=4)
    a, odd = CupyArray(on_gpu(normal(4, 4))), CupyArray(on_gpu(normal(4, 4), beyond=4))
    tuner.matmul(a, a)
    for _ in range(2):
        close(tuner.matmul(odd, a), odd.host @ a.host)
    assert "address" in tuner.explain(odd, a).copies[0]
    assert log.runs == ["gemm 4 x 4 x 4 float32 nn"] * 3


def test_a_result_that_overlaps_an_input_is_made_beside_it(log: Log) -> None:
    champion_of("gemm", "nn", m=4, n=4, k=4)
    for kind in (CupyArray, TorchTensor):
        a, b = kind(on_gpu(normal(4, 4))), kind(on_gpu(normal(4, 4)))
        wanted = a.host @ b.host
        assert tuner.matmul(a, b, out=b) is b
        close(b, wanted)
    assert len(log.runs) == 2


def test_the_arrays_device_is_where_it_runs(log: Log) -> None:
    champion_of("gemm", "nn", m=4, n=4, k=4)
    a = CupyArray(on_gpu(normal(4, 4)), device=1)
    for _ in range(2):
        assert tuner.matmul(a, a).device_id == 1
    assert log.devices == [1, 1]


def test_a_tensor_runs_on_its_librarys_stream(log: Log) -> None:
    champion_of("gemm", "nn", m=4, n=4, k=4)
    a = TorchTensor(on_gpu(normal(4, 4)))
    tuner.matmul(a, a)
    assert log.streams == [77]


def test_gradients_and_host_tensors_stay_with_pytorch(log: Log) -> None:
    champion_of("gemm", "nn", m=4, n=4, k=4)
    host = on_gpu(normal(4, 4))
    tuner.matmul(TorchTensor(host), TorchTensor(host))
    for a in (TorchTensor(host, requires_grad=True), TorchTensor(host, device="cpu")):
        close(tuner.matmul(a, a), host @ host)
    assert log.library == ["torch.matmul"] * 2
    assert len(log.runs) == 1


def test_a_tensor_without_strides_stays_with_pytorch(log: Log) -> None:
    class Sparse(TorchTensor):
        layout = "sparse"

        def stride(self) -> tuple[int, ...]:
            raise RuntimeError("sparse tensors do not have strides")

    vars(sys.modules["torch"]).update(strided="strided", Tensor=Sparse)
    a = Sparse(on_gpu(normal(4, 4)))
    for _ in range(2):
        close(tuner.matmul(a, a), a.host @ a.host)
    assert (log.runs, log.library) == ([], ["torch.matmul"] * 2)


def test_an_unknown_library_shares_its_memory_and_gets_its_own_kind_back(log: Log) -> None:
    champion_of("gemm", "nt", m=4, n=6, k=5)
    a, b = Shared(on_gpu(normal(4, 5))), Shared(stored(normal(5, 6), "t"))
    got = tuner.matmul(a, b)
    assert isinstance(got, Shared)
    close(got, a.host @ b.host)
    out = Shared(on_gpu(np.zeros((4, 6), np.float32)))
    assert tuner.matmul(a, b, out=out) is out
    close(out, a.host @ b.host)
    assert log.runs == ["gemm 4 x 6 x 5 float32 nt"] * 2
    assert tuner.explain(a, b).use == "kernel"


def test_memory_of_the_host_that_is_shared_goes_to_the_cpu(log: Log) -> None:
    class OnHost(Shared):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __array_namespace__(self) -> Any:
            return np

    a = OnHost(normal(4, 4))
    np.testing.assert_allclose(tuner.matmul(a, a), a.host @ a.host, rtol=1e-5)
    assert log.runs == []


def test_libraries_and_devices_do_not_mix() -> None:
    host, other = CupyArray(on_gpu(normal(4, 4))), CupyArray(on_gpu(normal(4, 4)), device=1)
    with pytest.raises(TypeError, match="one library, got a of CuPy, b of NumPy"):
        tuner.matmul(host, normal(4, 4))
    with pytest.raises(TypeError, match="one library, got a of CuPy, b of CuPy, out of NumPy"):
        tuner.matmul(host, host, out=normal(4, 4))
    with pytest.raises(ValueError, match="one device, got cuda:0 and cuda:1"):
        tuner.matmul(host, other)
    with pytest.raises(ValueError, match="core dimension k"):
        tuner.matmul(host, host[:3])
    with pytest.raises(ValueError, match="shape of the result"):
        tuner.matmul(host, host, out=host[:3])


def test_a_kernel_that_does_not_load_leaves_the_call_to_the_library(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("CUDA_ERROR_INVALID_IMAGE")

    monkeypatch.setattr(sys.modules["tuner.devices.cuda.calling"], "Loaded", fails)
    champion_of("gemm", "nn", m=4, n=4, k=4)
    a = CupyArray(on_gpu(normal(4, 4)))
    with pytest.warns(CallableWarning, match="INVALID_IMAGE"):
        close(tuner.matmul(a, a), a.host @ a.host)
    assert log.library == ["matmul"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
def test_16_bit_products_are_a_kernels_where_it_was_faster(kind: Any, dtype: str, log: Log) -> None:
    crowned("gemm", {"m": 16, "n": 8, "k": 24}, dtype, "nt", kernel="half_tiled", device=H200)
    a, b = stored(normal(16, 24).astype(dtype), "n"), stored(normal(24, 8).astype(dtype), "t")
    got = tuner.matmul(kind(a), kind(b))
    wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(dtype)
    np.testing.assert_array_equal(got.host, wanted)
    assert log.runs == [f"gemm 16 x 8 x 24 {dtype} nt"]


def test_16_bit_products_on_the_cpu_are_numpys() -> None:
    a = normal(4, 4).astype(np.float16)
    np.testing.assert_array_equal(tuner.matmul(a, a), a @ a)
    assert "kernels compute in float32 and float64" in str(tuner.explain(a, a))
