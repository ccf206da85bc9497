"""Good configs that constraints tie to other shapes are changed as little as makes them legal."""

import numpy as np
from fixtures.lookup_records import BOARD
from fixtures.model_survey import GEMM, TIED, WIDE

from tuner.declare.space import Config
from tuner.model.evidence import ENOUGH, AdaptedConfigs, adapted

#: Wide loads are illegal here.
ODD = GEMM.problem({"m": 512, "n": 512, "k": 513}, "float32", "nn")
PLAIN = Config({**WIDE, "LOAD": "plain"})


def made(configs: list[Config], behind: list[float], legal: list[bool], points: bool = True) -> AdaptedConfigs:
    numbers = {"tied": np.arange(len(configs))} if points else {}
    about = {"tied": TIED}, [("tied", each) for each in configs], numbers
    return adapted(ODD, BOARD, about, np.array(behind), np.array(legal))


def test_the_legal_config_most_like_a_good_one_stands_in_for_it() -> None:
    found = made([WIDE], [0.0], [False])
    assert (list(found.configs), found.origins.tolist()) == ([("tied", PLAIN)], [0])


def test_what_is_legal_already_is_not_made_again() -> None:
    assert not made([WIDE, PLAIN], [0.0, 0.1], [False, True]).configs


def test_what_was_far_behind_or_unknown_near_by_is_left() -> None:
    better = Config({**PLAIN, "BM": 32})
    assert not made([WIDE, better], [0.5, 0.0], [False, True]).configs
    assert not made([WIDE, better], [np.inf, 0.0], [False, True]).configs
    assert not made([WIDE], [0.0], [False], points=False).configs


def test_a_kernel_of_which_enough_good_configs_are_legal_needs_none() -> None:
    others = [Config({**PLAIN, "BM": bm, "SPLIT": split}) for bm in (16, 32) for split in (1, 2, 4, 8)]
    assert len({*others, PLAIN}) == ENOUGH + 1
    legal = [False, *[True] * ENOUGH]
    assert not made([WIDE, *others], [0.0] * (1 + ENOUGH), legal).configs
    assert made([WIDE, *others[1:]], [0.0] * ENOUGH, legal[:-1]).configs
