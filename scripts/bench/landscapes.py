#!/usr/bin/env python3
"""Searches synthetic landscapes: what the strategy's constants were chosen on, instead of recordings.

    scripts/bench/landscapes.py [--seeds 0-3] [--trials 100] [--samplers tile]

A landscape is a roofline model with occupancy, wave quantisation, spills and quirks, on a random device. Legal
configs number 14,000 to 290,000. Printed is the fraction of the optimum after 25, 50 and 100 trials.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray

from tuner.measurement import Outcome
from tuner.search import Search
from tuner.space import Constraint, Space, choice

Floats = NDArray[np.float64]
CHECKPOINTS = (25, 50, 100, 200)


@dataclass(frozen=True)
class Landscape:
    """A space and the true time of each config; NaN where it fails.

    Attributes:
        name: Family and seed.
        space: The legal configs.
        times: Any unit.
        noise: Standard deviation of the log of a measured time.
    """

    name: str
    space: Space
    times: Floats
    noise: float


def columns(space: Space) -> Any:
    """Values of all configs by parameter."""
    return SimpleNamespace(
        **{each.name: np.array(each.values)[space.codes[:, at]] for at, each in enumerate(space.parameters)}
    )


def random_device(rng: np.random.Generator) -> Any:
    """Limits and speeds of a made-up GPU."""
    return SimpleNamespace(
        sms=rng.choice([20, 40, 68, 84, 108, 132]), shared=rng.choice([48, 64, 100, 164]) * 1024,
        registers=65536, threads=rng.choice([1024, 1536, 2048]), flops=10 ** rng.uniform(12.8, 13.7),
        bandwidth=10 ** rng.uniform(11.6, 12.5), hiding=rng.uniform(0.2, 0.6), overlap=rng.uniform(2, 6),
    )  # fmt: skip


def assembled(device: Any, parts: list[Floats], block: Any, blocks: Floats, rng: np.random.Generator) -> Floats:
    """Time from compute, memory and shared-memory parts; `block` has threads, registers, shared and ilp."""
    warps = np.ceil(block.threads / 32)
    registers = np.ceil(np.minimum(block.registers, 255) / 8) * 8
    resident = np.minimum.reduce(
        [
            np.floor(device.threads / (warps * 32)), np.floor(device.registers / (registers * warps * 32)),
            np.floor(device.shared / np.maximum(block.shared, 1)), np.full(len(warps), 16.0),
        ]
    )  # fmt: skip
    fails, resident = resident < 1, np.maximum(resident, 1)
    occupancy = resident * warps * 32 / device.threads
    hidden = 1 - np.exp(-(occupancy * block.ilp) / device.hiding)
    waves = blocks / (resident * device.sms)
    quantised = 1 + (np.ceil(waves) / waves - 1) * rng.uniform(0.5, 1)
    spilled = np.maximum(block.registers - 255, 0) / 64
    spilled += np.maximum(0, block.registers * block.threads - device.registers) / device.registers
    roofline = sum(part**device.overlap for part in parts) ** (1 / device.overlap)
    times = roofline / hidden * quantised * (1 + 2 * spilled) * (warps * 32 / block.threads)
    return np.where(fails, np.nan, times)


def quirks(space: Space, rng: np.random.Generator, size: float) -> Floats:
    """Factors of single values, of pairs of values and of configs, as compilers and caches have them."""
    codes, total = space.codes, np.zeros(len(space))
    widths = [len(each.values) for each in space.parameters]
    for at, width in enumerate(widths):
        total += 0.035 * size * rng.standard_normal(width)[codes[:, at]]
    for one in range(len(widths)):
        for other in range(one):
            if rng.random() < 0.4:
                table = 0.035 * size * rng.standard_normal((widths[one], widths[other]))
                total += table[codes[:, one], codes[:, other]]
    rare = 1 + 1.5 * (rng.random(len(space)) < 0.03)
    return np.exp(total + 0.03 * size * rng.standard_normal(len(space)) * rare)


def product(seed: int) -> Landscape:
    """Tiled matrix product, with and without shared memory for either operand."""
    rng = np.random.default_rng([1, seed])
    device = random_device(rng)
    parameters = (
        choice("BM", 16, 32, 64, 128, 256), choice("BN", 16, 32, 64, 128, 256), choice("BK", 8, 16, 32),
        choice("TX", 8, 16, 32), choice("TY", 4, 8, 16), choice("VA", 1, 2, 4), choice("VB", 1, 2, 4),
        choice("SA", False, True), choice("SB", False, True), choice("U", 1, 2, 4, 8),
    )  # fmt: skip
    rules = (
        Constraint("B loads fit", lambda p, d, c: c.BN % (c.TX * c.VB) == 0),
        Constraint("A loads fit", lambda p, d, c: c.BM % (c.TY * c.VA) == 0),
        Constraint("threads", lambda p, d, c: (c.TX * c.TY >= 64) & (c.BM * c.BN // (c.TX * c.TY) <= 256)),
        Constraint("A tile", lambda p, d, c: (c.BM * c.BK) % (c.TX * c.TY) == 0),
        Constraint("B tile", lambda p, d, c: (c.BN * c.BK) % (c.TX * c.TY) == 0),
    )
    space = Space.build(parameters, rules, None, None)
    c, n = columns(space), float(rng.choice([1024, 2048, 4096]))
    tm, tn, work = c.BM / c.TY, c.BN / c.TX, 2 * n**3 / device.flops
    block = SimpleNamespace(
        threads=c.TX * c.TY * 1.0, registers=20 + tm * tn + tm + tn + 2 * (c.U + c.VA + c.VB),
        shared=4.0 * c.BK * (c.BM * c.SA + c.BN * c.SB), ilp=1 + 0.15 * np.sqrt(tm * tn),
    )  # fmt: skip
    compute = work * (
        1 + 0.35 / np.sqrt(c.U) + rng.uniform(0.2, 1) / np.sqrt(tm * tn) + 0.3 * (1 - c.SA) + 0.25 * (1 - c.SB)
    )
    a, b = ((1 + 0.6 / vector * (1 - 0.5 * shared)) for vector, shared in ((c.VA, c.SA), (c.VB, c.SB)))
    memory = 4 * n**3 * (a / c.BN + b / c.BM) / device.bandwidth / rng.uniform(2, 6)
    shared = work * (c.SA / tn / np.sqrt(c.VA) + c.SB / tm / np.sqrt(c.VB)) * rng.uniform(0.5, 3)
    blocks = np.ceil(n / c.BM) * np.ceil(n / c.BN)
    times = assembled(device, [compute, memory, shared], block, blocks, rng)
    return Landscape(
        f"product-{seed}", space, times * quirks(space, rng, rng.uniform(0.3, 1.5)),
        rng.choice([0.003, 0.01, 0.02]),
    )  # fmt: skip


def stencil(seed: int) -> Landscape:
    """A stencil of radius 1 to 7, with and without shared memory and padding."""
    rng = np.random.default_rng([2, seed])
    device = random_device(rng)
    parameters = (
        choice("BX", *range(16, 257, 16)), choice("BY", 1, 2, 4, 8, 16), choice("TX", 1, 2, 3, 4, 5),
        choice("TY", 1, 2, 3, 4, 6), choice("SH", 0, 1), choice("PAD", 0, 1), choice("RO", 0, 1),
        choice("U", 0, 1),
    )  # fmt: skip
    rules = (
        Constraint("threads", lambda p, d, c: (c.BX * c.BY >= 32) & (c.BX * c.BY <= 1024)),
        Constraint("padding", lambda p, d, c: (c.PAD == 0) | ((c.SH == 1) & (c.BX % 32 != 0))),
    )
    space = Space.build(parameters, rules, None, None)
    c, n, radius = columns(space), 4096.0, int(rng.choice([1, 3, 7]))
    taps, tile = (2 * radius + 1) ** 2, c.TX * c.TY
    loaded, out = (c.BX * c.TX + 2.0 * radius) * (c.BY * c.TY + 2 * radius), c.BX * c.TX * c.BY * c.TY * 1.0
    block = SimpleNamespace(
        threads=c.BX * c.BY * 1.0, shared=4.0 * c.SH * loaded, ilp=1 + 0.2 * tile,
        registers=16 + tile * (1.5 + rng.uniform(1, 4)) + 10 * c.U + 4 * (1 - c.SH),
    )  # fmt: skip
    work = n * n * taps / device.flops
    compute = 2 * work * (1.1 + rng.uniform(0.5, 2) / tile**0.7 - 0.15 * c.U * (tile < 9))
    again = (1 - c.SH) * rng.uniform(0.5, 3) * (1 - 0.5 * c.RO)
    memory = 4 * n * n * (1 + loaded / out * (1 + again)) / device.bandwidth * (1 + 0.4 * (c.BX % 32 != 0))
    conflicts = np.where((c.BX % 32 == 0) | (c.PAD == 1), 1, 1.6)
    shared = work * (c.SH * conflicts + (1 - c.SH) * rng.uniform(0.7, 2)) / c.TX**0.5 / c.TY**0.3
    blocks = np.ceil(n / (c.BX * c.TX)) * np.ceil(n / (c.BY * c.TY))
    times = assembled(device, [compute, memory, shared * rng.uniform(1, 4)], block, blocks, rng)
    return Landscape(
        f"stencil-{seed}", space, times * quirks(space, rng, rng.uniform(0.3, 1.8)),
        rng.choice([0.003, 0.01, 0.03]),
    )  # fmt: skip


def pipelined(seed: int) -> Landscape:
    """A pipelined product with split K; about a third of its configs fail."""
    rng = np.random.default_rng([3, seed])
    device = random_device(rng)
    parameters = (
        choice("BM", 16, 32, 64, 128, 256), choice("BN", 16, 32, 64, 128, 256), choice("BK", 16, 32, 64, 128),
        choice("WARPS", 1, 2, 4, 8, 16), choice("STAGES", 1, 2, 3, 4, 5, 6), choice("GROUP", 1, 4, 8, 16),
        choice("SPLIT", 1, 2, 4, 8), choice("ORDER", "rows", "columns", "blocks"),
    )  # fmt: skip
    rules = (
        Constraint("tile", lambda p, d, c: c.BM * c.BN <= 32768),
        Constraint("work of a thread", lambda p, d, c: c.BM * c.BN >= c.WARPS * 128),
    )
    space = Space.build(parameters, rules, None, None)
    c, n, k = columns(space), float(rng.choice([512, 2048, 4096])), float(rng.choice([1024, 4096]))
    threads, edges = c.WARPS * 32.0, 1 / c.BM + 1 / c.BN
    block = SimpleNamespace(
        threads=threads, registers=30 + c.BM * c.BN / threads + (c.BM + c.BN) * c.BK / threads / 4,
        shared=2.0 * (c.BM + c.BN) * c.BK * np.maximum(c.STAGES - 1, 1), ilp=1 + 0.5 * np.log2(c.STAGES),
    )  # fmt: skip
    work = 2 * n * n * k / device.flops
    compute = (
        work * (1 + 8 / np.minimum(c.BM, c.BN) + 4 / c.BK) * np.where(c.WARPS > c.BM * c.BN / 1024, 1.3, 1)
    )
    cache = (
        1 - 0.15 * (c.ORDER == "blocks") + 0.3 / np.sqrt(c.GROUP) + rng.uniform(0, 0.4) * (c.ORDER == "columns")
    )
    memory = (n * n * k * edges * cache / 2 + 4 * n * n * (2 * c.SPLIT - 1)) / device.bandwidth
    shared = work * edges * 8 * rng.uniform(0.5, 2)
    blocks = np.ceil(n / c.BM) * np.ceil(n / c.BN) * c.SPLIT
    times = assembled(device, [compute, memory, shared], block, blocks, rng)
    times = np.where(block.registers > 400, np.nan, times)
    return Landscape(
        f"pipelined-{seed}", space, times * quirks(space, rng, rng.uniform(0.3, 1.5)),
        rng.choice([0.003, 0.01, 0.02]),
    )  # fmt: skip


FAMILIES: tuple[Callable[[int], Landscape], ...] = (product, stencil, pipelined)


def search(landscape: Landscape, sampler: str, seed: int, trials: int) -> list[float]:
    """Fractions of the optimum at the checkpoints; the champion is the best of four that are believed best."""
    space, times = landscape.space, landscape.times
    rng = np.random.default_rng([seed, 99])
    found = Search({"k": space}, sampler=sampler, seed=seed, study_name=landscape.name, budget=trials)
    fractions = []
    for number in range(1, trials + 1):
        (candidate,) = found.ask()
        time_s = times[space.index_of(candidate.config)] * np.exp(landscape.noise * rng.standard_normal())
        failed = not np.isfinite(time_s)
        found.tell(candidate, Outcome.LAUNCH_FAILED if failed else Outcome.MEASURED, None if failed else time_s)
        if number in CHECKPOINTS:
            standings = found.standings()
            best = sorted(standings, key=lambda each: standings[each])[:4]
            reached = min((times[space.index_of(config)] for _, config in best), default=np.inf)
            fractions.append(float(np.nanmin(times) / reached))
    return fractions


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="0-3")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--samplers", default="tile")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    for sampler in asked.samplers.split(","):
        rows = []
        for family in FAMILIES:
            for seed in range(int(first), int(last or first) + 1):
                landscape = family(seed)
                rows.append(search(landscape, sampler, seed, asked.trials))
                shown = " ".join(f"{each:.3f}" for each in rows[-1])
                print(f"{sampler:10} {landscape.name:14} {len(landscape.space):7} {shown}", flush=True)
        print(f"{sampler:10} {'mean':22} {' '.join(f'{each:.3f}' for each in np.mean(rows, axis=0))}")


if __name__ == "__main__":
    main()
