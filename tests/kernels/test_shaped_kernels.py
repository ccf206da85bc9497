"""Kernels that are for some shapes only: offered there with something to start from, and nowhere else."""

from pathlib import Path

import pytest
from products import LAYOUTS, gemm, kernel_of
from sampling import MEANT_FOR, covering, is_right, space
from test_cuda_kernels import assert_right, assert_same_in_every_order

from tuner.declare.space import Config

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


@pytest.mark.parametrize(("name", "shape"), EVERY, ids=str)
def test_every_layout_of_a_shape_it_is_for_has_configs_and_mostly_a_start(name: str, shape: tuple) -> None:
    aligned = all(size % 4 == 0 or size in (1, 2) for size in shape)
    for layout in LAYOUTS:
        legal = space(kernel_of(name), gemm(*shape, layout))
        assert len(legal) > 100
        if aligned:
            assert any(config in legal for config in kernel_of(name).first_configs())


@pytest.mark.parametrize("name", SHAPES)
def test_it_is_not_offered_for_a_large_square(name: str) -> None:
    assert not len(space(kernel_of(name), gemm(4096, 4096, 4096)))


@pytest.mark.parametrize("split_k", [1, 4])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_sums_do_not_depend_on_who_comes_first(layout: str, split_k: int, folder: Path) -> None:
    kernel, problem = kernel_of("thin"), gemm(5, 67, 301, layout)
    config = Config(
        {
            "THIN": "m", "TT": 2, "TW": 2, "LANES_T": 2, "WARPS_T": 1, "WARPS_W": 1, "WARPS_K": 2, "BK": 8,
            "STAGES": 2, "SPLIT_K": split_k, "VECTOR_W": 1, "VECTOR_T": 1, "BLOCKS_PER_SM": 1,
            "TURN": "read", "ORDER": "rows",
        }
    )  # fmt: skip
    assert_same_in_every_order(kernel, problem, config, folder)


@pytest.mark.parametrize("name", ["shallow", "small"])
def test_a_kernel_for_small_k_goes_on_for_any(name: str, folder: Path) -> None:
    kernel, tall = kernel_of(name), gemm(44, 36, 1100)
    configs = covering(space(kernel, gemm(*MEANT_FOR[name].values())))
    config = next(config for config in configs if is_right(kernel, tall, config))
    assert_right(kernel, tall, config, folder, "random")
