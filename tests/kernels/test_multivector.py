"""``multivector``: ways through the wide operand, blocks that stay, shares of k, equal sums in every order."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import compile_for_cpu
from sampling import is_right
from test_cuda_kernels import assert_right, assert_same_in_every_order

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import render
from tuner.declare.problem import Problem
from tuner.declare.space import Config

CATALOGUE = builtin()
(KERNEL,) = CATALOGUE.of("gemm", "cuda", ("multivector",))
LAYOUTS = ("nn", "nt", "tn", "tt")


def gemm(shape: tuple[int, ...], layout: str = "nn") -> Problem:
    return CATALOGUE.operation("gemm").problem(dict(zip("mnk", shape, strict=True)), layout=layout)


def small(**chosen: object) -> Config:
    """A small config that is right for any shape."""
    values = {
        "THIN": "m", "TT": 2, "LINES": 2, "PACKS": 1, "VECTOR": 1, "LANES": 32, "WARPS_W": 1, "WARPS_K": 2,
        "BK": 128, "AHEAD": 1, "BLOCKS": 0, "BLOCKS_PER_SM": 1,
    }  # fmt: skip
    return Config(values | chosen)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("blocks", "ahead"), [(0, 1), (6, 2)])
def test_every_thin_side_and_depth(layout: str, blocks: int, ahead: int, folder: Path) -> None:
    """One program for each line: shares of k that are empty but for one, whole, and one short of it."""
    sides, depths = (1, 2, 3, 5), (1, 127, 128, 129, 300)
    for number, (side, depth) in enumerate(itertools.product(sides, depths)):
        problem = gemm((side, (67, 33, 1, 100)[number % 4], depth), layout)
        order = ("forward", "backward", "random")[number % 3]
        assert_right(KERNEL, problem, small(BLOCKS=blocks, AHEAD=ahead), folder, order)


@pytest.mark.parametrize(
    ("layout", "chosen"),
    [
        ("nn", {"TT": 8, "VECTOR": 4, "LANES": 8, "LINES": 4}),
        ("nn", {"TT": 1, "VECTOR": 1, "LANES": 8, "LINES": 8, "WARPS_W": 2, "PACKS": 2, "BK": 256}),
        ("tt", {"TT": 8, "VECTOR": 4, "LINES": 4, "BK": 256}),
        ("nt", {"TT": 8, "VECTOR": 2, "LINES": 1, "BK": 128, "BLOCKS": 6}),
        ("tn", {"TT": 4, "VECTOR": 2, "LANES": 16, "LINES": 1, "BLOCKS": 6}),
    ],
)
def test_lanes_and_pieces(layout: str, chosen: dict[str, object], folder: Path) -> None:
    for thin, shape in (("m", (7, 132, 260)), ("n", (132, 7, 260)), ("n", (36, 1, 12))):
        config = small(THIN=thin, **chosen)
        along_k = layout[1] == "t" if thin == "m" else layout[0] == "n"
        if along_k and config.LANES != 32:
            assert not is_right(KERNEL, gemm(shape, layout), config)
            continue
        if along_k and config.BK % (config.WARPS_K * 32 * config.VECTOR * config.PACKS):
            config = Config({**config, "BK": 512})
        assert is_right(KERNEL, gemm(shape, layout), config)
        assert_right(KERNEL, gemm(shape, layout), config, folder, "random")


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("blocks", [0, 6])
def test_sums_do_not_depend_on_who_comes_first(layout: str, blocks: int, folder: Path) -> None:
    problem, config = gemm((5, 267, 301), layout), small(TT=8, BLOCKS=blocks)
    rendered = render(KERNEL, problem, config)
    assert rendered.launch is not None
    assert rendered.launch.workspace is not None
    assert_same_in_every_order(KERNEL, problem, config, folder)


def test_a_block_with_more_tiles_than_threads(folder: Path) -> None:
    config = small(TT=1, LINES=1, WARPS_K=1, BK=32, BLOCKS=2)
    problem = gemm((1, 301, 40), "nt")
    launch = render(KERNEL, problem, config).launch
    assert launch is not None
    assert launch.grid == (2,)
    assert_right(KERNEL, problem, config, folder, "forward")


def test_chains_of_products_are_short(folder: Path) -> None:
    """Where neighbours lie along k and where they do not: error of a sum of 4,096 products, in float32."""
    for layout in ("nn", "nt"):
        problem = gemm((1, 64, 4096), layout)
        config = small(TT=1, LINES=4, WARPS_K=4, BK=4096)
        rendered = render(KERNEL, problem, config)
        assert rendered.launch is not None
        rng = np.random.default_rng(3)
        arrays = {each.name: rng.standard_normal(each.shape).astype(each.dtype) for each in problem.inputs}
        got = compile_for_cpu(rendered, folder).run(problem, rendered.launch, arrays)["c"]
        exact = problem.operation.reference(np, problem, arrays)
        error = np.sqrt(np.mean(np.square(got - exact)) / np.mean(np.square(exact)))
        assert error < 5e-7  # one chain of 4,096 has 1e-6
