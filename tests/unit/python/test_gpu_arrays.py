"""Callables on CuPy arrays, PyTorch tensors and arrays that share memory, on a GPU made of the host's."""

import sys
from typing import Any

import numpy as np
import pytest
from fixtures.callable_records import crowned
from fixtures.fake_gpu import H200, CupyArray, Log, Shared, TorchTensor, aligned, on_gpu
from fixtures.operands import normal

import tuner

pytestmark = pytest.mark.usefixtures("own_records", "gpu")


def stored(array: Any, letter: str) -> Any:
    return on_gpu(array if letter == "n" else np.ascontiguousarray(array.T).T)


def champion_of(operation: str, layout: str = "", speedup: float = 2.0, **shape: int) -> None:
    kernel = {"gemm": "naive", "gemv": "row_per_thread", "bmm": "tiled"}.get(operation, "naive")
    crowned(operation, shape, layout=layout, speedup=speedup, kernel=kernel, device=H200)


def close(got: Any, wanted: Any) -> None:
    assert got.host.shape == wanted.shape
    np.testing.assert_allclose(got.host, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["n", "t"])
def test_a_library_call_is_the_one_that_the_operation_declares(layout: str, gpu: Log) -> None:
    champion_of("gemv", layout, speedup=0.9, m=7, n=5)
    champion_of("transpose", speedup=0.9, m=7, n=5)
    a, x, dense = stored(normal(7, 5), layout), on_gpu(normal(5)), on_gpu(normal(7, 5))
    close(tuner.gemv(CupyArray(a), CupyArray(x)), a @ x)
    close(tuner.transpose(CupyArray(dense)), dense.T)
    assert (gpu.runs, gpu.library) == ([], ["cuBLAS gemv", "cuBLAS geam"])


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_every_layout_is_a_problem_of_its_own_and_nothing_is_copied(layout: str, kind: Any, gpu: Log) -> None:
    champion_of("gemm", layout, m=7, n=6, k=5)
    a, b = stored(normal(7, 5), layout[0]), stored(normal(5, 6), layout[1])
    got = tuner.matmul(kind(a), kind(b))
    assert isinstance(got, kind)
    close(got, a @ b)
    assert gpu.runs == [f"gemm 7 x 6 x 5 float32 {layout}"]
    assert tuner.explain(kind(a), kind(b)).copies == ()
    out = kind(aligned((7, 6), np.float32))
    assert tuner.matmul(kind(a), kind(b), out=out) is out
    close(out, a @ b)
    assert (len(gpu.runs), gpu.library) == (2, [])


@pytest.mark.parametrize("layout", ["nt", "nn", "tt"])
def test_bytes_of_cupy_with_scales_are_8_bit_numbers_and_are_copied_along_k(layout: str, gpu: Log) -> None:
    eight, (m, n, k) = "float8_e4m3fn", (16, 32, 128)
    config = {"STORE": "registers"}
    how = {"kernel": "wgmma_fp8", "device": H200, "epilogue": "scale-line+to-float32", "config": config}
    crowned("gemm", {"m": m, "n": n, "k": k}, eight, "nt", **how)
    a, b = stored(normal(m, k).astype(eight), layout[0]), stored(normal(k, n).astype(eight), layout[1])
    scales = [np.linspace(0.5, 2, size, dtype="float32") for size in (m, n)]
    held = [CupyArray(on_gpu(x.view("uint8"))) for x in (a, b)]
    of_a, of_b = (CupyArray(on_gpu(scale)) for scale in scales)
    got = tuner.matmul(*held, scale_a=of_a, scale_b=of_b, dtype="float32")
    close(got, (a.astype("f4") * scales[0][:, None]) @ (b.astype("f4") * scales[1]))
    assert gpu.runs == [f"gemm {m} x {n} x {k} {eight} nt scale-line+to-float32"]


def test_it_runs_where_its_arrays_are_on_their_librarys_stream_and_out_may_be_an_input(gpu: Log) -> None:
    champion_of("gemm", "nn", m=4, n=4, k=4)
    a = CupyArray(on_gpu(normal(4, 4)), device=1)
    for _ in range(2):
        assert tuner.matmul(a, a).device_id == 1
    assert gpu.devices == [1, 1]
    tensor = TorchTensor(on_gpu(normal(4, 4)))
    tuner.matmul(tensor, tensor)
    assert gpu.streams == [77]
    for square in (a, tensor):
        wanted = square.host @ square.host
        assert tuner.matmul(square, square, out=square) is square
        close(square, wanted)


def test_gradients_and_what_lies_on_the_host_or_has_no_strides_stay_with_pytorch(gpu: Log) -> None:
    class Sparse(TorchTensor):
        layout = "sparse"

        def stride(self) -> tuple[int, ...]:
            raise RuntimeError("sparse tensors do not have strides")

    champion_of("gemm", "nn", m=4, n=4, k=4)
    host = on_gpu(normal(4, 4))
    tuner.matmul(TorchTensor(host), TorchTensor(host))
    for a in (TorchTensor(host, requires_grad=True), TorchTensor(host, device="cpu"), Sparse(host)):
        vars(sys.modules["torch"]).update(strided="strided", Tensor=type(a))
        close(tuner.matmul(a, a), host @ host)
    assert gpu.library == ["torch.matmul"] * 3
    assert len(gpu.runs) == 1
    gpu.no_grad = True  # weights of a model that answers
    vars(sys.modules["torch"]).update(Tensor=TorchTensor)
    close(tuner.matmul(TorchTensor(host, requires_grad=True), TorchTensor(host)), host @ host)
    assert len(gpu.runs) == 2


def test_an_unknown_library_shares_its_memory_and_gets_its_own_kind_back(gpu: Log) -> None:
    champion_of("gemm", "nt", m=4, n=6, k=5)
    a, b = Shared(on_gpu(normal(4, 5))), Shared(stored(normal(5, 6), "t"))
    got = tuner.matmul(a, b)
    assert isinstance(got, Shared)
    close(got, a.host @ b.host)
    out = Shared(on_gpu(np.zeros((4, 6), np.float32)))
    assert tuner.matmul(a, b, out=out) is out
    close(out, a.host @ b.host)
    assert gpu.runs == ["gemm 4 x 6 x 5 float32 nt"] * 2
    assert tuner.explain(a, b).use == "kernel"


def test_libraries_and_devices_do_not_mix() -> None:
    host, other = CupyArray(on_gpu(normal(4, 4))), CupyArray(on_gpu(normal(4, 4)), device=1)
    with pytest.raises(TypeError, match="one library, got a of CuPy, b of CuPy, out of NumPy"):
        tuner.matmul(host, host, out=normal(4, 4))
    with pytest.raises(ValueError, match="one device, got cuda:0 and cuda:1"):
        tuner.matmul(host, other)


def test_vectors_transposes_and_arrays_that_begin_in_between(gpu: Log) -> None:
    champion_of("gemv", "t", m=7, n=5)
    champion_of("transpose", m=7, n=5)
    champion_of("gemm", "nn", m=4, n=4, k=4)
    a, x, dense = stored(normal(7, 5), "t"), on_gpu(normal(5)), on_gpu(normal(7, 5))
    close(tuner.gemv(CupyArray(a), CupyArray(x)), a @ x)
    close(tuner.matmul(CupyArray(x), CupyArray(a.T)), a @ x)
    close(tuner.transpose(CupyArray(dense)), dense.T)
    square, odd = CupyArray(on_gpu(normal(4, 4))), CupyArray(on_gpu(normal(4, 4), beyond=4))
    for left in (square, odd):
        close(tuner.matmul(left, square), left.host @ square.host)
    assert "address" in tuner.explain(odd, square).copies[0]
    assert [run.split()[0] for run in gpu.runs] == ["gemv", "gemv", "transpose", "gemm", "gemm"]


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
def test_leading_dims_are_rows(kind: Any, gpu: Log) -> None:
    champion_of("gemm", "nt", m=6, n=4, k=5)
    champion_of("gemv", "n", m=6, n=5)
    a, weight = kind(on_gpu(normal(2, 3, 5))), kind(stored(normal(5, 4), "t"))
    out = kind(aligned((2, 3, 4), np.float32))
    for got in (tuner.matmul(a, weight), tuner.matmul(a, weight, out=out), tuner.matmul(a, weight, out=out)):
        assert type(got) is kind
        close(got, a.host @ weight.host)
    vector = kind(on_gpu(normal(5)))
    close(tuner.matmul(a, vector), a.host @ vector.host)
    assert gpu.runs == ["gemm 6 x 4 x 5 float32 nt"] * 3 + ["gemv 6 x 5 float32 n"]
    told = tuner.explain(a, weight)
    assert (told.use, told.memory["a"], told.copies) == ("kernel", "a as one of 6 x 5 as it lies", ())


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
def test_stacks_are_one_problem_and_the_library_repeats_what_is_shorter(kind: Any, gpu: Log) -> None:
    champion_of("bmm", "tn", batch=6, m=4, n=8, k=3)
    a, b = kind(on_gpu(normal(2, 3, 3, 4)).swapaxes(2, 3)), kind(on_gpu(normal(2, 3, 3, 8)))
    out = kind(aligned((2, 3, 4, 8), np.float32))
    for got in (tuner.matmul(a, b), tuner.matmul(a, b, out=out)):
        close(got, a.host @ b.host)
    assert gpu.runs == ["bmm 6 x 4 x 8 x 3 float32 tn"] * 2
    assert tuner.explain(a, b).memory["a"] == "the transpose of a as one of 6 x 4 x 3 as it lies"
    gaps, shorter = kind(on_gpu(normal(2, 3, 6, 4))[:, :, ::2].swapaxes(2, 3)), kind(on_gpu(normal(3, 4, 3)))
    for left in (gaps, shorter):
        close(tuner.matmul(left, b), left.host @ b.host)
    assert "leave gaps" in tuner.explain(gaps, b).copies[0]
    assert "two stacks of one shape" in tuner.explain(shorter, b).why
    assert (len(gpu.runs), len(gpu.library)) == (3, 1)


EMULATED = {"WIDTH": 64, "STAGES": 8, "CLUSTER": 1, "CHUNK": 32, "PROMOTION": "compensated"}
SHARES = {"SPLIT_K": 2, "ADD": "after", "STORE": "registers", "BLOCKS": 0}


@pytest.mark.parametrize(("kind", "time_s", "kernel", "config", "call"), [
    (TorchTensor, 1e-5, "emulated", EMULATED, "3 launches, takes 30 us"),
    (TorchTensor, 1e-3, "emulated", EMULATED, ""), (CupyArray, 1e-5, "emulated", EMULATED, ""),
    (TorchTensor, 1e-5, "wgmma_tma", {}, ""),
    (TorchTensor, 1e-5, "wgmma_tma", SHARES, "2 launches, takes 24 us"),
    (TorchTensor, 1e-5, "cublaslt", {"PROPOSAL": 1}, ""),
])  # fmt: skip
def test_several_launches_run_where_the_device_does_not_wait_for_them(
    kind: Any, time_s: float, kernel: str, config: dict[str, Any], call: str, gpu: Log
) -> None:
    precision, dtype = ("emulated", "float32") if kernel == "emulated" else ("", "float16")
    given = {"layout": "nn", "kernel": kernel, "device": H200, "precision": precision, "config": config}
    crowned("gemm", {"m": 256, "n": 128, "k": 256}, dtype, time_s=time_s, **given)
    a, b = (kind(on_gpu(normal(256, n).astype(dtype))) for n in (256, 128))
    told = tuner.explain(a, b, precision=precision)
    assert (told.use != "kernel", call in told.why) == (bool(call), True)
    for gpu.capturing in (False, True, False):  # launches of a CUDA graph are queued without the host
        tuner.matmul(a, b, precision=precision)
    assert (len(gpu.runs), len(gpu.library)) == ((1, 2) if call else (3, 0))


@pytest.mark.parametrize(("time_s", "other_s", "speedup", "captured"), [
    (5e-6, 5.2e-6, 1.05, "cublaslt"), (5e-6, 5.2e-6, 1.0, "torch.matmul"),
    (5e-6, 6e-6, 1.05, ""), (5e-5, 5.2e-5, 1.05, ""),
])  # fmt: skip
def test_a_finalist_of_one_launch_is_called_in_place_of_an_algorithm_of_the_library(
    time_s: float, other_s: float, speedup: float, captured: str, gpu: Log
) -> None:
    given = {"layout": "nn", "kernel": "cublaslt", "device": H200, "time_s": time_s, "speedup": speedup}
    given |= {"config": {"PROPOSAL": 1}, "others": {"wgmma_tma": other_s}}
    crowned("gemm", {"m": 256, "n": 128, "k": 256}, "float16", **given)
    a, b = (TorchTensor(on_gpu(normal(256, n).astype("float16"))) for n in (256, 128))
    told = tuner.explain(a, b).why
    assert ("a kernel's eager call costs less" in told or "this is none" in told) == bool(captured)
    for gpu.capturing in (False, True, False):
        tuner.matmul(a, b)
    assert (len(gpu.loaded), len(gpu.library)) == (
        {"": 1, "cublaslt": 2, "torch.matmul": 1}[captured],
        int(captured == "torch.matmul"),
    )


def test_a_kernel_for_graphs_alone_is_captured_at_its_first_call(gpu: Log) -> None:
    given = {"layout": "nn", "kernel": "wgmma_tma", "device": H200, "config": SHARES, "time_s": 1e-5}
    crowned("gemm", {"m": 256, "n": 128, "k": 256}, "float16", **given)
    a, b = (TorchTensor(on_gpu(normal(256, n).astype("float16"))) for n in (256, 128))
    gpu.capturing = True
    tuner.matmul(a, b)
    assert (len(gpu.runs), gpu.library, gpu.handles) == (1, [], [])


@pytest.mark.parametrize(("kind", "time_s", "speedup", "direct", "by_kernel"), [
    (TorchTensor, 1.2e-5, 0.95, 2, True), (TorchTensor, 1.6e-5, 1.01, 2, True),
    (TorchTensor, 1.6e-5, 0.95, 0, False), (TorchTensor, 5e-5, 1.01, 0, False),
    # The library's own first choice, called without PyTorch.
    (TorchTensor, 5e-6, 0.8, 2, False),
    (CupyArray, 5e-6, 0.95, 0, False), (CupyArray, 5e-6, 0.8, 0, False),
])  # fmt: skip
def test_what_is_hardly_slower_runs_where_the_device_waits_for_calls_of_the_library(
    kind: Any, time_s: float, speedup: float, direct: int, by_kernel: bool, gpu: Log
) -> None:
    given = {"layout": "nn", "kernel": "wgmma_tma", "device": H200, "time_s": time_s, "speedup": speedup}
    crowned("gemm", {"m": 256, "n": 128, "k": 256}, "float16", **given)
    a, b = (kind(on_gpu(normal(256, n).astype("float16"))) for n in (256, 128))
    for gpu.capturing in (False, True, False):
        tuner.matmul(a, b)
    assert (len(gpu.runs), len(gpu.library)) == (direct, 3 - direct)
    assert (tuner.explain(a, b).use == "kernel") == by_kernel
    tuner.matmul(a, b, bits="library")
    assert (len(gpu.runs), len(gpu.library)) == (direct, 4 - direct)


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
@pytest.mark.parametrize("speedup", [2.0, 0.5])
def test_an_out_may_overlap_an_operand(kind: Any, speedup: float, gpu: Log) -> None:
    champion_of("gemm", "nn", speedup=speedup, m=4, n=4, k=4)
    square, stack = on_gpu(normal(4, 4)), on_gpu(normal(2, 4, 4))
    for first, last in ((0, 4), (1, 5)):  # the operand itself, and its rows one further
        for a, b in ((square, None), (None, square), (stack, square), (stack, stack[:1]), (square, stack)):
            whole = on_gpu(normal(2, 5, 4) if a is stack or b is stack else normal(5, 4))
            view, out = whole[..., :4, :], whole[..., first:last, :]
            left, right = view if a is None or a is stack else a, view if b is None or b is stack else b
            wanted = left @ right
            tuner.matmul(kind(left), kind(right), out=kind(out))
            np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
    assert bool(gpu.runs) == (speedup > 1)


def test_views_with_gaps_reach_the_library_as_they_are_and_empty_arrays_do(gpu: Log) -> None:
    for layout in ("nt", "tt"):
        crowned("gemm", {"m": 4, "n": 4, "k": 4}, layout=layout, kernel="naive", device=H200, time_s=1e-9)
    rows, columns = TorchTensor(on_gpu(normal(4, 9))[:, :4]), TorchTensor(on_gpu(normal(4, 4)).T)
    read: list[int] = []
    plain = sys.modules["torch"].matmul
    sys.modules["torch"].matmul = lambda a, b, out=None: read.append(a.data_ptr()) or plain(a, b)
    for view in (rows, rows.T):
        close(tuner.matmul(view, columns), view.host @ columns.host)
        assert read.pop() == view.data_ptr()
    told = tuner.explain(rows, columns)
    assert told.use == "cuBLAS"
    assert (
        "a copy of a (strides (36, 4) leave gaps, kernels take dense arrays) is taken to cost more" in told.why
    )
    close(tuner.matmul(TorchTensor(aligned((3, 0), "f")), TorchTensor(aligned((0, 2), "f"))), np.zeros((3, 2)))
    assert gpu.runs == []
