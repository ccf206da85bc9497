"""Trees as arrays say what walking them says."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InputError
from tuner.model.forest import MOST_LEAVES, Forest, joined

FEATURES = 5


def grown(rng: Any, depth: int) -> Any:
    """A random tree: a leaf's value, or feature, threshold, left and right."""
    if depth == 0 or rng.random() < 0.2:
        return float(rng.standard_normal())
    return int(rng.integers(FEATURES)), float(rng.integers(-3, 4)), grown(rng, depth - 1), grown(rng, depth - 1)


def walked(tree: Any, row: Any) -> float:
    while not isinstance(tree, float):
        feature, threshold, left, right = tree
        tree = left if row[feature] <= threshold else right
    return tree


def as_arrays(trees: list[Any]) -> Forest:
    leaves, asked = np.zeros((len(trees), MOST_LEAVES)), []

    def lay_out(number: int, tree: Any, first: int) -> int:
        if isinstance(tree, float):
            leaves[number, first] = tree
            return first + 1
        feature, threshold, left, right = tree
        middle = lay_out(number, left, first)
        asked.append((number, feature, threshold, first, middle))
        return lay_out(number, right, middle)

    for number, tree in enumerate(trees):
        lay_out(number, tree, 0)
    thresholds = [sorted({each[2] for each in asked if each[1] == feature}) for feature in range(FEATURES)]
    nodes = [(each[0], each[1], thresholds[each[1]].index(each[2]), *each[3:]) for each in asked]
    starts = np.cumsum([0, *map(len, thresholds)]).astype(np.int32)
    every = [value for some in thresholds for value in some]
    return Forest(np.array(nodes, np.int32).reshape(-1, 5), np.array(every), starts, leaves)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 6))
def test_a_forest_says_what_walking_its_trees_says(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    trees = [grown(rng, 5) for _ in range(count)]
    forest, rows = as_arrays(trees), rng.integers(-4, 5, (9, FEATURES)).astype(float)
    expected = [sum(walked(tree, row) for tree in trees) for row in rows]
    np.testing.assert_allclose(forest.predict(rows), expected, atol=1e-12)
    one = forest.bits_of_one(0, rows[0, :2]) & forest.bits_of_one(2, rows[0, 2:])
    np.testing.assert_allclose(forest.sums(one), expected[:1], atol=1e-12)
    first = sum(walked(tree, rows[0]) for tree in trees[:2])
    assert forest.first(2).predict(rows[:1])[0] == pytest.approx(first)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), counts=st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_joined_forests_say_the_mean_however_many_trees_each_has(seed: int, counts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    some = [as_arrays([grown(rng, 4) for _ in range(count)]) for count in counts]
    rows = rng.integers(-4, 5, (5, FEATURES)).astype(float)
    expected = np.mean([each.predict(rows) for each in some], axis=0)
    np.testing.assert_allclose(joined(some).predict(rows), expected, atol=1e-12)


@pytest.mark.parametrize(("place", "value"), [(0, 7), (1, FEATURES), (2, 9), (4, 40), (3, -1)])
def test_a_forest_whose_nodes_point_nowhere_is_refused(place: int, value: int) -> None:
    forest = as_arrays([(0, 1.0, 0.5, 0.25)])
    nodes = forest.nodes.copy()
    nodes[0, place] = value
    with pytest.raises(InputError, match="a forest's nodes point into its trees"):
        Forest(nodes, forest.thresholds, forest.starts, forest.leaves)
