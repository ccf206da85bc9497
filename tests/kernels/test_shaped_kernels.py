"""Kernels that are for some shapes only: offered there with something to start from, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from sampling import MEANT_FOR, covering, is_right, space
from test_cuda_kernels import assert_right, assert_same_in_every_order

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config

CATALOGUE = builtin()
KERNELS = {kernel.name: kernel for kernel in CATALOGUE.of("gemm", "cuda") if kernel.name in MEANT_FOR}
SHAPES = {
    "multivector": [
        *((thin, 8192, 8192) for thin in (1, 4)), *((8192, thin, 8192) for thin in (2, 8)), (3, 5000, 7000),
    ],
    "thin": [
        *((thin, 8192, 8192) for thin in (1, 4, 32)), *((8192, thin, 8192) for thin in (2, 8, 16)),
        (128, 4096, 4096), (4096, 100, 4096), (3, 5000, 7000),
    ],
    "shallow": [(8192, 8192, 16), (8192, 8192, 32), (8192, 8192, 64), (4096, 4096, 128), (3000, 5000, 10)],
    "small": [(64, 64, 64), (128, 128, 128), (256, 256, 256), (512, 512, 512), (100, 200, 300)],
}  # fmt: skip
EVERY = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]


def gemm(shape: tuple[int, ...], layout: str = "nn") -> Problem:
    return CATALOGUE.operation("gemm").problem(dict(zip("mnk", shape, strict=True)), layout=layout)


@pytest.mark.parametrize(("name", "shape"), EVERY, ids=str)
def test_every_layout_of_a_shape_it_is_for_has_configs_and_mostly_a_start(name: str, shape: tuple) -> None:
    aligned = all(size % 4 == 0 or size in (1, 2) for size in shape)
    for layout in ("nn", "nt", "tn", "tt"):
        legal = space(KERNELS[name], gemm(shape, layout))
        assert len(legal) > 100
        if aligned:
            assert any(config in legal for config in KERNELS[name].first_configs())


@pytest.mark.parametrize("name", MEANT_FOR)
def test_it_is_not_offered_for_a_large_square(name: str) -> None:
    assert not len(space(KERNELS[name], gemm((4096, 4096, 4096))))


def thin_config(**chosen: object) -> Config:
    """A small legal config of ``thin``."""
    values = {
        "THIN": "m", "TT": 2, "TW": 2, "LANES_T": 2, "WARPS_T": 1, "WARPS_W": 1, "WARPS_K": 2, "BK": 8,
        "STAGES": 2, "SPLIT_K": 4, "VECTOR_W": 1, "VECTOR_T": 1, "BLOCKS_PER_SM": 1,
        "TURN": "read", "ORDER": "rows",
    }  # fmt: skip
    return Config(values | chosen)


@pytest.mark.parametrize("split_k", [1, 4])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_sums_do_not_depend_on_who_comes_first(layout: str, split_k: int, folder: Path) -> None:
    kernel, problem = KERNELS["thin"], gemm((5, 67, 301), layout)
    assert_same_in_every_order(kernel, problem, thin_config(SPLIT_K=split_k), folder)


def test_a_kernel_for_a_thin_m_and_for_a_thin_n_is_right_for_the_other_too(folder: Path) -> None:
    for side in ("m", "n"):
        for shape in ((3, 70, 40), (70, 3, 40)):
            assert_right(KERNELS["thin"], gemm(shape), thin_config(THIN=side), folder, "forward")


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_blocks_that_stay_go_through_all_tiles(layout: str, folder: Path) -> None:
    kernel = KERNELS["shallow"]
    config = Config(
        {
            "TM": 4, "TN": 4, "LANES_M": 4, "WARPS_M": 1, "WARPS_N": 2, "BK": 8, "STAGES": 3, "BLOCKS": 6,
            "VECTOR_A": 1, "VECTOR_B": 1, "STREAM": 1, "BLOCKS_PER_SM": 2,
            "TURN": "read", "ORDER": "rows",
        }
    )  # fmt: skip
    for shape, order in (((130, 200, 19), "forward"), ((97, 260, 8), "backward"), ((64, 321, 33), "random")):
        assert_right(kernel, gemm(shape, layout), config, folder, order)


def test_a_kernel_for_small_k_goes_on_for_any(folder: Path) -> None:
    def first(kernel: Kernel, problem: Problem) -> Config:
        return next(config for config in covering(space(kernel, problem)) if is_right(kernel, tall, config))

    tall = gemm((44, 36, 1100))
    for name in ("shallow", "small"):
        kernel = KERNELS[name]
        config = first(kernel, gemm(tuple(MEANT_FOR[name].values())))
        assert_right(kernel, tall, config, folder, "random")
