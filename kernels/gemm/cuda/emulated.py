"""gemm on CUDA: FP32 from three FP16 products on the tensor cores of sm_90 (docs/log/kernels)."""

from pathlib import Path

from tuner import Constraint, Fallback, Kernel, Scope, Source, ceil_div, choice
from tuner.declare.rules import for_speed, select, shared_fits

from ._emulated import GIVEN, SOURCES, STARTS, aligned, exact, launch, needs_wgmma, shared_bytes, tiles
from ._operands import float32_alone, k_shared_by_few_tiles

#: Multiprocessors of an H100 or H200, of an H100 PCIe, of half an H100: as many blocks stay.
BLOCKS = (132, 114, 66)
#: Registers of a thread beside its sums.
OTHER_REGISTERS = 40
#: Terms below which the error of one chunk of 128 shows; of any other.
LEAST_K_OF_128, LEAST_K = 512, 128
#: Elements of C below which cuBLAS shares k among so many blocks that its error is small, however large k is:
#: sums of chunks must be compensated; below the second, chunks must have 32 terms, too.
COMPENSATED_BELOW, SHORT_BELOW = 1 << 19, 1 << 18

KERNEL = Kernel(
    operation="gemm",
    name="emulated",
    target="cuda",
    source=Source(Path("emulated.cu"), includes=SOURCES),
    idea="FP32 from three FP16 products on tensor cores, sums in FP32 registers, checked for each input",
    scope=Scope(
        precisions=("emulated",),
        epilogues=True,
        architecture="sm_90a",
        fallback=Fallback("double_sums", exact, asked="verdict"),
    ),
    parameters=(
        choice("BLOCKS", *BLOCKS),
        choice("PLAIN", "aligned", "any"),
        choice("CONSUMERS", 1, 2),
        choice("WIDTH", 64, 80, 96, 112, 128, 144, 160, 176, 192),
        choice("PARTS", 1, 2),
        choice("CHUNK", 32, 64, 128),
        choice("STAGES", 2, 3, 4, 5, 6, 8),
        choice("CLUSTER", 1, 2),
        choice("GROUP", 4, 8, 16),
        choice("ORDER", "rows", "snake"),
        choice("TURNS", "free", "taken", "early"),
        choice("PROMOTION", "plain", "compensated"),
        choice("SPLIT_K", 1, 2, 4, 8, 16),
        choice("GIVEN", 0, GIVEN),
        choice("BLOCKS_PER_SM", 3, 4),
    ),
    constraints=(
        needs_wgmma(),
        float32_alone(),
        Constraint(
            "k is 128 or more, 512 or more with chunks of 128: below, the error of a single chunk shows",
            lambda p, d, c: p.k >= select(c.CHUNK == 128, LEAST_K_OF_128, LEAST_K),
        ),
        Constraint(
            "sums of chunks are compensated where C is small: there the library's error is, too",
            lambda p, d, c: (c.PROMOTION == "compensated") | (p.m * p.n >= COMPENSATED_BELOW),
        ),
        Constraint(
            "chunks have 32 terms where C is even smaller",
            lambda p, d, c: (c.CHUNK == 32) | (p.m * p.n >= SHORT_BELOW),
        ),
        for_speed(
            "sums of chunks are compensated, and chunks have 32 terms, only where they must",
            lambda p, d, c: (
                ((c.PROMOTION == "plain") | (p.m * p.n < COMPENSATED_BELOW))
                & ((c.CHUNK > 32) | (p.m * p.n < SHORT_BELOW))
            ),
        ),
        for_speed(
            "a block stays on each multiprocessor",
            lambda p, d, c: (d.sm_count >= c.BLOCKS) & ((c.BLOCKS == 132) | (d.sm_count < 132)),
        ),
        Constraint(
            "the plain kernel behind reads four elements at a time only where all rows allow it",
            lambda p, d, c: (c.PLAIN == "any") | aligned(p),
        ),
        for_speed(
            "the plain kernel behind reads four elements at a time where all rows allow it",
            lambda p, d, c: (c.PLAIN == "aligned") | (aligned(p) == 0),
        ),
        Constraint(
            "two consumers are given registers of the producer's, one consumer none",
            lambda p, d, c: (c.CONSUMERS == 2) == (c.GIVEN == GIVEN),
        ),
        Constraint(
            "a thread's sums, in wgmma and beside it, fit its registers",
            lambda p, d, c: (
                ((1 + (c.PROMOTION == "compensated")) * c.PARTS + 1) * c.WIDTH // 2 + OTHER_REGISTERS <= GIVEN
            ),
        ),
        Constraint("a block's tile has at most 256 columns", lambda p, d, c: c.PARTS * c.WIDTH <= 256),
        Constraint("all places of a chunk fit in", lambda p, d, c: c.STAGES * 32 >= c.CHUNK),
        Constraint(
            "every one of SPLIT_K blocks has a chunk of k", lambda p, d, c: ceil_div(p.k, c.CHUNK) >= c.SPLIT_K
        ),
        k_shared_by_few_tiles(tiles),
        for_speed(
            "consumers take turns where there are two", lambda p, d, c: (c.CONSUMERS == 2) | (c.TURNS == "free")
        ),
        shared_fits("the places of both tiles and their factors", shared_bytes),
    ),
    launch=launch,
    tiles=lambda p, c: {"m": 64 * c.CONSUMERS, "n": c.WIDTH * c.PARTS, "k": p.k / c.SPLIT_K},
    starts=tuple(each | {"PLAIN": plain} for plain in ("aligned", "any") for each in STARTS),
)
