"""Networks as they are kept say what networks in full precision say; their inputs tell rows apart."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InputError
from tuner.model import network as module
from tuner.model.network import FEW, FURTHEST, OUTERMOST, Encoding, Network
from tuner.model.training import encoding_of

SIZES = (3 + 2 * 4, 8, 5, 1)


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
    said = []
    for number in range(len(layers[0][0])):
        values = inputs.astype(float)
        for at, (matrix, offsets) in enumerate(layers):
            values = values @ matrix[number] + offsets[number]
            if at < len(layers) - 1:
                values = values / (1 + np.exp(-values))
        said.append(values[:, 0])
    return np.mean(said, axis=0)


def kept_by(network: Network) -> Any:
    """Layers of rounded weights, in double precision."""
    found, first, begin = [], 0, 0
    for inputs, outputs in pairwise(network.sizes):
        weights = network.weights[:, first : first + inputs * outputs].reshape(-1, inputs, outputs)
        these = slice(begin, begin + outputs)
        found.append((weights * network.steps[:, None, these], network.offsets[:, None, these]))
        first, begin = first + inputs * outputs, begin + outputs
    return found


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), networks=st.integers(1, 3))
def test_weights_are_rounded_by_half_a_step_at_most_and_say_what_they_are(seed: int, networks: int) -> None:
    rows, layers = rows_of(seed), layers_of(seed, networks)
    encoding = encoding_of(rows)
    network = Network.of(encoding, 0.5, layers)
    assert abs(network.weights).max() == 127
    kept = kept_by(network)
    for (matrix, offsets), (rounded, told) in zip(layers, kept, strict=True):
        step = abs(matrix).max(axis=1, keepdims=True) / 127
        assert (abs(rounded - matrix) <= 0.5001 * step).all()
        np.testing.assert_allclose(told, offsets, rtol=1e-6)
    exact = computed(kept, encoding.inputs_of(rows))
    np.testing.assert_allclose(network.predict(rows), exact, rtol=1e-4, atol=1e-4)
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


def test_trees_and_networks_are_joined_by_their_share() -> None:
    rows = rows_of(1)
    network = Network.of(encoding_of(rows), 0.25, layers_of(1, 2))
    trees = np.linspace(-1, 1, len(rows))
    np.testing.assert_allclose(network.joined(trees, rows), 0.75 * trees + 0.25 * network.predict(rows))


def test_inputs_are_kinds_then_deviations_then_ranks() -> None:
    rows = rows_of(2)
    encoding = encoding_of(rows)
    inputs = encoding.inputs_of(rows)
    assert inputs.shape == (len(rows), encoding.inputs) == (200, 3 + 2 * 4)
    np.testing.assert_array_equal(inputs[:, :3].argmax(axis=1), rows[:, 0])
    np.testing.assert_array_equal(inputs[:, :3].sum(axis=1), 1)
    assert abs(inputs[:, 3:7]).max() <= FURTHEST
    assert abs(inputs[:, 7:]).max() <= OUTERMOST + 1e-6
    order = np.argsort(rows[:, 2])
    assert (np.diff(inputs[order, 9]) >= 0).all()
    assert inputs[:, 9].std() > 0.8, "ranks spread what a deviation does not"


def test_what_never_changed_says_nothing_and_what_is_new_stays_in_bounds() -> None:
    encoding = encoding_of(rows_of(3))
    strange = np.array([[9.0, 1e9, -1e9, 8.0]])
    inputs = encoding.inputs_of(strange)[0]
    np.testing.assert_array_equal(inputs[:3], 0, "a kind that was not there")
    assert inputs[4] == FURTHEST
    assert (inputs[6], inputs[10]) == (0, 0), "the last feature never changed"
    assert inputs[8] == pytest.approx(OUTERMOST)


def test_features_that_came_later_are_left_aside() -> None:
    rows = rows_of(4)
    encoding = encoding_of(rows)
    later = np.column_stack([rows, np.ones(len(rows))])
    np.testing.assert_array_equal(encoding.inputs_of(later), encoding.inputs_of(rows))


def test_weights_of_other_layers_are_refused() -> None:
    network = Network.of(encoding_of(rows_of(5)), 0.5, layers_of(5, 1))
    with pytest.raises(InputError, match="weights are those of its layers"):
        Network(network.encoding, 0.5, (*SIZES[:-1], 2), network.weights, network.steps, network.offsets)
    with pytest.raises(InputError, match="encoding has each feature's figures"):
        Encoding(3, np.zeros(4), np.ones(3), np.zeros((4, 5)))
