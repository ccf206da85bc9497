"""What whole blocks cost, by declared tiles and by laws learnt from launch rules."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.lookup_records import BOARD, CPU

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Kernel
from tuner.declare.launch import Launch, ceil_div
from tuner.declare.space import Space, choice, powers_of_two
from tuner.lookup.geometry import KernelConfigs

GEMM = builtin().operations["gemm"]


def kernel(launch: Any, *parameters: Any) -> Kernel:
    return Kernel("gemm", "own", "cuda", Path("own.cu"), parameters=parameters, launch=launch)


def family(of: Kernel, problem: Any) -> tuple[KernelConfigs, list[Any]]:
    space = Space.build(of.parameters, of.constraints, problem, BOARD, limit=20_000)
    configs = [space[at] for at in range(0, len(space), max(1, len(space) // 25))]
    return KernelConfigs(of, configs), configs


@pytest.mark.parametrize("name", [each.name for each in builtin().of("gemm", "cuda")])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_the_laws_of_the_built_in_kernels_count_blocks_as_their_launches_do(name: str, layout: str) -> None:
    problem = GEMM.problem({"m": 1000, "n": 777, "k": 512}, layout=layout)
    of = builtin().of("gemm", "cuda", (name,))[0]
    known, configs = family(of, problem)
    waves, padding = known.costs(problem, BOARD)
    for config, cost in zip(configs, waves, strict=True):
        assert of.launch is not None
        if config.get("BLOCKS"):
            continue  # these stay, and take tile after tile
        blocks = math.prod(of.launch(problem, config).grid)
        rounds = ceil_div(blocks, BOARD.sm_count)
        assert math.exp(cost) == pytest.approx(rounds * BOARD.sm_count / blocks, rel=0.02)
    assert (padding >= 0).all()


def test_waves_and_padding_are_those_of_the_tiles() -> None:
    def launch(p: Any, c: Any) -> Launch:
        return Launch(grid=(ceil_div(p.m, c.BM), ceil_div(p.n, c.BN)), block=(32,))

    of = kernel(launch, powers_of_two("BM", 32, 128), powers_of_two("BN", 32, 128))
    problem = GEMM.problem({"m": 130, "n": 128, "k": 9})
    known, configs = family(of, problem)
    at = configs.index({"BM": 128, "BN": 64})
    waves, padding = known.costs(problem, BOARD)[:, at]
    assert math.exp(waves) == pytest.approx(132 / 4)
    assert math.exp(padding) == pytest.approx(256 / 130)


def test_a_launch_that_follows_no_law_or_fails_costs_nothing() -> None:
    problem = GEMM.problem({"m": 100, "n": 100, "k": 100})

    def odd(p: Any, c: Any) -> Launch:
        return Launch(grid=(ceil_div(p.m, 7 + c.A * c.B % 5),), block=(32,))

    def failing(p: Any, c: Any) -> Launch:
        raise RuntimeError("not for such dims")

    for launch in (odd, failing):
        known, _ = family(kernel(launch, choice("A", 1, 2, 3, 5), choice("B", 1, 3, 7)), problem)
        assert not known.costs(problem, BOARD).any()


def test_declared_tiles_stand_for_the_launch_rule() -> None:
    def launch(p: Any, c: Any) -> Launch:
        raise AssertionError("the launch rule is slow; declared tiles need none")

    of = replace(
        kernel(launch, powers_of_two("BM", 32, 128), choice("SPLIT_K", 1, 4)),
        tiles=lambda p, c: {"m": c.BM, "n": 64, "k": p.k / c.SPLIT_K},
    )
    problem = GEMM.problem({"m": 130, "n": 128, "k": 9})
    known, configs = family(of, problem)
    at = configs.index({"BM": 128, "SPLIT_K": 4})
    waves, padding = known.costs(problem, BOARD)[:, at]
    assert math.exp(waves) == pytest.approx(BOARD.sm_count / (2 * 2 * 4))
    assert math.exp(padding) == pytest.approx(256 / 130)


@pytest.mark.parametrize("tile", [0, math.inf, math.nan, "wide"])
def test_what_is_declared_and_no_tile_costs_nothing(tile: Any) -> None:
    of = replace(kernel(lambda p, c: Launch((1,), (32,)), choice("BM", 32, 64)), tiles=lambda p, c: {"m": tile})
    problem = GEMM.problem({"m": 130, "n": 128, "k": 9})
    assert not family(of, problem)[0].costs(problem, BOARD).any()


def test_a_cpu_kernel_that_declares_no_tile_costs_nothing_whatever_its_parameters_names() -> None:
    of = Kernel("gemm", "own", "cpu", Path("own.py"), parameters=(choice("MR", 4, 6), choice("NR", 16)))
    problem = GEMM.problem({"m": 10, "n": 16, "k": 100})
    space = Space.build(of.parameters, of.constraints, problem, CPU)
    assert not KernelConfigs(of, list(space)).costs(problem, CPU).any()


def test_a_cpu_kernels_register_tile_gives_its_padding() -> None:
    of = Kernel(
        "gemm", "own", "cpu", Path("own.py"), parameters=(choice("HIGH", 4, 6), choice("WIDE", 16)),
        tiles=lambda p, c: {"m": c.HIGH, "n": c.WIDE},
    )  # fmt: skip
    problem = GEMM.problem({"m": 10, "n": 16, "k": 100})
    space = Space.build(of.parameters, of.constraints, problem, CPU)
    waves, padding = KernelConfigs(of, list(space)).costs(problem, CPU)
    assert not waves.any()
    assert np.exp(padding) == pytest.approx([1.2, 1.2])
