"""Products of two stacks on a real GPU: every kernel in all layouts and dtypes, and for tensors.

`test_grouped_gpu` has cuBLAS and products of 8 bits.
Alone: ``pytest tests/gpu/test_bmm_gpu.py``; about two minutes.
"""

import functools

import pytest
from fixtures.callable_records import crowned
from fixtures.gpu_starts import at_random, sized, starts, wrong_starts

import tuner
from tuner.declare.catalogue import builtin, computed_dtypes
from tuner.devices.protocol import Device
from tuner.python.decisions import device_info

pytest.importorskip("cupy")
pytestmark = pytest.mark.usefixtures("own_records")
BMM = builtin().operation("bmm")
KERNELS = builtin().of("bmm", "cuda")
KINDS = [(dtype, layout) for dtype in BMM.dtypes for layout in BMM.layouts_of.get(dtype, BMM.layouts)]
#: Batch, m, n, k: small and many, odd, one matrix that fills no tile, attention's.
SIZES = [
    (5000, 32, 32, 32), (3001, 8, 8, 8), (777, 31, 17, 29), (1, 100, 200, 160), (16, 128, 64, 4096),
    (70_000, 4, 4, 4), (12, 1024, 96, 192), (7, 301, 403, 259),
]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("layout", BMM.layouts)
def test_starts_and_configs_at_random_are_right(sizes: tuple[int, ...], layout: str, device: Device) -> None:
    for kernel in KERNELS:
        dtypes = [kind for kind, own in KINDS if own == layout and kind in computed_dtypes(kernel, BMM)]
        precision = kernel.scope.precisions[0]
        problem = sized(BMM, sizes, dtypes[sum(sizes) % len(dtypes)], layout, precision)
        found = [*starts(kernel, problem, device), *at_random(kernel, problem, device, (sizes, layout))]
        assert wrong_starts(problem, found, device) == []


def test_emulated_stacks_keep_their_promise_and_fall_back_as_a_whole(ran: list[str]) -> None:
    cupy, shape = pytest.importorskip("cupy"), {"batch": 9, "m": 200, "n": 328, "k": 520}
    (kernel,) = builtin().of("bmm", "cuda", ("emulated",), "emulated")
    info, problem = device_info("cuda:0"), BMM.problem(shape, precision="emulated")
    config = next(config for config in kernel.first_configs() if kernel.legal(problem, info, config))
    crowned("bmm", shape, "", "nn", dict(config), 2.0, "emulated", info, precision="emulated")
    rng, product = cupy.random.default_rng(3), functools.partial(tuner.matmul, precision="emulated")
    a, b = (rng.standard_normal(of, dtype="float32") for of in ((9, 200, 520), (9, 520, 328)))
    exact, before = a.astype("float64") @ b.astype("float64"), tuner.fallbacks()
    assert float(cupy.linalg.norm(product(a, b) - exact) / cupy.linalg.norm(exact)) < 3e-7
    assert tuner.fallbacks() == before
    a[4, 7, 100] = cupy.inf
    got, exact = product(a, b), a.astype("float64") @ b.astype("float64")
    cupy.testing.assert_array_equal(cupy.isinf(got), cupy.isinf(exact))
    cupy.testing.assert_allclose(got[5:], exact[5:], rtol=1e-4, atol=1e-4)
    assert tuner.fallbacks() == before + 1
    assert ran == ["emulated"], "prepared once, for both calls"


def test_tensors_of_pytorch_are_multiplied_where_a_model_asks(ran: list[str]) -> None:
    torch = pytest.importorskip("torch")
    tuned = pytest.importorskip("tuner.torch")
    config = {"BM": 32, "BN": 32, "BK": 32, "TM": 4, "TN": 4, "MATRICES": 4, "VECTOR": 4}
    shape = {"batch": 600, "m": 32, "n": 32, "k": 32}
    crowned("bmm", shape, "float32", "nt", config, 2.0, "small_matrices", device_info("cuda:0"))
    q = torch.randn(6, 100, 32, 32, device="cuda")
    with tuned.use():
        got = q @ q.mT
    torch.testing.assert_close(got, torch.matmul(q.double(), q.double().mT).float(), rtol=1e-4, atol=1e-4)
    assert ran == ["small_matrices"]
    assert tuner.explain(q, q.mT).use == "kernel"
