"""How configs spread a problem's work over a device's multiprocessors: features for products bound by memory.

What a multiprocessor has on its way at once decides how fast it reads; what it has to do in the longest turn
decides when all are ready; shares of a sum are written and read once more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.results.distance import Floats

#: Seconds from a load to its data, roughly, from the memory of a GPU.
LATENCY_S = 0.8e-6
#: Warps of a multiprocessor that hide what an instruction waits for the one before.
HIDING_WARPS = 16
#: Share of a thread's registers that hold values on their way.
LOADED = 0.3
#: Bytes of a register.
REGISTER_BYTES = 4
#: How the memory's rate grows with the share of multiprocessors that read: less than in proportion.
READING = 0.7


@dataclass(frozen=True)
class Spread:
    """Configs at a problem on a device.

    Attributes:
        problem: What is to be computed.
        cores: Multiprocessors of the device.
        inputs: Which dims each input has, 1 or 0, shape (inputs, dims).
        summed: Which dims are summed over, shape (dims,).
        tile: Elements of a step, shape (dims, configs).
        around: Steps along each dim, shape (dims, configs).
        blocks: Of the grid, shape (configs,), like all below.
        resident: Blocks that a multiprocessor holds at most.
        fullest: Steps of the multiprocessor that has most.
        threads: Of a block.
        shared: Bytes of shared memory of a block.
        registers: Of a thread; 0: unknown.
        arithmetic_s: Seconds of the arithmetic, were latency hidden.
        memory_s: Seconds that the memory takes at its best, a number.
        launch_s: Seconds of the shortest run, a number.
    """

    problem: Problem
    cores: int
    inputs: Floats
    summed: Floats
    tile: Floats
    around: Floats
    blocks: Floats
    resident: Floats
    fullest: Floats
    threads: Floats
    shared: Floats
    registers: Floats
    arithmetic_s: Floats
    memory_s: float
    launch_s: float


def spread_features(of: Spread) -> Floats:
    """What multiprocessors have to do, and have on their way, at once.

    Returns:
        Shape (features, configs). Logs: blocks that share a tile of the output; bytes of their sums, written
        and read once more, over the problem's; warps at once; sums of a thread, and its products; summed
        elements that the fullest multiprocessor goes through; bytes of shared memory, and registers, at once;
        seconds of arithmetic, and over those of the memory; seconds to read, over the same; how often the
        largest input is read; padding of the output's shortest and longest dim; a second estimate of the
        seconds. And blocks of the fullest multiprocessor over the mean.
    """
    size = np.array([size for _, size in of.problem.shape], dtype=float)
    item, summed = DTYPE_BYTES[of.problem.dtype], of.summed > 0
    kept = ~summed if not summed.all() else summed
    tile_elements, tiles = _product(of.tile, ~summed), _product(of.around, ~summed)
    shares = np.maximum(of.blocks / tiles, 1.0)
    depth = np.maximum(size[summed].prod() * tiles / of.blocks, 1.0)
    at_most = np.ceil(of.blocks / of.cores)
    at_once = np.minimum(of.resident, at_most)
    warps = np.maximum(np.ceil(of.threads / 32), 1) * at_once
    threads = np.maximum(of.threads, 1)

    widths = np.minimum(of.tile, size[:, None])
    loads = np.array([_product(widths, has > 0) for has in of.inputs])
    sizes = np.array([size[has > 0].prod() for has in of.inputs])
    largest = int(sizes.argmax())
    rereads = of.around.prod(axis=0) * loads[largest] / sizes[largest]
    fullest_bytes = of.fullest * loads.sum(axis=0) * item

    shared, registers = of.shared * at_once, of.registers * of.threads * at_once
    on_the_way = np.maximum(np.maximum(of.shared, LOADED * REGISTER_BYTES * of.registers * of.threads), 1.0)
    read_s = fullest_bytes * LATENCY_S / (on_the_way * at_once)
    arithmetic_s = np.maximum(of.arithmetic_s * np.maximum(HIDING_WARPS / warps, 1.0), 1e-12)
    reading = np.minimum(of.blocks / of.cores, 1.0) ** READING
    estimate_s = np.maximum(np.maximum(arithmetic_s, read_s), of.memory_s / reading) + of.launch_s

    order = np.flatnonzero(kept)[np.argsort(size[kept], kind="stable")]
    short, long = order[0], order[-1]
    padded = of.around * of.tile / size[:, None]
    sums_bytes = 2 * item * tile_elements * tiles * (shares - 1)
    logs = np.log(np.array([
        shares, (sums_bytes + 1) / of.problem.work.bytes, warps, tile_elements / threads,
        depth * tile_elements / threads, depth * at_most, shared + 1, registers + 1, arithmetic_s,
        arithmetic_s / of.memory_s, read_s / of.memory_s, rereads, padded[short], padded[long], estimate_s,
    ]))  # fmt: skip
    return np.vstack([logs, at_most * of.cores / of.blocks])


def _product(values: Floats, some: NDArray[np.bool_]) -> Floats:
    """Products over some of the dims, shape (configs,)."""
    found: Floats = values[some].prod(axis=0)
    return found
