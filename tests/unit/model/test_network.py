"""Networks learn what there is to be learned, the same each time; as they are kept they say what they said."""

from typing import Any

import numpy as np
import pytest

from tuner.model import network as module
from tuner.model.network import FEW, Training, train, trained

HOW = Training((32, 16), 2, 40, least=0)


@pytest.mark.parametrize("count", [0, 1, 50, FEW, FEW + 1])
def test_rows_say_the_same_whatever_pieces_they_are_cut_into(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, made = sample(5, count)[0], train(*sample(5, 200), Training((8,), 2, 3), 0)
    whole = made.predict(rows)
    assert whole.shape == (count,)
    monkeypatch.setattr(module, "SHARED", 7 * made.sizes[0] * made.sizes[1])  # pieces of seven rows
    np.testing.assert_allclose(made.predict(rows), whole, rtol=1e-4, atol=1e-5)


def sample(seed: int, count: int = 3000) -> tuple[Any, Any, Any]:
    """Rows of a kind and three features, a smooth function of them with a step in it, and weights."""
    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.integers(0, 2, count), rng.uniform(-2, 2, (count, 3))])
    target = np.sin(2 * rows[:, 1]) * rows[:, 2] + 0.5 * (rows[:, 3] > 0.3) + rows[:, 0]
    return rows, target, rng.uniform(0.5, 1, count)


def test_networks_learn_a_function_of_the_features_from_rows_that_count() -> None:
    rows, target, weight = sample(0)
    counts = np.arange(len(rows)) % 4 > 0
    network = train(rows, np.where(counts, target, 50.0), weight * counts + 1e-9, HOW, 0)
    rows, target, _ = sample(1)
    assert (network.predict(rows) - target).std() < 0.2 * target.std()


def test_the_same_seed_trains_the_same_networks_also_where_the_gpu_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(gpu: Any, function: Any, *arguments: Any) -> Any:
        raise RuntimeError(f"no such device as {gpu}")

    monkeypatch.setattr("tuner.devices.cuda.process.on_gpu", failing)
    few, how = sample(2, 200), Training((8,), 2, 3)
    with pytest.warns(UserWarning, match="trained on the CPU, as the GPU failed: no such device as .*GPU-3"):
        found = trained(*few, how, 5, {"CUDA_VISIBLE_DEVICES": "GPU-3"})
    np.testing.assert_array_equal(found.weights, train(*few, how, 5).weights)
    assert (found.weights != train(*few, how, 6).weights).any()
