"""A roofline model of made-up GPUs, from which synthetic landscapes are made."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.declare.space import Space

Floats = NDArray[np.float64]


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
    for _ in range(rng.integers(3, 13)):
        total[conjunction(space, rng)] += 0.12 * size * rng.laplace()
    rare = 1 + 1.5 * (rng.random(len(space)) < 0.03)
    return np.exp(total + 0.03 * size * rng.standard_normal(len(space)) * rare)


def conjunction(space: Space, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Configs that meet two or three random conditions: where a compiler vectorises, or banks conflict."""
    found = np.ones(len(space), bool)
    for column in rng.choice(len(space.parameters), rng.integers(2, 4), replace=False):
        codes, width = space.codes[:, column], len(space.parameters[column].values)
        pivot = rng.integers(width)
        met = codes == pivot if width < 5 else codes >= pivot if rng.random() < 0.5 else codes <= pivot
        found &= met
    return found


def specialist(space: Space, times: Floats, switch: str, rng: np.random.Generator) -> Floats:
    """Times with the optimum on the slower side of a switch, where two more conditions are met."""
    at = [each.name for each in space.parameters].index(switch)
    codes = space.codes[:, at]
    sides = [np.nanmedian(times[codes == code]) for code in range(len(space.parameters[at].values))]
    slow = codes == int(np.argmax(sides))
    for _ in range(50):
        narrow = slow & conjunction(space, rng)
        share = narrow.mean()
        if 0.002 < share < 0.04 and np.isfinite(times[narrow]).any():
            gain = np.nanmin(times) / np.nanmin(times[narrow]) * rng.uniform(0.75, 1.0)
            return np.where(narrow, times * min(gain, 1.0), times)
    return times
