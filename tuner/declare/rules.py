"""Rules that kernels share, each with its sentence, and arithmetic for writing rules.

A declaration takes common rules from here and writes only its own. Quantities, such as a block's threads, are
functions of problem and config; like rules, they work on numbers and on NumPy arrays.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tuner.declare.epilogue import BY_BLOCK, BY_LINE, BY_TENSOR, FLOAT8_DTYPES, SCALE_BLOCK, Epilogue
from tuner.declare.problem import DTYPE_BYTES
from tuner.declare.space import Constraint, Parameter, Value, choice

#: ``(problem, config)`` -> a number, or an array of one for each config.
Quantity = Callable[[Any, Any], Any]

#: Makes a rule that leaves out configs not worth trying; a config that breaks it still gives correct results.
for_speed = partial(Constraint, for_speed=True)

#: Bytes of the widest access to memory, and of the widest asynchronous copy (CUDA C++ Programming Guide).
WIDEST_ACCESS_BYTES = 16
#: Static shared memory that a block may have (CUDA C++ Programming Guide, compute capabilities).
STATIC_SHARED_BYTES = 48 << 10
#: Terms of 8 bits whose sum may stay in tensor cores: of 2048 the largest error was 0.72 of the tolerance, of
#: 4096 1.03, of 8192 1.75 (H200, 512 x 512 results in float32, 2026-11-28).
MOST_KEPT_TERMS = 2048
#: Compute capability, times ten, from which asynchronous copies exist.
ASYNCHRONOUS_COPIES_SINCE = 80
#: Values for the number of CPU threads. They include core counts that are no power of two.
THREAD_COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256)


# --- Arithmetic that works on numbers and on arrays ---------------------------------------------------------


def select(condition: Any, yes: Any, no: Any) -> Any:
    """Returns `yes` if a condition holds, else `no`; element by element for arrays.

    Args:
        condition: A truth value, or an array of them.
        yes: A number or an array.
        no: A number or an array.
    """
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def smaller(one: Any, other: Any) -> Any:
    """Returns the smaller of two numbers, or of each pair of elements."""
    return select(one <= other, one, other)


def larger(one: Any, other: Any) -> Any:
    """Returns the larger of two numbers, or of each pair of elements."""
    return select(one >= other, one, other)


def access_elements(p: Any, c: Any) -> Any:
    """Returns the elements of an access of ACCESS_BYTES; at least 1, even for illegal configs."""
    return -(-c.ACCESS_BYTES // DTYPE_BYTES[p.dtype])


# --- Threads, shared memory and registers of a CUDA device --------------------------------------------------


def threads_fit(threads: Quantity, least_warps: int = 0) -> Constraint:
    """A block has no more threads than the device allows.

    Args:
        threads: Threads of a block.
        least_warps: Smallest number of warps of a block.
    """
    least = f"at least {least_warps} warps and " if least_warps else ""
    return Constraint(
        f"a block has {least}no more threads than the device allows",
        lambda p, d, c: (
            (threads(p, c) >= least_warps * d.warp_size) & (threads(p, c) <= d.max_threads_per_block)
        ),
    )


def shared_fits(what: str, shared_bytes: Quantity) -> Constraint:
    """A block's shared memory is within the device's limit.

    Args:
        what: The start of the sentence: its contents, in the plural.
        shared_bytes: Bytes of it.
    """
    return Constraint(
        f"{what} fit into the shared memory that a block may have",
        lambda p, d, c: shared_bytes(p, c) <= d.shared_bytes_per_block,
    )


def static_shared_fits(what: str, shared_bytes: Quantity) -> Constraint:
    """A static array is within the shared memory that needs no opt-in.

    Args:
        what: The start of the sentence: its contents, in the singular.
        shared_bytes: Bytes of it.
    """
    return Constraint(
        f"{what} fits into static shared memory", lambda p, d, c: shared_bytes(p, c) <= STATIC_SHARED_BYTES
    )


def blocks_fit(threads: Quantity, shared_bytes: Quantity) -> Constraint:
    """BLOCKS_PER_SM blocks can be resident.

    The device reserves some shared memory for each block: a multiprocessor's total minus the most that one
    block may have.

    Args:
        threads: Threads of a block.
        shared_bytes: Shared memory of a block, in bytes.
    """

    def fit(p: Any, d: Any, c: Any) -> Any:
        kept = d.shared_bytes_per_sm - d.shared_bytes_per_block
        return (threads(p, c) * c.BLOCKS_PER_SM <= d.max_threads_per_sm) & (
            (shared_bytes(p, c) + kept) * c.BLOCKS_PER_SM <= d.shared_bytes_per_sm
        )

    return Constraint("BLOCKS_PER_SM blocks fit into a multiprocessor's threads and shared memory", fit)


def registers_fit(what: str, registers: Quantity, threads: Quantity) -> Constraint:
    """A thread's registers fit if BLOCKS_PER_SM blocks are resident.

    Args:
        what: The start of the sentence: their contents, in the plural.
        registers: Registers of a thread, estimated.
        threads: Threads of a block.
    """
    return Constraint(
        f"{what} fit into the registers that BLOCKS_PER_SM blocks leave",
        lambda p, d, c: (
            (registers(p, c) <= d.registers_left(threads(p, c), c.BLOCKS_PER_SM))
            & (registers(p, c) <= d.registers_per_thread)
        ),
    )


def block_registers_fit(what: str, registers: Quantity, threads: Quantity) -> Constraint:
    """A thread's registers fit if one block is resident.

    Args:
        what: The start of the sentence: their contents, in the plural.
        registers: Registers of a thread, estimated.
        threads: Threads of a block.
    """
    return Constraint(
        f"{what} fit into the registers of a block",
        lambda p, d, c: (
            (registers(p, c) * threads(p, c) <= d.registers_per_block)
            & (registers(p, c) <= d.registers_per_thread)
        ),
    )


def has_wgmma() -> Constraint:
    """The device multiplies by warpgroups, from boxes that tensor maps fetch."""
    return Constraint(
        "the device has wgmma and tensor maps as sm_90 has them (H100, H200, GH200)",
        lambda p, d, c: d.compute_capability == 90,
    )


# --- Accesses to memory -------------------------------------------------------------------------------------


def sums_of_8_bits(terms: Quantity) -> Constraint:
    """Sums of products of 8-bit numbers leave tensor cores before they have lost too much.

    Args:
        terms: So many are added up at the most before float32 sums take them over.
    """
    return Constraint(
        f"tensor cores add up at most {MOST_KEPT_TERMS} terms of 8 bits: more lose too much",
        lambda p, d, c: terms(p, c) <= MOST_KEPT_TERMS,
    )


def asynchronous_copies(copied: str) -> Constraint:
    """The device has cp.async.

    Args:
        copied: The parameter that sets how much is copied this way; if it is 0, any device will do.
    """
    return Constraint(
        "asynchronous copies need compute capability 8.0",
        lambda p, d, c: (getattr(c, copied) == 0) | (d.compute_capability >= ASYNCHRONOUS_COPIES_SINCE),
    )


def copy_at_most_16_bytes(*parameters: str) -> Constraint:
    """The widest access moves at most 16 bytes.

    Args:
        parameters: Parameters that set the elements of a copy.
    """

    def fit(p: Any, d: Any, c: Any) -> Any:
        fits: Any = True
        for name in parameters:
            fits = fits & (DTYPE_BYTES[p.dtype] * getattr(c, name) <= WIDEST_ACCESS_BYTES)
        return fits

    return Constraint(f"a copy of {' or '.join(parameters)} elements moves 16 bytes at most", fit)


def whole_accesses() -> Constraint:
    """Accesses of VECTOR elements are aligned in every row of the first two inputs."""
    return Constraint(
        "the rows of all A and B are divisible by VECTOR",
        lambda p, d, c: (p.inputs[0].shape[-1] % c.VECTOR == 0) & (p.inputs[1].shape[-1] % c.VECTOR == 0),
    )


def access_holds_an_element() -> Constraint:
    """An access of ACCESS_BYTES is no narrower than an element."""
    return Constraint(
        "an access of ACCESS_BYTES is of one element or more",
        lambda p, d, c: DTYPE_BYTES[p.dtype] <= c.ACCESS_BYTES,
    )


# --- Products of 16-bit numbers by warps on tensor cores (kernels/bmm/cuda/mma_tile.cuh) ---------------------


def mma_threads(p: Any, c: Any) -> Any:
    """Returns the threads of a block."""
    return 32 * c.WARPS_M * c.WARPS_N


def mma_shared_bytes(p: Any, c: Any) -> Any:
    """Returns the bytes of STAGES tiles of both operands."""
    return 2 * c.STAGES * c.BK * (c.BM + c.BN)


def _mma_registers(p: Any, c: Any) -> Any:
    """A warp's sums, the fragments of 16 terms, and 40 for addresses and loop."""
    down, across = c.BM // c.WARPS_M, c.BN // c.WARPS_N
    return down * across // 32 + (down + across) // 4 + 40


def mma_parameters() -> tuple[Parameter, ...]:
    """What a block's tile, its warps, stages and copies are."""
    return (
        choice("BM", 16, 32, 64, 128, 256),
        choice("BN", 32, 64, 128, 256),
        choice("BK", 32, 64, 128),
        choice("WARPS_M", 1, 2, 4),
        choice("WARPS_N", 1, 2, 4, 8),
        choice("STAGES", 2, 3, 4, 5, 6, 8),
        choice("VECTOR", 1, 2, 4, 8),
    )


def mma_rules() -> tuple[Constraint, ...]:
    """Tiles that warps share, and copy ahead."""
    return (
        Constraint(
            "mma.sync of 16 terms and copies past registers need compute capability 8.0",
            lambda p, d, c: d.compute_capability >= ASYNCHRONOUS_COPIES_SINCE,
        ),
        whole_accesses(),
        for_speed(
            "elements are copied one by one for small tiles alone",
            lambda p, d, c: (c.VECTOR > 1) | ((c.BM * c.BN <= 4096) & (c.BK == 32)),
        ),
        for_speed(
            "a block has two to sixteen warps",
            lambda p, d, c: (mma_threads(p, c) >= 64) & (mma_threads(p, c) <= 512),
        ),
        Constraint(
            "a warp's tile is made of pieces of 16 x 16",
            lambda p, d, c: (c.BM % (16 * c.WARPS_M) == 0) & (c.BN % (16 * c.WARPS_N) == 0),
        ),
        shared_fits("stages of both tiles", mma_shared_bytes),
        block_registers_fit("sums and fragments", _mma_registers, mma_threads),
        for_speed(
            "no more stages than K has, or two",
            lambda p, d, c: (c.STAGES == 2) | (p.k > (c.STAGES - 1) * c.BK),
        ),
        below_multiple("a tile is less than twice as wide as B", lambda p, c: c.BN, 32, lambda p, c: p.n),
    )


def mma_start(
    tile: tuple[int, int, int], warps: tuple[int, int], stages: int, vector: int = 8
) -> dict[str, int]:
    """A config: BM, BN, BK; WARPS_M, WARPS_N; STAGES; VECTOR."""
    names = "BM", "BN", "BK", "WARPS_M", "WARPS_N", "STAGES", "VECTOR"
    return dict(zip(names, (*tile, *warps, stages, vector), strict=True))


# --- Tiles on tensor cores of sm_90 (kernels/grouped/cuda/wgmma_tiles.cuh) -----------------------------------

#: Bytes of a place's terms in a row or column; columns (rows) of a box, where they are contiguous.
PLACE_BYTES, BOX_COLUMNS = 128, 64


def wgmma_parameters() -> tuple[Parameter, ...]:
    """A block's tile, its warpgroups and places, and how many blocks stay: as many as an H100 has, or none."""
    return (
        choice("BM", 8, 16, 32, 64, 128, 192, 256),
        choice("BN", 64, 128, 192, 256),
        choice("CONSUMERS", 1, 2, 3),
        choice("STAGES", 2, 3, 4, 5, 6, 8, 10, 16),
        choice("BLOCKS", 132, 114, 0),
        choice("GROUP", 4, 8, 16),
        choice("ORDER", "rows", "snake", "hilbert"),
        choice("STORE", "tma", "registers"),
    )


def wgmma_terms(p: Any) -> int:
    """Returns the terms of a place."""
    return PLACE_BYTES // DTYPE_BYTES[p.dtype]


def wgmma_shared_bytes(p: Any, c: Any) -> Any:
    """Returns the bytes of STAGES places of both tiles, from a multiple of 1024 on, and of warps' sheets."""
    sheets = select(c.STORE == "tma", 8 * c.CONSUMERS * 16 * PLACE_BYTES, 0)
    return 1024 + PLACE_BYTES * c.STAGES * (c.BM + c.BN) + sheets


def wgmma_box(p: Any, across: bool, lines: int) -> tuple[int, int, int]:
    """A box of a stack's matrix: so many rows or columns, or BOX_COLUMNS where they are contiguous."""
    return (1, wgmma_terms(p), BOX_COLUMNS) if across else (1, lines, wgmma_terms(p))


def _wgmma_registers(p: Any, c: Any) -> Any:
    """Sums of a consumer's thread, of 8 bits those in the tensor cores, too, and 40 more."""
    return larger(c.BM // c.CONSUMERS, 64) * c.BN // 128 * (2 if DTYPE_BYTES[p.dtype] == 1 else 1) + 40


def wgmma_rules(rows: Quantity, times: int = 2) -> tuple[Constraint, ...]:
    """Tiles that warpgroups share, and tensor maps fetch.

    Args:
        rows: Rows of a usual matrix A.
        times: A tile has less than so many times as many.
    """
    return (
        has_wgmma(),
        Constraint(
            "stored rows of A and B have a multiple of 16 bytes: tensor maps take no others",
            lambda p, d, c: (
                (p.inputs[0].shape[-1] * DTYPE_BYTES[p.dtype] % 16 == 0)
                & (p.inputs[1].shape[-1] * DTYPE_BYTES[p.dtype] % 16 == 0)
            ),
        ),
        Constraint(
            "consumers have 64 rows each, or multiples; one alone has fewer if terms of A are neighbours",
            lambda p, d, c: (
                (c.BM % (64 * c.CONSUMERS) == 0) | ((c.BM < 64) & (c.CONSUMERS == 1) & (p.layout[0] == "n"))
            ),
        ),
        for_speed("fewer than 64 rows are for such A", lambda p, d, c: (c.BM >= 64) | (rows(p, c) < 64)),
        Constraint(
            "the sums of a consumer's thread fit its registers; one alone takes none of the producer's",
            lambda p, d, c: (
                _wgmma_registers(p, c) <= select(c.CONSUMERS == 1, 255, select(c.CONSUMERS == 2, 232, 160))
            ),
        ),
        for_speed(
            "as many blocks stay as the device has multiprocessors, or a tile each",
            lambda p, d, c: (c.BLOCKS == 0) | ((d.sm_count >= c.BLOCKS) & (d.sm_count - c.BLOCKS < 18)),
        ),
        shared_fits("places of both tiles", wgmma_shared_bytes),
        for_speed(
            "places take half of what a block's shared memory holds, or all of K",
            lambda p, d, c: (
                (2 * wgmma_shared_bytes(p, c) >= d.shared_bytes_per_block) | (p.k <= c.STAGES * wgmma_terms(p))
            ),
        ),
        Constraint(
            "C is stored through a tensor map if it has 16 bits, and rows of a multiple of 8 elements",
            lambda p, d, c: (
                (c.STORE == "registers") | ((p.n % 8 == 0) & (DTYPE_BYTES[p.outputs[0].dtype] == 2))
            ),
        ),
        for_speed(
            "C is stored in boxes where it may be: each thread's pairs fill half of a sector",
            lambda p, d, c: (c.STORE == "tma") | (p.n % 8 > 0) | (DTYPE_BYTES[p.outputs[0].dtype] != 2),
        ),
        below_multiple(
            "a tile has not many more rows than A, or 64", lambda p, c: larger(c.BM, 64), 64, rows, times
        ),
        below_multiple(
            "a tile is less than twice as wide as C, or 64", lambda p, c: c.BN, 64, lambda p, c: p.n
        ),
    )


def wgmma_starts() -> tuple[dict[str, Value], ...]:
    """Configs from those for large products on."""
    large: dict[str, Value] = {
        "BM": 128, "BN": 256, "CONSUMERS": 2, "STAGES": 4, "BLOCKS": 132, "GROUP": 8,
        "ORDER": "rows", "STORE": "tma",
    }  # fmt: skip
    low = large | {"BM": 64, "CONSUMERS": 1}
    few: dict[str, Value] = low | {"BM": 8, "BN": 64, "STAGES": 16, "BLOCKS": 0}
    starts = (
        large, large | {"ORDER": "hilbert"}, large | {"BN": 128, "STAGES": 6}, large | {"BM": 256, "BN": 128},
        large | {"BM": 192, "BN": 128, "CONSUMERS": 3, "STAGES": 5}, low | {"STAGES": 5},
        low | {"BN": 128, "STAGES": 8}, large | {"BLOCKS": 0}, low | {"BN": 64, "STAGES": 10, "BLOCKS": 0},
        large | {"BN": 64, "STAGES": 8}, large | {"BN": 64, "STAGES": 2, "BLOCKS": 0},
        low | {"BN": 64, "STAGES": 2, "BLOCKS": 0}, few, few | {"BM": 16},
        few | {"BN": 128, "STAGES": 10, "BLOCKS": 132}, few | {"BM": 16, "BN": 128, "STAGES": 10},
    )  # fmt: skip
    return (*starts, *(starts[at] | {"STORE": "registers"} for at in (0, 2, 6, 8, 12)))


# --- Numbers of 8 bits in stacks, with their scales -----------------------------------------------------------


def scales_of_stacks(scale: str, rows: Any, n: Any, k: Any, matrices: Any) -> dict[str, tuple[Any, ...]]:
    """Shapes of the scales of rows and of matrices B, each N x K, as stored; of blocks those of rows lie by k.

    Args:
        scale: One of `SCALES`, or empty for none. For `BY_TENSOR` each matrix has its own.
        rows: Rows of all A.
        n: Columns of a product.
        k: Terms of a sum.
        matrices: Number of B.
    """
    blocks, across = -(-k // SCALE_BLOCK), -(-n // SCALE_BLOCK)
    shapes: dict[str, tuple[Any, Any]] = {
        BY_TENSOR: ((1,), (matrices,)), BY_LINE: ((rows,), (matrices, n)),
        BY_BLOCK: ((blocks, rows), (matrices, across, blocks)),
    }  # fmt: skip
    return dict(zip(("scale_a", "scale_b"), shapes[scale], strict=True)) if scale else {}


def draws_of_scales(name: str, k: int, generator: Any, count: int) -> Any:
    """Numbers for scales, with which sums of normal numbers are of size 1; None for other inputs."""
    scales: Any = generator.uniform(0.75, 1.25, count) if name in ("scale_a", "scale_b") else None
    return scales / k**0.5 if name == "scale_a" else scales


def values_of_stacks(
    xp: Any, p: Any, arrays: Mapping[str, Any], rows: slice, matrix: int, dtype: str
) -> tuple[Any, Any]:
    """Some rows of A, and a matrix B, as stored, in another dtype; those of 8 bits are times their scales.

    Args:
        xp: numpy or cupy.
        p: The problem.
        arrays: By name; ``a`` of shape (rows, K), ``b`` of shape (matrices, N, K), scales as of
            `scales_of_stacks`.
        rows: The rows.
        matrix: Number of the matrix.
        dtype: Of what is returned.
    """
    (a, b), scale = (arrays["a"][rows], arrays["b"][matrix]), Epilogue.read(p.epilogue).scale
    if p.dtype not in FLOAT8_DTYPES:
        return a.astype(dtype, copy=False), b.astype(dtype, copy=False)
    known = xp.asarray(np.arange(256, dtype="uint8").view(p.dtype).astype(dtype))
    a, b = (known[numbers.view("uint8").astype("int32")] for numbers in (a, b))
    if not scale:
        return a, b
    of_a, of_b = arrays["scale_a"].astype(dtype), arrays["scale_b"][matrix].astype(dtype)
    if scale == BY_BLOCK:
        of_a = of_a[:, rows].T.repeat(SCALE_BLOCK, 1)[:, : a.shape[1]]
        return a * of_a, b * of_b.repeat(SCALE_BLOCK, 0)[: len(b)].repeat(SCALE_BLOCK, 1)[:, : b.shape[1]]
    return (a * of_a, b * of_b) if scale == BY_TENSOR else (a * of_a[rows, None], b * of_b[:, None])


# --- Sizes that fit the problem -----------------------------------------------------------------------------


def below_multiple(sentence: str, size: Quantity, least: int, length: Quantity, times: int = 2) -> Constraint:
    """A piece is shorter than a few times the length that it divides, or it is the smallest possible.

    Args:
        sentence: The rule in words.
        size: Elements of a piece.
        least: Elements of the smallest possible piece.
        length: Elements of the length that is divided.
        times: The factor.
    """
    return for_speed(sentence, lambda p, d, c: (size(p, c) == least) | (times * length(p, c) > size(p, c)))


# --- CPUs ---------------------------------------------------------------------------------------------------


def at_most_cores(threads: str = "THREADS") -> Constraint:
    """A CPU kernel uses no more threads than there are cores; a device that reports none counts as having one.

    Args:
        threads: The parameter that is the number of threads.
    """
    return for_speed("no more threads than cores", lambda p, d, c: max(d.cores, 1) >= getattr(c, threads))


def work_for_each_thread(what: str, count: Quantity, threads: str = "THREADS") -> Constraint:
    """Every thread of a CPU kernel gets some work.

    Args:
        what: The unit of work of which each thread takes at least one, e.g. ``a row of C``.
        count: Number of these units.
        threads: The parameter that is the number of threads.
    """
    return for_speed(f"{what} for each thread", lambda p, d, c: count(p, c) >= getattr(c, threads))


def vector_bytes(device: Any) -> int:
    """Returns the bytes of a CPU's vectors as kernels use them: 16 to 64."""
    return min(max(int(device.vector_bytes), 16), 64)


def vectors_as_wide_as_the_cpu(width: str = "WIDTH") -> Constraint:
    """Vectors of a CPU kernel fill the CPU's registers.

    Args:
        width: The parameter that sets the elements of a vector.
    """
    return for_speed(
        "vectors are as wide as the CPU's",
        lambda p, d, c: getattr(c, width) * DTYPE_BYTES[p.dtype] == vector_bytes(d),
    )


def vector_registers(device: Any) -> int:
    """Returns the vector registers of a CPU: AVX-512 has 32, narrower ones count as 16."""
    return 32 if device.vector_bytes >= 64 else 16


def register_tile_rules() -> tuple[Constraint, ...]:
    """A tile of MR rows of NR elements, in vectors of WIDTH, stays in a CPU's registers and keeps them busy."""
    return (
        vectors_as_wide_as_the_cpu(),
        Constraint("NR is a multiple of WIDTH", lambda p, d, c: c.NR % c.WIDTH == 0),
        for_speed(
            "the tile, a row of B and a factor fit into the vector registers, else they spill",
            lambda p, d, c: vector_registers(d) >= c.MR * (c.NR // c.WIDTH) + c.NR // c.WIDTH + 1,
        ),
        for_speed(
            "a tile has 8 vectors, else each multiply-add waits for the one before it",
            lambda p, d, c: c.MR * (c.NR // c.WIDTH) >= 8,
        ),
        for_speed(
            "a tile wider than a vector fills half of the vector registers, else loads hold up multiply-adds",
            lambda p, d, c: (c.NR == c.WIDTH) | (vector_registers(d) <= 2 * c.MR * (c.NR // c.WIDTH)),
        ),
    )
