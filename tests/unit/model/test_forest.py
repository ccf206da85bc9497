"""Trees as arrays say what walking them says."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.model.forest import LEAF_STEP, forest_of

FEATURES = 5


def grown(rng: Any, depth: int) -> dict[str, Any]:
    """A random tree as LightGBM tells it."""
    if depth == 0 or rng.random() < 0.2:
        return {"leaf_value": float(rng.integers(-900, 900)) * LEAF_STEP}
    return {
        "split_feature": int(rng.integers(FEATURES)), "threshold": float(rng.integers(-3, 4)),
        "left_child": grown(rng, depth - 1), "right_child": grown(rng, depth - 1),
    }  # fmt: skip


def walked(tree: dict[str, Any], row: Any) -> float:
    while "leaf_value" not in tree:
        tree = tree["left_child" if row[tree["split_feature"]] <= tree["threshold"] else "right_child"]
    value: float = tree["leaf_value"]
    return value


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 6))
def test_a_forest_says_what_walking_its_trees_says(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    trees = [grown(rng, 5) for _ in range(count)]
    forest, rows = forest_of(trees, FEATURES), rng.integers(-4, 5, (9, FEATURES)).astype(float)
    expected = [sum(walked(tree, row) for tree in trees) for row in rows]
    np.testing.assert_allclose(forest.predict(rows), expected, atol=1e-12)
    parts = forest.bits(0, rows.T[:2]) & forest.bits(2, rows.T[2:])
    np.testing.assert_allclose(forest.sums(parts), expected, atol=1e-12)
    np.testing.assert_allclose(
        forest_of(trees, FEATURES, 0.5).predict(rows), np.array(expected) / 2, atol=1e-12
    )
