"""Networks learn what there is to be learned, the same each time; as they are kept they say what they said."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InputError
from tuner.model import network as module
from tuner.model.network import (
    FEW,
    FURTHEST,
    OUTERMOST,
    Encoding,
    Network,
    Training,
    encoding_of,
    share_of,
    train,
    trained,
)

SIZES = (3 + 2 * 4, 8, 5, 1)
HOW = Training((32, 16), 2, 40, least=0)


def rows_of(seed: int, count: int = 200) -> Any:
    """Features of which the first is a kind, and the last never changes."""
    rng = np.random.default_rng(seed)
    return np.column_stack([
        rng.integers(0, 3, count), rng.normal(5, 2, count), np.exp(rng.normal(0, 3, count)), np.full(count, 7.0)
    ])  # fmt: skip


def layers_of(seed: int, networks: int) -> Any:
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(0, a**-0.5, (networks, a, b)), rng.normal(0, 0.1, (networks, 1, b)))
        for a, b in pairwise(SIZES)
    ]


def computed(layers: Any, inputs: Any) -> Any:
    """The mean of what each network says, layer by layer, in double precision."""
    outputs = []
    for number in range(len(layers[0][0])):
        values = inputs.astype(float)
        for at, (matrix, offsets) in enumerate(layers):
            values = values @ matrix[number] + offsets[number]
            if at < len(layers) - 1:
                values = values / (1 + np.exp(-values))
        outputs.append(values[:, 0])
    return np.mean(outputs, axis=0)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), networks=st.integers(1, 3))
def test_rounded_weights_say_nearly_what_exact_ones_say(seed: int, networks: int) -> None:
    rows, layers = rows_of(seed), layers_of(seed, networks)
    encoding = encoding_of(rows)
    network = Network.of(encoding, 0.5, layers)
    assert abs(network.weights).max() == 127
    exact = computed(layers, encoding.inputs_of(rows))
    assert np.abs(network.predict(rows) - exact).max() < 0.05
    np.testing.assert_allclose(network.predict(rows[:7]), network.predict(rows)[:7], atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 50, FEW, FEW + 1])
def test_rows_say_the_same_whatever_pieces_they_are_cut_into(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, made = rows_of(5, count), Network.of(encoding_of(rows_of(5)), 1.0, layers_of(6, 2))
    whole = made.predict(rows)
    assert whole.shape == (count,)
    monkeypatch.setattr(module, "SHARED", 7 * SIZES[0] * SIZES[1])  # pieces of seven rows
    np.testing.assert_allclose(made.predict(rows), whole, rtol=1e-4, atol=1e-5)


def test_inputs_are_kinds_then_deviations_then_ranks() -> None:
    rows = rows_of(2)
    encoding = encoding_of(rows)
    inputs = encoding.inputs_of(rows)
    assert inputs.shape == (len(rows), encoding.inputs) == (200, 3 + 2 * 4)
    np.testing.assert_array_equal(inputs[:, :3].argmax(axis=1), rows[:, 0])
    assert abs(inputs[:, 3:7]).max() <= FURTHEST
    order = np.argsort(rows[:, 2])
    assert (np.diff(inputs[order, 9]) >= 0).all()
    assert inputs[:, 9].std() > 0.8, "ranks spread what a deviation does not"
    strange = encoding.inputs_of(np.array([[9.0, 1e9, -1e9, 8.0]]))[0]
    np.testing.assert_array_equal(strange[:3], 0, "a kind that was not there")
    assert (strange[4], strange[6], strange[10]) == (FURTHEST, 0, 0), "the last feature never changed"
    assert strange[8] == pytest.approx(OUTERMOST)
    later = np.column_stack([rows, np.ones(len(rows))])
    np.testing.assert_array_equal(encoding.inputs_of(later), inputs, "a feature that came later is left aside")


def test_weights_of_other_layers_are_refused() -> None:
    network = Network.of(encoding_of(rows_of(5)), 0.5, layers_of(5, 1))
    with pytest.raises(InputError, match="weights are those of its layers"):
        Network(network.encoding, 0.5, (*SIZES[:-1], 2), network.weights, network.steps, network.offsets)
    with pytest.raises(InputError, match="encoding has each feature's figures"):
        Encoding(3, np.zeros(4), np.ones(3), np.zeros((4, 5)))


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


def test_the_share_is_what_errs_least() -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(0, 0.3, 4000)
    trees, networks = target + rng.normal(0, 0.1, 4000), target + rng.normal(0, 0.05, 4000)
    assert share_of(trees, networks, target, np.ones(4000)) == pytest.approx(0.8, abs=0.03)  # variances 1 to 4
    assert share_of(trees, trees, target, np.ones(4000)) == 0
