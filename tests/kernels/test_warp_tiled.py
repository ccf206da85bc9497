"""What warp_tiled promises beyond a right result: padded rows, the same sums whichever block comes last."""

from pathlib import Path

import pytest
from products import LAYOUTS, gemm, kernel_of
from sampling import is_right
from test_cuda_kernels import ORDERS, assert_right, assert_same_in_every_order

from tuner.declare.space import Config

KERNEL = kernel_of("warp_tiled")
SMALL = {"BM": 32, "BN": 64, "BK": 8, "TM": 4, "TN": 8, "LANES_M": 4, "STAGES": 3}
DEFAULT = KERNEL.default_config()


def config(**changes: int | str) -> Config:
    return Config({**DEFAULT, **SMALL, **changes})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("turn", ["copy", "relay"])
def test_rows_of_any_length_can_be_padded_for_wide_copies(layout: str, turn: str, folder: Path) -> None:
    chosen = config(PITCH=4, TURN=turn)
    for seed, sizes in enumerate(((37, 70, 21), (1, 3, 5), (33, 64, 16))):
        problem = gemm(*sizes, layout)
        assert_right(KERNEL, problem, chosen, folder, ORDERS[seed])


def test_what_would_be_wrong_is_refused() -> None:
    few = gemm(37, 60, 28)  # two tiles of C, each of four tiles of k
    assert [is_right(KERNEL, few, config(BLOCKS=blocks)) for blocks in (8, 10)] == [True, False]
    odd = gemm(37, 70, 21)
    assert [is_right(KERNEL, odd, config(PITCH=pitch)) for pitch in (4, 1)] == [True, False], "rows are aligned"


@pytest.mark.parametrize("sharing", [{"SPLIT_K": 2}, {"SPLIT_K": 64}, {"BLOCKS": 4}, {"BLOCKS": 10}], ids=str)
def test_blocks_that_share_k_add_up_in_the_same_order(sharing: dict[str, int], folder: Path) -> None:
    problem = gemm(33, 68, 8 * sharing.get("SPLIT_K", 0) + 92)
    assert_same_in_every_order(KERNEL, problem, config(**sharing), folder)
