"""Products of rows in groups on a real GPU: every kernel and the library, in all layouts and dtypes.

Alone: ``pytest tests/gpu/test_grouped_gpu.py``; about three minutes.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
from fixtures.callable_records import crowned
from fixtures.gpu_starts import at_random, sized, starts, wrong_library, wrong_starts

import tuner
from tuner import FLOAT8_DTYPES, SCALES
from tuner.declare.catalogue import builtin, computed_dtypes
from tuner.declare.kernel import Kernel
from tuner.devices.protocol import Device

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.usefixtures("own_records")
GROUPED = builtin().operation("grouped")
KERNELS = builtin().of("grouped", "cuda")
#: Operation -> its dtypes and layouts.
KINDS = {
    each.name: [(dtype, layout) for dtype in each.dtypes for layout in each.layouts_of.get(dtype, each.layouts)]
    for each in (GROUPED, builtin().operation("bmm"))
}
#: Products of 8 bits in groups and in stacks.
EIGHT_BITS = [
    ("grouped", (4096, 1024, 512, 8)), ("grouped", (777, 208, 528, 9)), ("grouped", (40, 256, 2048, 64)),
    ("bmm", (40, 130, 208, 528)), ("bmm", (300, 64, 128, 128)),
]  # fmt: skip
#: Rows, n, k, groups: experts of a large layer, odd, fewer rows than groups, one group, many.
SIZES = [(4096, 1024, 512, 8), (777, 131, 57, 9), (40, 256, 2048, 64), (300, 96, 64, 1), (3000, 64, 136, 400)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("layout", GROUPED.layouts)
def test_starts_and_configs_at_random_are_right(
    kernel: Kernel, sizes: tuple[int, ...], layout: str, device: Device
) -> None:
    known = computed_dtypes(kernel, GROUPED)
    dtypes = [kind for kind, own in KINDS["grouped"] if own == layout and kind in known]
    problem = sized(GROUPED, sizes, dtypes[sum(map(ord, layout)) % len(dtypes)], layout)
    found = [*starts(kernel, problem, device), *at_random(kernel, problem, device, (sizes, layout))]
    assert wrong_starts(problem, found, device) == []


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("name", "sizes"), EIGHT_BITS, ids=str)
def test_products_of_8_bits_are_right_with_scales(
    name: str, sizes: tuple[int, ...], scale: str, device: Device
) -> None:
    (kernel,) = builtin().of(name, "cuda", ("wgmma",))
    for result in ("", "+to-float32"):
        problem = sized(builtin().operation(name), sizes, FLOAT8_DTYPES[0], epilogue=scale + result)
        assert wrong_starts(problem, starts(kernel, problem, device), device) == []


@pytest.mark.parametrize(
    ("name", "dtype", "layout", "epilogue"),
    [
        (name, *kind, epilogue)
        for name, kinds in KINDS.items()
        for kind in kinds
        for epilogue in ["", *(SCALES if kind is kinds[-1] else ())]
    ],
)
def test_the_library_is_right(name: str, dtype: str, layout: str, epilogue: str, device: Device) -> None:
    sizes = {"grouped": (333, 48, 144, 12), "bmm": (33, 40, 32, 144)}[name]
    problem = replace(sized(builtin().operation(name), sizes, dtype, layout), epilogue=epilogue)
    assert wrong_library(problem, device) == ""


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_calls_take_offsets_that_lie_on_the_device(
    kernel: Kernel, library: str, ran: list[str], device: Device
) -> None:
    module, dims = pytest.importorskip(library), {"rows": 50, "n": 16, "k": 24, "groups": 4}
    problem = GROUPED.problem(dims, "float16", "nn-uniform")
    config = next(config for config in kernel.first_configs() if kernel.allows(problem, device.info, config))
    crowned("grouped", dims, "float16", "nn-uniform", dict(config), 2.0, kernel.name, device.info)
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype("float16") for shape in ((50, 24), (4, 24, 16)))
    ends = np.array([7, 7, 31, 50], np.int32)
    to_device = module.asarray if library == "cupy" else functools.partial(module.asarray, device="cuda")
    got = tuner.grouped(*map(to_device, (a, b, ends)))
    wide, matrices = a.astype("float32"), b.astype("float32")
    expected = np.concatenate([wide[:7] @ matrices[0], wide[7:31] @ matrices[2], wide[31:] @ matrices[3]])
    np.testing.assert_allclose(cupy.asnumpy(cupy.asarray(got)), expected, rtol=1e-2, atol=2e-2)
    assert ran == [kernel.name]
