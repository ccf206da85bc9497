"""``multivector``: ways through the wide operand, dtypes, blocks that stay, shares of k, equal sums."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import compile_for_cpu
from products import LAYOUTS, gemm, kernel_of
from sampling import is_right
from test_cuda_kernels import ORDERS, assert_right, assert_same_in_every_order

from tuner.declare.kernel import render
from tuner.declare.space import Config

KERNEL = kernel_of("multivector")


def small(**chosen: object) -> Config:
    """A small config that is right for any shape."""
    values = {
        "THIN": "m", "TT": 2, "LINES": 2, "PACKS": 1, "VECTOR": 1, "LANES": 32, "WARPS_W": 1, "WARPS_K": 2,
        "BK": 128, "AHEAD": 1, "BLOCKS": 0, "BLOCKS_PER_SM": 1,
    }  # fmt: skip
    return Config(values | chosen)


def across(thin: str, side: int, wide: int, k: int) -> tuple[int, int, int]:
    """The shape whose thin side is m or n."""
    return (side, wide, k) if thin == "m" else (wide, side, k)


def lies_along_k(thin: str, layout: str) -> bool:
    """Whether neighbours of the wide operand lie along k."""
    return layout[1] == "t" if thin == "m" else layout[0] == "n"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("blocks", "ahead"), [(0, 1), (6, 2)])
def test_every_thin_side_and_depth(layout: str, blocks: int, ahead: int, folder: Path) -> None:
    """One program for each line: shares of k that are empty but for one, whole, and one short of it."""
    for number, (side, depth) in enumerate(itertools.product((1, 2, 5), (1, 127, 128, 300))):
        problem = gemm(side, (67, 33, 1, 100)[number % 4], depth, layout)
        assert_right(KERNEL, problem, small(BLOCKS=blocks, AHEAD=ahead), folder, ORDERS[number % 3])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "chosen"), [
    ("bfloat16", {"AHEAD": 2}), ("float16", {"TT": 8, "LINES": 4, "BK": 256, "BLOCKS": 6}),
])  # fmt: skip
def test_16_bits_in_every_alignment(layout: str, dtype: str, chosen: dict[str, int], folder: Path) -> None:
    """Pieces of 1 to 8 elements; the thin operand is copied 16 bytes at a time, or one by one; shares of k.

    It is copied at once along k where k is divisible by 8, and across k where its side is TT besides.
    """
    tt = chosen.get("TT", 2)
    shapes = ((8, (tt, 72, 520)), (8, (tt - 1, 264, 264)), (2, (tt + 1, 66, 258)), (1, (tt, 67, 8)))
    for vector, shape in shapes:
        for thin in ("m", "n"):
            config = small(THIN=thin, VECTOR=vector, **chosen)
            step = config.WARPS_K * 32 * vector * config.AHEAD if lies_along_k(thin, layout) else 1
            config = Config({**config, "BK": max(config.BK, step)})
            problem = gemm(*across(thin, *shape), layout, dtype)
            assert is_right(KERNEL, problem, config)
            assert_right(KERNEL, problem, config, folder, "random")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "tt", "thin"), [("float16", 1, "m"), ("bfloat16", 4, "n"), ("float16", 8, "n")]
)
def test_lanes_of_16_bits_beside_each_other(thin: str, layout: str, dtype: str, tt: int, folder: Path) -> None:
    """As starts are: 8 lanes along a line, or lines along k; the thin operand's share is as declared."""
    along = {"LANES": 32, "BK": 1024, "BLOCKS": 6}
    chosen = along if lies_along_k(thin, layout) else {"LANES": 8, "BK": 256}
    config = small(THIN=thin, TT=tt, VECTOR=8, LINES=4, AHEAD=2, **chosen)
    for wide, k in ((200, 1032), (8, 2048)):
        problem = gemm(*across(thin, tt, wide, k), layout, dtype)
        assert is_right(KERNEL, problem, config)
        assert_right(KERNEL, problem, config, folder, "backward")


def test_elements_of_16_bits_are_summed_in_float32(folder: Path) -> None:
    """Sums of warps and of shares are not rounded: 1 + 1/512 + 1/512 in bfloat16 would stay 1."""
    problem = gemm(1, 8, 512, "nt", "bfloat16")
    config = small(TT=1, VECTOR=8, LINES=1, WARPS_K=1, BK=256, BLOCKS=0)
    a, b = np.zeros((1, 512), "bfloat16"), np.ones((8, 512), "bfloat16")
    a[0, [0, 255, 256, 511]] = 1, 2.0**-9, 2.0**-9, 2.0**-8
    rendered = render(KERNEL, problem, config)
    assert rendered.launch.grid == (16,)
    got = compile_for_cpu(rendered, folder).run(problem, rendered.launch, {"a": a, "b": b})["c"]
    np.testing.assert_array_equal(got.astype("float32"), np.full((1, 8), 1 + 2.0**-7, "float32"))


@pytest.mark.parametrize(("dtype", "layout", "epilogue"), [
    ("float32", "nn", "alpha+beta+bias-col+gelu+residual"), ("float32", "tt", "bias-row+silu"),
    ("float16", "tn", "alpha+beta+bias-row+gelu+residual"), ("bfloat16", "nt", "beta+bias-col+gelu-tanh"),
])  # fmt: skip
@pytest.mark.parametrize("chosen", [{"BK": 512}, {"BLOCKS": 6}], ids=str)
def test_an_epilogue_is_applied_once_to_the_whole_sum(
    dtype: str, layout: str, epilogue: str, chosen: dict[str, object], folder: Path
) -> None:
    """Where a block has all of k, and where the last of three adds up; C thin in rows and in columns."""
    for thin, shape in (("m", (3, 70, 300)), ("n", (70, 3, 300))):
        assert_right(
            KERNEL, gemm(*shape, layout, dtype, "", epilogue), small(THIN=thin, **chosen), folder, "random"
        )


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("blocks", [0, 6])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sums_do_not_depend_on_who_comes_first(layout: str, blocks: int, dtype: str, folder: Path) -> None:
    problem, config = gemm(5, 267, 301, layout, dtype), small(TT=8, BLOCKS=blocks)
    assert KERNEL.launched(problem, config).workspace
    assert_same_in_every_order(KERNEL, problem, config, folder)
