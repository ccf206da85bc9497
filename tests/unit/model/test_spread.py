"""How configs spread work over multiprocessors."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from fixtures.lookup_records import BOARD
from fixtures.model_survey import GEMM, KERNELS

from tuner.declare.catalogue import builtin
from tuner.declare.hardware import DeviceInfo
from tuner.declare.space import Config
from tuner.model.physics import DeviceRates, config_features, traits
from tuner.results.distance import Floats

KNOWN = DeviceRates(50e12, 3e12, 3e-6)
DEVICE = replace(BOARD, sm_count=100, max_threads_per_sm=2048, shared_bytes_per_sm=200 << 10)
#: Places of features from the end.
SHARES, SUMS_BYTES, WARPS, SUMS, SHARED, READ, REREADS, SHORT, LONG, ESTIMATE, FULLEST = (
    -16, -15, -14, -13, -10, -6, -5, -4, -3, -2, -1,
)  # fmt: skip


def at(m: int, n: int, k: int, device: DeviceInfo = DEVICE, **config: Any) -> Floats:
    """Features of one config of the kernel `blocks`, shape (features,)."""
    like = GEMM.problem({"m": m, "n": n, "k": k})
    chosen = Config({"BM": 64, "BN": 64, "SPLIT": 1, "LOAD": "plain", **config})
    found: Floats = config_features(like, device, traits(KERNELS, [("blocks", chosen)], like), KNOWN)[0][:, 0]
    return found


def times(features: Floats, place: int) -> float:
    """A feature that is kept as a log."""
    return round(math.exp(features[place]), 6)


def test_blocks_that_share_a_tile_write_their_sums_and_read_them() -> None:
    features = at(256, 256, 4096, SPLIT=4)
    assert times(features, SHARES) == 4
    problem = GEMM.problem({"m": 256, "n": 256, "k": 4096})
    assert times(features, SUMS_BYTES) == round((2 * 4 * 256 * 256 * 3 + 1) / problem.work.bytes, 6)
    assert at(256, 256, 4096)[SHARES] == 0


def test_as_much_is_on_its_way_as_blocks_are_resident_and_launched() -> None:
    one, many = at(640, 640, 4096), at(64_000, 640, 4096)
    assert times(one, SHARED) == 1 + 4 * 16 * 128  # a block for each multiprocessor
    assert times(many, SHARED) > 10 * times(one, SHARED)
    assert times(one, WARPS) == 4
    assert times(many, WARPS) == 64
    assert times(one, SUMS) == 64 * 64 / 128
    assert many[READ] < one[READ]


def test_the_largest_input_is_read_once_for_each_tile_across_it() -> None:
    assert times(at(4096, 64, 4096), REREADS) == 1
    assert times(at(4096, 128, 4096), REREADS) == 2
    assert at(128, 4096, 4096)[REREADS] == at(4096, 128, 4096)[REREADS]


def test_padding_is_told_of_the_short_and_the_long_side_whichever_they_are() -> None:
    down, across = at(4096, 48, 512), at(48, 4096, 512)
    for features in (down, across):
        assert times(features, SHORT) == round(64 / 48, 6)
        assert features[LONG] == 0


def test_multiprocessors_with_most_blocks_are_told_from_the_mean() -> None:
    assert at(64 * 100, 64, 512)[FULLEST] == 1
    assert at(64 * 101, 64, 512)[FULLEST] == 200 / 101


def test_idle_multiprocessors_cost_time_by_the_second_estimate() -> None:
    assert at(64, 64 * 3, 65_536)[ESTIMATE] > at(64, 64 * 3, 65_536, SPLIT=16)[ESTIMATE] + 1


def test_a_problem_without_sums_or_a_second_output_dim_has_finite_features() -> None:
    for name in ("transpose", "gemv"):
        operation = builtin().operations[name]
        kernels = {each.name: each for each in builtin().of(name, "cuda")}
        configs = [(each.name, config) for each in kernels.values() for config in each.first_configs()]
        problem = operation.problem(dict.fromkeys(operation.dims, 300))
        assert np.isfinite(config_features(problem, DEVICE, traits(kernels, configs, problem), KNOWN)[0]).all()
