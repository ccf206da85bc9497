"""Landscapes of tiled products and stencils, whose spaces have one fast region."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from roofline import Landscape, assembled, columns, quirks, random_device

from tuner.declare.space import Constraint, Space, choice


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
