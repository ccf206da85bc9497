"""A product whose threads are rearranged for each of its loads: many parameters, tied by divisibility."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from roofline import Landscape, assembled, columns, quirks, random_device

from tuner.declare.space import Constraint, Space, choice


def reshaped(seed: int) -> Landscape:
    """Thirteen parameters; the threads of a block (CX x CY) load A as AX by what is left, and B as BX."""
    rng = np.random.default_rng([9, seed])
    device = random_device(rng)
    tiles, sides = (16, 32, 64, 128), (8, 16, 32)
    parameters = (
        choice("BM", *tiles), choice("BN", *tiles), choice("BK", 16, 32), choice("CX", *sides),
        choice("CY", *sides), choice("AX", *sides), choice("BX", *sides), choice("VM", 1, 2, 4, 8),
        choice("VN", 1, 2, 4, 8), choice("SM", 0, 1), choice("SN", 0, 1), choice("SA", 0, 1),
        choice("SB", 0, 1),
    )  # fmt: skip
    rules = (
        Constraint("threads", lambda p, d, c: c.CX * c.CY <= 1024),
        Constraint("rows of C", lambda p, d, c: c.BM % (c.CX * c.VM) == 0),
        Constraint("columns of C", lambda p, d, c: c.BN % (c.CY * c.VN) == 0),
        Constraint("rows of A", lambda p, d, c: (c.BM % (c.AX * c.VM) == 0) & (c.CX * c.CY % c.AX == 0)),
        Constraint("columns of B", lambda p, d, c: (c.BN % (c.BX * c.VN) == 0) & (c.CX * c.CY % c.BX == 0)),
        Constraint("depth of A", lambda p, d, c: c.BK % (c.CX * c.CY // c.AX) == 0),
        Constraint("depth of B", lambda p, d, c: c.BK % (c.CX * c.CY // c.BX) == 0),
    )
    space = Space.build(parameters, rules, None, None)
    c, n = columns(space), float(rng.choice([1024, 2048, 4096]))
    tm, tn, threads = c.BM / c.CX, c.BN / c.CY, c.CX * c.CY * 1.0
    block = SimpleNamespace(
        threads=threads, shared=4.0 * c.BK * (c.SA * c.BM + c.SB * c.BN) + 1, ilp=(tm * tn) ** 0.35,
        registers=24 + tm * tn * rng.uniform(1, 1.6) + tm * c.VM**0.3 + tn * c.VN**0.3,
    )  # fmt: skip
    work = 2 * n**3 / device.flops
    narrow_m, narrow_n = (1 / np.sqrt(np.minimum(width, 4)) + 0.1 * (width == 8) for width in (c.VM, c.VN))
    compute = work * (1 + rng.uniform(0.5, 2) / np.sqrt(tm * tn) + 8 / (c.BK * tm * tn))
    # Lanes read neighbouring words where a thread's columns are strided; wide vectors make up for it.
    lanes_m = 1 + rng.uniform(0, 0.6) * ((c.SM == 0) & (tm > c.VM)) / c.VM
    lanes_n = 1 + rng.uniform(0, 0.6) * ((c.SN == 0) & (tn > c.VN)) / c.VN
    from_a = np.where(c.SA == 1, narrow_m * lanes_m, rng.uniform(0.8, 3) * narrow_m * (1 + 0.3 * (c.CX < 16)))
    from_b = np.where(c.SB == 1, narrow_n * lanes_n, rng.uniform(0.8, 3) * narrow_n * (1 + 0.3 * (c.CY < 16)))
    reads = work * rng.uniform(0.7, 2.5) * (from_a / tn + from_b / tm)
    loads_a = np.where(c.SA == 1, (1 + 0.5 * (c.AX * c.VM < 32)) * narrow_m, 1.3)
    loads_b = np.where(c.SB == 1, (1 + 0.5 * (c.BX * c.VN < 32)) * narrow_n, 1.3)
    memory = 4 * n**3 * (loads_a / c.BN + loads_b / c.BM) / device.bandwidth / rng.uniform(1.5, 5)
    waits = 1 + (c.SA + c.SB) * rng.uniform(0.02, 0.15) * 16 / c.BK * np.log2(threads / 32)
    blocks = (n / c.BM) * (n / c.BN)
    times = assembled(device, [compute * waits, memory, reads], block, blocks, rng)
    return Landscape(
        f"reshaped-{seed}", space, times * quirks(space, rng, rng.uniform(0.3, 1.5)),
        float(rng.choice([0.003, 0.01, 0.02])),
    )  # fmt: skip
