"""What a config does at a problem, computed from declarations: the model's features.

Nothing here knows an operation by name. A kernel's launch rule tells how many elements of each dim a block
takes; its ``tiles`` tell what the launch rule cannot: what blocks take that stay on the device, and the tile of
a CPU kernel. Which tensors a dim belongs to, and which dims are summed over, follows from the
tensors' sizes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tuner.declare.hardware import SCHEDULERS, DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.launch import Launch
from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.declare.space import Config
from tuner.results.distance import Floats

#: A dim this long is divisible by all usual tiles.
LONG_DIM = 15 << 16
#: Shared memory that the driver takes of each block (CUDA C++ Programming Guide, compute capability 8 on).
DRIVER_SHARED_BYTES = 1024
#: log2 of the widest alignment that is told apart, in elements: of tensors' rows, and of dims.
ALIGNED, ALIGNED_DIM = 6, 4
#: log2 of a dim, of flops a byte, and of flops, beyond which more of it changes little.
LONG, COMPUTE_BOUND, SMALL_WORK = 9.0, 6.0, 28.0
#: The L2's rate over the memory's, roughly: enough to tell which of the two limits.
L2_OVER_MEMORY = 2.0
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
#: Sides of tiles that the library may use: it does not tell.
LIBRARY_TILES = (32, 64, 128, 256)


@dataclass(frozen=True)
class DeviceRates:
    """What the device reached in a survey.

    Attributes:
        flops_per_s: Arithmetic.
        bytes_per_s: Memory.
        launch_s: The shortest run.
    """

    flops_per_s: float
    bytes_per_s: float
    launch_s: float

    def roofline_s(self, problem: Problem) -> float:
        """Seconds that the problem takes at these limits, one after the other."""
        work = problem.work
        return work.flops / self.flops_per_s + work.bytes / self.bytes_per_s + self.launch_s


def limits(problems: Sequence[Problem], fastest_s: Floats) -> DeviceRates:
    """What a device reached, by the fastest times; rates are those that one problem in a hundred exceeds.

    Args:
        problems: The problems.
        fastest_s: Seconds, shape (problems,).
    """
    work = np.array([(problem.work.flops, problem.work.bytes) for problem in problems])
    rates = np.quantile(work / fastest_s[:, None], 0.99, axis=0)
    return DeviceRates(max(float(rates[0]), 1.0), max(float(rates[1]), 1.0), float(fastest_s.min()))


@dataclass(frozen=True)
class Traits:
    """How configs lay out their work for problems of one dtype and layout.

    Attributes:
        values: Shape (2 * dims + 5, configs). Per dim the elements that a block takes, infinite if blocks are
            not laid out along it; per dim the elements that it takes at each step. Then blocks for each tile
            (shares of a sum), blocks that stay (0: as many as there are tiles; more only where a block of
            each span is more), threads of a block, its bytes of shared memory, and registers of a thread (0:
            unknown).
        inputs: Which dims each input has, 1 or 0, shape (inputs, dims).
        summed: Which dims are summed over, being in no output, shape (dims,).
    """

    values: Floats
    inputs: Floats
    summed: Floats

    def some(self, configs: Sequence[int] | NDArray[np.int64]) -> Traits:
        """The traits of some of the configs, by their numbers."""
        return Traits(self.values[:, configs], self.inputs, self.summed)

    def row(self, number: int) -> Floats:
        """One of the last five, by its number."""
        return cast(Floats, self.values[number - 5])

    @property
    def spans(self) -> Floats:
        """Elements of a block, shape (dims, configs)."""
        return self.values[: (len(self.values) - 5) // 2]

    @property
    def steps(self) -> Floats:
        """Elements of a step, shape (dims, configs)."""
        return self.values[(len(self.values) - 5) // 2 : -5]


def traits(
    kernels: Mapping[str, Kernel], configs: Sequence[tuple[str, Config]], like: Problem,
    registers: Floats | None = None,
) -> Traits:  # fmt: skip
    """The traits of configs.

    Args:
        kernels: By name. A config of a kernel that is missing has none: infinite spans.
        configs: Kernel and config.
        like: Gives operation, dtype and layout.
        registers: Per config; 0 if unknown.
    """
    dims = list(like.dims)

    @functools.cache
    def probe(size: int, ones: frozenset[str] = frozenset()) -> Problem:
        """A problem some of whose dims are 1, and the others of a size."""
        return _with_parts(like, {dim: 1 if dim in ones else size for dim in dims})

    values = np.array([_traits_of(kernels.get(name), config, dims, probe) for name, config in configs]).T
    if registers is not None:
        values[-1] = registers
    return Traits(values, *incidence(like))


#: Makes problems of one dtype and layout, at which launch rules and tiles show what a block takes: those whose
#: named dims are 1, and the others of a size.
_Probe = Callable[..., Problem]
_Launched = Callable[..., Launch]


def _traits_of(kernel: Kernel | None, config: Config, dims: Sequence[str], probe: _Probe) -> list[float]:
    spans, rest = dict.fromkeys(dims, math.inf), [1.0, 0.0, 0.0, 0.0, 0.0]
    tiles: dict[str, float] = {}
    try:
        if kernel is not None and kernel.tiles is not None:
            # Of the dims for which they are the same at any shape.
            long, half = (kernel.tiles(probe(size), config) for size in (LONG_DIM, LONG_DIM // 2))
            tiles = {dim: float(long[dim]) for dim in long if long[dim] == half.get(dim)}
        if kernel is not None and (launch := kernel.launch) is not None:

            def launched(*where: Any) -> Launch:
                return launch(probe(*where), config)

            spans, rest = _probed(launched, dims, frozenset())
            stays = _staying(launched, dims, [dim for dim in tiles if math.isinf(spans[dim])])
            if stays:  # along these dims; the others' spans show where these ask for one block
                spans, rest = _probed(launched, dims, frozenset(stays))
                rest[1] = max(stays.values())
    except Exception:  # rules of anybody's, at dims that they may not be made for
        spans, tiles = dict.fromkeys(dims, math.inf), {}
    steps = {dim: tiles.get(dim, spans[dim] if math.isfinite(spans[dim]) else 1.0) for dim in dims}
    if all(map(math.isinf, spans.values())) and rest[0] > 1 and not rest[1]:  # as many blocks at any shape
        rest[0], rest[1] = 1.0, rest[0]
    return [*spans.values(), *steps.values(), *rest]


def _probed(
    launched: _Launched, dims: Sequence[str], ones: frozenset[str]
) -> tuple[dict[str, float], list[float]]:
    """Elements of each dim that a block takes; blocks for each tile, 0, threads, shared bytes, 0.

    Dims of `ones` are 1 in all that is looked at.
    """
    launch = launched(LONG_DIM, ones)
    others = blocks = float(math.prod(launch.grid))
    spans = dict.fromkeys(dims, math.inf)
    for dim in (dim for dim in dims if dim not in ones):
        ratio = blocks / math.prod(launched(LONG_DIM, ones | {dim}).grid)
        spans[dim] = LONG_DIM / ratio if ratio > 1 else math.inf
        others /= ratio
    return spans, [others, 0.0, float(math.prod(launch.block)), float(launch.shared_bytes), 0.0]


def _staying(launched: _Launched, dims: Sequence[str], of: Sequence[str]) -> dict[str, float]:
    """Of some dims, those along which as many blocks stay however long the dim is, and how many."""
    staying = {}
    for dim in of:
        grids = [launched(size, frozenset(dims) - {dim}).grid for size in (LONG_DIM, LONG_DIM // 2)]
        long, half = (float(math.prod(grid)) for grid in grids)
        if long == half > 1:
            staying[dim] = long
    return staying


def incidence(like: Problem) -> tuple[Floats, Floats]:
    """Which dims inputs have, and which are summed over: those that change a tensor's size, or no output's."""
    ones = dict.fromkeys(like.dims, 1)

    def grown(dim: str) -> list[tuple[bool, bool]]:
        longer = _with_parts(like, {**ones, dim: 2}).tensors
        pairs = zip(_with_parts(like, ones).tensors, longer, strict=True)
        return [(after.output, after.bytes > before.bytes) for before, after in pairs]

    table = [grown(dim) for dim in ones]
    inputs = [[longer for output, longer in column if not output] for column in table]
    summed = [not any(longer for output, longer in column if output) for column in table]
    return np.array(inputs, dtype=float).T, np.array(summed, dtype=float)


def _with_parts(like: Problem, sizes: Mapping[str, int]) -> Problem:
    """A problem by its dims' sizes, those of dims with parts (`Operation.parts`) being of one part."""
    whole = {dim: sizes[dim] * sizes[count] for dim, count in like.operation.parts.items()}
    return like.operation.problem({**sizes, **whole}, like.dtype, like.layout)


def _part_sizes(problem: Problem) -> Floats:
    """The dims' sizes, those of dims with parts being the mean of parts that have any, shape (dims, 1)."""
    sizes = {dim: float(size) for dim, size in problem.shape}
    for dim, count in problem.operation.parts.items():
        sizes[count] = min(sizes[count], sizes[dim])
        sizes[dim] /= sizes[count]
    return np.array(list(sizes.values()))[:, None]


def config_features(
    problem: Problem, device: DeviceInfo, of: Traits, known: DeviceRates
) -> tuple[Floats, Floats]:
    """What configs do at a problem.

    Args:
        problem: What is to be computed.
        device: Its limits.
        of: The configs' traits for the problem's dtype and layout.
        known: What the device can do.

    Returns:
        Features, shape (features, configs): blocks, waves, balance, padding, arithmetic, traffic, chains, and
        how work spreads over multiprocessors. Later versions add theirs at the end, so that models of earlier
        ones find those that they know. And the log of a first estimate of the seconds, shape (configs,).
    """
    sizes = _part_sizes(problem)
    taken = np.where(np.isinf(of.steps), sizes, of.steps)
    item, work, inputs, summed = DTYPE_BYTES[problem.dtype], problem.work, of.inputs, of.summed
    others, stays, threads, shared, registers = (of.row(number) for number in range(5))
    around = np.ceil(sizes / taken)
    padding = np.log(around * taken / sizes)
    steps = around.prod(axis=0)
    units = np.maximum(np.ceil(sizes / of.spans), 1).prod(axis=0) * others
    blocks = np.where(stays > 0, np.maximum(units, np.minimum(stays, steps)), units)
    chain = np.ceil(steps / blocks)
    cores = max(device.sm_count, 1)
    at_most = np.ceil(blocks / cores)
    fullest = at_most * chain
    balance = fullest * cores / steps
    padded = padding.sum(axis=0)
    widths = np.minimum(taken, sizes)
    loads = np.array([np.where(has[:, None] > 0, widths, 1.0).prod(axis=0) for has in inputs])
    read = loads.sum(axis=0)
    traffic = steps * read * item
    arithmetic_s = work.flops * np.exp(padded) * balance / known.flops_per_s
    traffic_s = traffic / (L2_OVER_MEMORY * known.bytes_per_s) * np.maximum(balance / np.exp(padded), 1.0)
    memory_s = work.bytes / known.bytes_per_s
    warps = np.maximum(np.ceil(threads / 32), 1)
    resident = resident_blocks(device, of)
    slots = cores * resident
    waves = blocks / slots
    estimate = np.log(np.maximum(np.maximum(arithmetic_s, traffic_s), memory_s) + known.launch_s)
    logs = np.log(np.array([
        blocks, waves, chain, np.ceil(waves) * chain, steps, np.maximum(arithmetic_s, 1e-12), traffic_s,
        np.minimum(blocks, slots) * warps, chain * (summed @ taken + 1e-9), work.flops / traffic + 1e-9,
    ]))  # fmt: skip
    whole = np.array([np.ceil(waves) / waves, balance, padded, summed @ padding, (1 - summed) @ padding])
    memory = logs[5:7] - math.log(memory_s)

    # How work spreads: what a multiprocessor has on its way at once decides how fast it reads; what it has to
    # do in the longest turn when all are ready. Shares of a sum are written and read once more.
    within = summed > 0
    tile_elements, tiles = taken[~within].prod(axis=0), around[~within].prod(axis=0)
    shares = np.maximum(blocks / tiles, 1.0)
    depth = np.maximum(sizes[within].prod() * tiles / blocks, 1.0)
    at_once = np.minimum(resident, at_most)
    warps_at_once = warps * at_once
    input_sizes = np.array([sizes[has > 0].prod() for has in inputs])
    largest = int(input_sizes.argmax())
    rereads = steps * loads[largest] / input_sizes[largest]
    of_threads = REGISTER_BYTES * registers * threads
    on_the_way = np.maximum(np.maximum(shared, LOADED * of_threads), 1.0)
    read_s = fullest * read * item * LATENCY_S / (on_the_way * at_once)
    hidden_s = np.maximum(arithmetic_s * np.maximum(HIDING_WARPS / warps_at_once, 1.0), 1e-12)
    reading = np.minimum(blocks / cores, 1.0) ** READING
    estimate_s = np.maximum(np.maximum(hidden_s, read_s), memory_s / reading) + known.launch_s
    kept = ~within if not within.all() else within
    order = np.flatnonzero(kept)[np.argsort(sizes[kept, 0], kind="stable")]
    over_size = around * taken / sizes
    sums_bytes = 2 * item * tile_elements * tiles * (shares - 1)
    lanes = np.maximum(threads, 1)
    spread = np.log(np.array([
        shares, (sums_bytes + 1) / work.bytes, warps_at_once, tile_elements / lanes,
        depth * tile_elements / lanes, depth * at_most, shared * at_once + 1,
        registers * threads * at_once + 1, hidden_s, hidden_s / memory_s, read_s / memory_s, rereads,
        over_size[order[0]], over_size[order[-1]], estimate_s,
    ]))  # fmt: skip
    return np.concatenate([
        logs, whole, memory, np.log(sizes / taken), estimate[None], spread, [at_most * cores / blocks]
    ]), estimate  # fmt: skip


def resident_blocks(device: DeviceInfo, of: Traits) -> Floats:
    """Blocks that a multiprocessor holds, by threads, shared memory and, if they are known, registers."""
    threads, shared, registers = np.maximum(of.row(2), 1), of.row(3), of.row(4)
    if not device.max_threads_per_sm:
        return np.ones_like(threads)
    fitting = device.max_threads_per_sm // threads
    fitting = np.minimum(fitting, device.shared_bytes_per_sm // (shared + DRIVER_SHARED_BYTES))
    warps = np.ceil(np.ceil(threads / 32) / SCHEDULERS) * SCHEDULERS
    taken = np.ceil(registers / 8) * 8 * 32 * warps
    fitting = np.where(
        registers > 0, np.minimum(fitting, device.registers_per_block // np.maximum(taken, 1)), fitting
    )
    return cast(Floats, np.maximum(fitting, 1.0))


def problem_features(problem: Problem, known: DeviceRates) -> Floats:
    """What a problem is like, whatever the config: dims, work, alignment, layout, tensors.

    Of lengths, work and flops per byte there is what they are, and what they are up to a limit.

    Returns:
        Shape (features,).
    """
    features: list[float] = []
    for _, size in problem.shape:
        length = math.log2(size)
        features += [length, min(length, LONG), float(min((size & -size).bit_length() - 1, ALIGNED_DIM))]
    work = math.log2(1 + (problem.work.flops or problem.work.bytes))
    intensity = math.log2(1 + problem.work.flops / max(problem.work.bytes, 1.0))
    dims, tensors = [math.log(size) for _, size in problem.shape], problem.tensors
    longest = max(map(len, problem.operation.layouts), default=0)
    pairs = [dims[i] + sign * dims[j] for i in range(len(dims)) for j in range(i) for sign in (1, -1)]
    rows = [tensor.shape[-1] for tensor in tensors]
    return np.array([
        *features, work, min(work, SMALL_WORK), intensity, min(intensity, COMPUTE_BOUND),
        *(float(ord(letter)) for letter in problem.layout.ljust(longest)), *pairs, min(dims), max(dims),
        DTYPE_BYTES[problem.dtype], *(math.log(tensor.bytes) for tensor in tensors),
        *(float(min((row & -row).bit_length() - 1, ALIGNED)) for row in rows),
        math.log(known.roofline_s(problem)),
    ])  # fmt: skip


def library_features(
    problem: Problem, device: DeviceInfo, known: DeviceRates, shared: Floats | None = None
) -> Floats:
    """`problem_features`, and how tiles of usual sizes would fill the device with the first output.

    Args:
        problem: What is to be computed.
        device: Its number of multiprocessors or cores.
        known: What the device can do.
        shared: `problem_features`, if they are known already.
    """
    output = problem.outputs[0].shape
    rows, columns, cores = math.prod(output[:-1]), output[-1], max(device.sm_count, device.cores, 1)
    filled = []
    for side in LIBRARY_TILES:
        for height, width in ((side, side), (side, 2 * side)):
            waves = math.ceil(rows / height) * math.ceil(columns / width) / cores
            full = math.ceil(waves) * cores * height * width
            filled += [math.log(waves), math.ceil(waves) / waves, math.log(full / (rows * columns))]
    return np.concatenate([problem_features(problem, known) if shared is None else shared, filled])


def fixed_features(parameters: Floats, device: DeviceInfo, of: Traits) -> Floats:
    """Features of configs that hold at any dims: parameters, threads, shared memory, registers, occupancy."""
    resident = resident_blocks(device, of)
    return np.vstack([parameters, of.row(2), of.row(3), of.row(4), resident, resident * of.row(2)])
