"""What configs do at a problem, from declarations."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.lookup_records import BOARD, CPU
from fixtures.model_survey import GEMM, KERNELS

from tuner.declare.catalogue import builtin
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.launch import Launch, ceil_div
from tuner.declare.space import Config
from tuner.model.physics import (
    DeviceRates,
    config_features,
    incidence,
    library_features,
    limits,
    problem_features,
    resident_blocks,
    traits,
)
from tuner.results.distance import Floats

KNOWN = DeviceRates(50e12, 3e12, 3e-6)


def first_configs(target: str, operation: str) -> tuple[dict[str, Kernel], list[tuple[str, Config]]]:
    kernels = {each.name: each for each in builtin().of(operation, target)}
    return kernels, [(name, config) for name, each in kernels.items() for config in each.first_configs()]


@pytest.mark.parametrize("operation", ["gemm", "gemv", "transpose"])
@pytest.mark.parametrize(("target", "device"), [("cuda", BOARD), ("cpu", CPU)])
def test_every_built_in_kernel_has_finite_features_at_any_shape(
    operation: str, target: str, device: DeviceInfo
) -> None:
    kernels, configs = first_configs(target, operation)
    declared = builtin().operations[operation]
    for layout in declared.layouts:
        like = declared.problem(dict.fromkeys(declared.dims, 64), layout=layout)
        of = traits(kernels, configs, like)
        for sizes in ((1, 1, 1), (16384, 3, 65536), (777, 4096, 17)):
            problem = declared.problem(dict(zip(declared.dims, sizes, strict=False)), layout=layout)
            features, estimate = config_features(problem, device, of, KNOWN)
            assert np.isfinite(features).all()
            assert np.isfinite(estimate).all()
            assert np.isfinite(problem_features(problem, KNOWN)).all()
            assert np.isfinite(library_features(problem, device, KNOWN)).all()


def test_dims_belong_to_tensors_by_their_sizes() -> None:
    inputs, summed = incidence(GEMM.problem({"m": 2, "n": 2, "k": 2}))
    assert inputs.tolist() == [[1, 0, 1], [0, 1, 1]]
    assert summed.tolist() == [0, 0, 1]
    turned = builtin().operations["transpose"].problem({"m": 2, "n": 2})
    assert incidence(turned)[1].tolist() == [0, 0]


def test_traits_are_those_of_launch_and_tile() -> None:
    config = Config({"BM": 64, "BN": 16, "SPLIT": 4, "LOAD": "plain"})
    of = traits(KERNELS, [("blocks", config)], GEMM.problem({"m": 2, "n": 2, "k": 2}), np.array([40.0]))
    assert of.spans[:, 0].tolist() == [64, 16, math.inf]
    assert of.steps[:, 0].tolist() == [64, 16, 1]
    assert [of.row(number)[0] for number in range(5)] == [4, 0, 128, 4 * 16 * 80, 40]


def test_blocks_that_stay_have_the_declared_tile() -> None:
    kernels, _ = first_configs("cuda", "gemm")
    stays = next(config for config in kernels["warp_tiled"].first_configs() if config["BLOCKS"])
    of = traits(kernels, [("warp_tiled", stays)], GEMM.problem({"m": 2, "n": 2, "k": 2}))
    assert np.isinf(of.spans).all()
    assert of.steps[:, 0].tolist() == [stays["BM"], stays["BN"], 1]
    assert of.row(1)[0] == stays["BLOCKS"]


def test_blocks_that_stay_are_as_many_as_the_parts_of_another_dim_at_least() -> None:
    """Of a thin product, blocks stay along the wide side; each part of the sum has one at least."""

    def launch(p: Any, c: Config) -> Launch:
        parts, tiles = ceil_div(p.k, c.BK), ceil_div(p.m, c.BM)
        return Launch((max(min(c.BLOCKS, parts * tiles), parts),), (128,))

    stays = Kernel(
        "gemm", "stays", "cuda", Path("stays.cu"), launch=launch, tiles=lambda p, c: {"m": c.BM, "k": c.BK}
    )
    config = Config({"BM": 64, "BK": 512, "BLOCKS": 264})
    of = traits({"stays": stays}, [("stays", config)], GEMM.problem(dict.fromkeys("mnk", 2)))
    assert of.row(1)[0] == 264
    for sizes in (
        {"m": 64, "n": 1, "k": 512},
        {"m": 1 << 16, "n": 1, "k": 2048},
        {"m": 64, "n": 1, "k": 1 << 20},
    ):
        problem = GEMM.problem(sizes)
        blocks = math.exp(config_features(problem, BOARD, of, KNOWN)[0][0, 0])
        assert blocks == pytest.approx(math.prod(launch(problem, config).grid))


def test_a_rule_that_fails_leaves_a_config_without_traits() -> None:
    broken = replace(KERNELS["blocks"], launch=lambda p, c: 1 / 0)  # type: ignore[arg-type, return-value]
    config = Config({"BM": 64, "BN": 16, "SPLIT": 4, "LOAD": "plain"})
    of = traits(
        {"blocks": broken}, [("blocks", config), ("gone", Config({}))], GEMM.problem(dict.fromkeys("mnk", 2))
    )
    assert np.isinf(of.spans).all()
    features, _ = config_features(GEMM.problem(dict.fromkeys("mnk", 100)), BOARD, of, KNOWN)
    assert np.isfinite(features).all()


def test_occupancy_is_limited_by_threads_shared_memory_and_known_registers() -> None:
    device = replace(
        BOARD, max_threads_per_sm=2048, shared_bytes_per_sm=100 << 10, registers_per_block=64 << 10
    )
    config = Config({"BM": 64, "BN": 16, "SPLIT": 4, "LOAD": "plain"})
    like = GEMM.problem(dict.fromkeys("mnk", 2))
    assert resident_blocks(device, traits(KERNELS, [("blocks", config)], like))[0] == 16
    assert resident_blocks(device, traits(KERNELS, [("blocks", config)], like, np.array([250.0])))[0] == 2


def test_limits_are_what_was_reached() -> None:
    problems = [GEMM.problem({"m": 4096, "n": 4096, "k": 4096}), GEMM.problem({"m": 1, "n": 1, "k": 1})]
    found = limits(problems, np.array([3e-3, 4e-6]))
    assert found.launch_s == 4e-6
    assert found.flops_per_s == pytest.approx(2 * 4096**3 / 3e-3, rel=0.02)


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


def test_multiprocessors_with_most_blocks_are_told_from_the_mean() -> None:
    assert at(64 * 100, 64, 512)[FULLEST] == 1
    assert at(64 * 101, 64, 512)[FULLEST] == 200 / 101


def test_idle_multiprocessors_cost_time_by_the_second_estimate() -> None:
    assert at(64, 64 * 3, 65_536)[ESTIMATE] > at(64, 64 * 3, 65_536, SPLIT=16)[ESTIMATE] + 1
