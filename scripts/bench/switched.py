"""Landscapes whose best variant is not the one that is fast on average: switches, caches, methods, traps.

The roofline model is that of `landscapes`. They add the property that makes recorded spaces hard: a switch
(with or without shared memory, strided or blocked tiles, one of several methods) that changes the meaning of
the other parameters, and whose better side is the slower one for most of their values.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from roofline import (
    Floats,
    Landscape,
    assembled,
    columns,
    conjunction,
    quirks,
    random_device,
    specialist,
)

from tuner.declare.space import Constraint, Space, choice

THREADS = Constraint("threads", lambda p, d, c: (c.BX * c.BY >= 32) & (c.BX * c.BY <= 1024))


def landscape(name: str, space: Space, times: Floats, rng: np.random.Generator) -> Landscape:
    """Adds quirks and noise."""
    noise = float(rng.choice([0.003, 0.01, 0.03]))
    return Landscape(name, space, times * quirks(space, rng, rng.uniform(0.3, 1.8)), noise)


def cached(seed: int) -> Landscape:
    """A stencil whose rows come through shared memory or through the cache; either may be the better way."""
    rng = np.random.default_rng([4, seed])
    device = random_device(rng)
    parameters = (
        choice("BX", *range(16, 257, 16)), choice("BY", 1, 2, 4, 8, 16), choice("TX", 1, 2, 3, 4),
        choice("TY", 1, 2, 3, 4), choice("SH", 0, 1), choice("PAD", 0, 1), choice("RO", 0, 1),
        choice("U", 0, 1),
    )  # fmt: skip
    padding = Constraint("padding", lambda p, d, c: (c.PAD == 0) | ((c.SH == 1) & (c.BX % 32 != 0)))
    space = Space.build(parameters, (THREADS, padding), None, None)
    c, n, width = columns(space), 4096.0, int(rng.choice([5, 9, 17]))
    tile, out = c.TX * c.TY * 1.0, 1.0 * c.BX * c.TX * c.BY * c.TY
    loaded = (c.BX * c.TX + width - 1.0) * (c.BY * c.TY + width - 1)
    block = SimpleNamespace(
        threads=c.BX * c.BY * 1.0, shared=4.0 * c.SH * loaded, ilp=1 + rng.uniform(0.1, 0.6) * (tile - 1),
        registers=18 + tile * rng.uniform(1.5, 6) + 12 * c.U + rng.uniform(0, 3) * (1 - c.SH) * c.TY * c.U,
    )  # fmt: skip
    work = n * n * width**2 / device.flops
    compute = 2 * work * (1 + rng.uniform(0.3, 1.5) / tile**0.7 - 0.15 * c.U * (tile < 9))
    # Values that a thread keeps in registers are read once for all of its rows.
    kept = np.where(c.SH == 1, c.TY ** rng.uniform(0, 0.4), c.TY ** rng.uniform(0.3, 1)) * c.TX**0.2
    conflicts = np.where((c.BX % 32 == 0) | (c.PAD == 1), 1, rng.uniform(1.2, 2))
    lines = np.where(c.BX % 32 == 0, 1, 1.3) * (1 + rng.uniform(0, 0.6) * np.log2(c.BY)) * c.TX**0.3
    footprint = loaded * 4 * np.minimum(2048 / (c.BX * c.BY), 8)
    missed = 1 / (1 + (48e3 * rng.uniform(0.5, 3) / footprint) ** 2)
    through_cache = rng.uniform(1, 3) * lines * (1 + rng.uniform(0, 1.5) * (c.RO == 0)) * (1 + 2 * missed)
    reads = work / kept * np.where(c.SH == 1, conflicts + rng.uniform(0.2, 1.5) * loaded / out, through_cache)
    traffic = 1 + loaded / out * np.where(c.SH == 1, 1, 1 + 3 * missed)
    memory = 4 * n * n * traffic / device.bandwidth * (1 + 0.4 * (c.BX % 32 != 0))
    blocks = np.ceil(n / (c.BX * c.TX)) * np.ceil(n / (c.BY * c.TY))
    times = assembled(device, [compute, memory, reads * rng.uniform(0.7, 2.5)], block, blocks, rng)
    times = specialist(space, times, "SH", rng)
    return landscape(f"cached-{seed}", space, times, rng)


def methods(seed: int) -> Landscape:
    """Points against a list: one of several methods, arrays of structures or not, tables or none."""
    rng = np.random.default_rng([5, seed])
    device = random_device(rng)
    parameters = (
        choice("BX", *range(32, 1025, 32)), choice("TILE", *range(1, 21)), choice("SOA", 0, 1),
        choice("BETWEEN", "a", "b", "c", "d"), choice("SIDE", "a", "b", "c"), choice("TABLE", False, True),
    )  # fmt: skip
    rule = Constraint(
        "tables serve two methods", lambda p, d, c: ~c.TABLE | (c.BETWEEN == "b") | (c.BETWEEN == "d")
    )
    space = Space.build(parameters, (rule,), None, None)
    c, n = columns(space), 10 ** rng.uniform(6, 7.5)
    between, side = ({name: rng.uniform(0.7, 1.6, 4) for name in "abcd"} for _ in range(2))

    def of(table: dict[str, Floats], at: int, column: Floats) -> Floats:
        return np.array([table[name][at] for name in column])

    b, s = (lambda at: of(between, at, c.BETWEEN)), (lambda at: of(side, at, c.SIDE))
    block = SimpleNamespace(
        threads=c.BX * 1.0, shared=np.where(c.SOA == 1, 16.0 * c.BX, 0.0) + 1, ilp=c.TILE ** (0.4 * b(0)),
        registers=12 + c.TILE * (2 * b(1) + s(1)) * rng.uniform(0.7, 2) + 8 * c.TABLE,
    )  # fmt: skip
    steps = b(2) * s(2) - rng.uniform(0.1, 0.5) * c.TABLE
    compute = 600 * n / device.flops * (steps + 1.5 * b(3) / c.TILE ** (0.6 * s(3)))
    memory = (
        n * (8 + 600 * (1 + 0.5 * c.TABLE) / c.TILE / np.sqrt(c.BX)) / device.bandwidth * (1.4 - 0.4 * c.SOA)
    )
    blocks = np.ceil(n / (c.BX * c.TILE))
    times = assembled(device, [compute, memory], block, blocks, rng)
    times = specialist(space, times, "SOA", rng)
    return landscape(f"methods-{seed}", space, times, rng)


def temporal(seed: int) -> Landscape:
    """A stencil over several steps at once: halos grow with the steps that a block does alone."""
    rng = np.random.default_rng([6, seed])
    device = random_device(rng)
    parameters = (
        choice("BX", 8, 16, 32, 64, 96, 128, 192, 256, 512), choice("BY", 1, 2, 4, 8, 16, 32),
        choice("TX", 1, 2, 3, 4, 6, 8), choice("TY", 1, 2, 3, 4, 6, 8), choice("STEPS", *range(1, 11)),
        choice("UNROLL", 1, 2, 3, 4, 5, 6, 8, 10), choice("POWER", 0, 1), choice("RESIDENT", 0, 1, 2, 3, 4),
    )  # fmt: skip
    rules = (
        THREADS,
        Constraint("whole unrolls", lambda p, d, c: c.STEPS % c.UNROLL == 0),
        Constraint("wide", lambda p, d, c: c.BX * c.TX > 2 * c.STEPS),
        Constraint("high", lambda p, d, c: c.BY * c.TY > 2 * c.STEPS),
        Constraint("shared", lambda p, d, c: d.shared >= c.BX * c.TX * c.BY * c.TY * 4 * (2 + c.POWER)),
    )
    space = Space.build(parameters, rules, None, device)
    c, n = columns(space), 4096.0
    width, height, tile = 1.0 * c.BX * c.TX, 1.0 * c.BY * c.TY, c.TX * c.TY * 1.0
    useful = (width - 2 * c.STEPS) * (height - 2 * c.STEPS) / (width * height)
    wanted = np.where(c.RESIDENT == 0, 255, device.registers / np.maximum(c.RESIDENT, 1) / (c.BX * c.BY))
    needed = 16 + tile * rng.uniform(1, 3) + c.UNROLL * rng.uniform(0.5, 3) + 6 * (1 - c.POWER)
    block = SimpleNamespace(
        threads=c.BX * c.BY * 1.0, shared=4.0 * width * height * (1 + c.POWER) + 1, ilp=tile**0.4,
        registers=np.minimum(needed, np.maximum(wanted, 16)),
    )  # fmt: skip
    spills = 1 + rng.uniform(0.2, 1) * np.maximum(0, needed / block.registers - 1)
    work = n * n * 15 * spills / useful / device.flops
    compute = work * (1 + 0.4 / c.UNROLL**0.5 + rng.uniform(0.3, 1) / tile**0.5)
    shared = work * rng.uniform(0.5, 1.5) * (1 + 0.5 * c.POWER) / tile**0.3 * (1 + 0.3 * (c.BX < 32))
    memory = n * n * 4 * (2 + 1 / useful) / c.STEPS / device.bandwidth * (1 + 0.5 * (width % 32 != 0))
    blocks = np.ceil(n / np.maximum(width - 2 * c.STEPS, 1)) * np.ceil(n / np.maximum(height - 2 * c.STEPS, 1))
    launches = 5e-6 / c.STEPS
    times = assembled(device, [compute, memory, shared], block, blocks / 4, rng) + launches
    return landscape(f"temporal-{seed}", space, times, rng)


def strided(seed: int) -> Landscape:
    """Sums over shifted rows, tiles of a thread in a block or strided, loops unrolled by many factors."""
    rng = np.random.default_rng([7, seed])
    device = random_device(rng)
    parameters = (
        choice("BX", 1, 2, 4, 8, *range(16, 257, 16)), choice("BY", 1, 4, 8, 16, 32, 64, 128),
        choice("TX", 1, 2, 3, 4, 6, 8, 12, 16), choice("TY", 1, 2, 3, 4, 6, 8), choice("SX", 0, 1),
        choice("SY", 0, 1), choice("U", 0, 1, 2, 4, 8, 16),
    )  # fmt: skip
    rules = (
        THREADS,
        Constraint(
            "a stride needs a tile", lambda p, d, c: ((c.TX > 1) | (c.SX == 0)) & ((c.TY > 1) | (c.SY == 0))
        ),
    )
    space = Space.build(parameters, rules, None, None)
    c, n, channels = columns(space), 25000.0, 1536.0
    tile = c.TX * c.TY * 1.0
    block = SimpleNamespace(
        threads=c.BX * c.BY * 1.0, shared=np.ones(len(space)), ilp=tile ** rng.uniform(0.3, 0.7),
        registers=16 + tile * rng.uniform(1, 2.5) + c.U * rng.uniform(0, 2) * np.sqrt(tile),
    )  # fmt: skip
    work = n * 2048 * channels / device.flops
    loops = np.where(c.U == 0, rng.uniform(0.1, 0.6), 0.6 / np.maximum(c.U, 1) + 0.02 * c.U * (c.U > 8))
    compute = 2 * work * (1 + loops + rng.uniform(0.5, 2) / tile**0.7)
    blocked = np.where((c.SX == 0) & (c.TX > 1), np.minimum(c.TX, 8) ** rng.uniform(0.3, 1), 1)
    coalesced = np.maximum(1, 32 / c.BX) ** rng.uniform(0.5, 1) * blocked
    again = 1 / np.sqrt(c.BY * c.TY * np.where((c.SY == 1) & (c.TY > 1), rng.uniform(0.4, 1), 1))
    memory = n * channels * 40 * coalesced * (0.02 + again) / device.bandwidth * rng.uniform(2, 8)
    blocks = np.ceil(n / (c.BX * c.TX)) * np.ceil(2048 / (c.BY * c.TY))
    times = assembled(device, [compute, memory], block, blocks, rng)
    times = specialist(space, times, "SX", rng)
    return landscape(f"strided-{seed}", space, times, rng)


def traps(seed: int) -> Landscape:
    """No model of a device: every variant has its own optimum; the best one is slow for most of its configs."""
    rng = np.random.default_rng([8, seed])
    parameters = (
        choice("A", *(2**power for power in range(3, 9))), choice("B", 1, 2, 4, 8, 16, 32),
        choice("C", 1, 2, 3, 4, 5, 6, 8), choice("D", 1, 2, 4, 8), choice("E", 1, 2, 4, 8, 16),
        choice("S", 0, 1), choice("T", 0, 1), choice("METHOD", "a", "b", "c"),
    )  # fmt: skip
    space = Space.build(parameters, (Constraint("few", lambda p, d, c: c.A * c.B <= 1024),), None, None)
    c = columns(space)
    logs = np.stack([np.log2(getattr(c, name).astype(float)) for name in "ABCDE"], axis=1)
    logs = (logs - logs.mean(axis=0)) / logs.std(axis=0)
    shared = rng.standard_normal((5, 5)) * 0.5 + np.eye(5)
    total = np.zeros(len(space))
    variant = c.S + 2 * c.T + 4 * (c.METHOD == "b") + 8 * (c.METHOD == "c")
    offsets = 0.25 * (c.S * rng.standard_normal() + c.T * rng.standard_normal())
    for number in np.unique(variant):
        own = variant == number
        ways = shared + 0.3 * rng.standard_normal((5, 5))
        points = logs[own] @ ways
        away = np.abs(points - points[rng.integers(len(points))])
        steep = rng.uniform(0.05, 0.35, 5) * rng.uniform(0.5, 2)
        # What limits a kernel is the largest of several costs, softened.
        costs = steep * away ** rng.uniform(0.8, 1.6)
        total[own] = np.log(np.exp(3 * costs).mean(axis=1)) / 3 + 0.5 * costs.sum(axis=1)
        total[own] -= 0.4 * (steep.mean() - 0.25) + 0.15 * rng.standard_normal()
    times = np.exp(total + offsets)
    cliff = logs @ rng.standard_normal(5)
    times = np.where(cliff > np.quantile(cliff, 0.93), np.nan if rng.random() < 0.5 else 2 * times, times)
    return landscape(f"traps-{seed}", space, times, rng)


def needle(seed: int) -> Landscape:
    """One of these with a plateau: the better region is small, on the other side of the switch, far ahead."""
    family, switch = ((cached, "SH"), (strided, "SX"), (methods, "SOA"))[seed % 3]
    found = family(seed + 100)
    rng = np.random.default_rng([77, seed])
    space, times = found.space, found.times
    codes = space.codes[:, [each.name for each in space.parameters].index(switch)]
    slow = codes == int(np.argmax([np.nanmedian(times[codes == code]) for code in (0, 1)]))
    times = np.where(slow, times * max(1.0, 1.15 * np.nanmin(times[~slow]) / np.nanmin(times[slow])), times)
    while True:
        narrow = slow & conjunction(space, rng)
        if 0.004 < narrow.mean() < 0.03 and np.isfinite(times[narrow]).sum() > 20:
            break
    gain = np.nanmin(times) / np.nanmin(times[narrow]) * rng.uniform(0.7, 0.85)
    return Landscape(f"needle-{seed}", space, np.where(narrow, times * gain, times), found.noise)
