"""Networks learn what there is to be learned, the same each time, and on the CPU where the GPU fails."""

from typing import Any

import numpy as np
import pytest

from tuner.model import training
from tuner.model.training import Training, share_of, train, trained

HOW = Training((32, 16), 2, 40, least=0)


def sample(seed: int, count: int = 3000) -> tuple[Any, Any, Any]:
    """Rows of a kind and three features, a smooth function of them with a step in it, and weights."""
    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.integers(0, 2, count), rng.uniform(-2, 2, (count, 3))])
    target = np.sin(2 * rows[:, 1]) * rows[:, 2] + 0.5 * (rows[:, 3] > 0.3) + rows[:, 0]
    return rows, target, rng.uniform(0.5, 1, count)


def test_networks_learn_a_function_of_the_features() -> None:
    network = train(*sample(0), HOW, 0)
    rows, target, _ = sample(1)
    error = network.predict(rows) - target
    assert error.std() < 0.15 * target.std()


def test_the_same_seed_trains_the_same_networks() -> None:
    few = sample(2, 200)
    one, same, other = (train(*few, Training((8,), 2, 3), seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.weights, same.weights)
    assert (one.weights != other.weights).any()


def test_rows_of_no_weight_do_not_count() -> None:
    rows, target, weight = sample(3, 2000)
    wrong = np.where(np.arange(2000) % 2, target, 50.0)
    network = train(rows, wrong, weight * (np.arange(2000) % 2) + 1e-9, HOW, 0)
    assert np.median(abs(network.predict(rows) - target)) < 0.3


def test_where_the_gpu_fails_the_cpu_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(gpu: Any, function: Any, *arguments: Any) -> Any:
        raise RuntimeError(f"no such device as {gpu}")

    monkeypatch.setattr(training, "on_gpu", failing)
    few, how = sample(5, 100), Training((8,), 1, 1, least=0)
    with pytest.warns(UserWarning, match="trained on the CPU, as the GPU failed: no such device as .*GPU-3"):
        found = trained(*few, how, 0, {"CUDA_VISIBLE_DEVICES": "GPU-3"})
    np.testing.assert_array_equal(found.weights, train(*few, how, 0).weights)


def test_the_share_is_what_errs_least() -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(0, 0.3, 4000)
    trees, networks = target + rng.normal(0, 0.1, 4000), target + rng.normal(0, 0.05, 4000)
    share = share_of(trees, networks, target, np.ones(4000))
    assert share == pytest.approx(0.8, abs=0.03)  # variances 1 to 4
    assert share_of(trees, trees, target, np.ones(4000)) == 0
    assert share_of(trees, target, target, np.ones(4000)) == pytest.approx(1)
