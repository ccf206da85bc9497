"""gemm in Triton, beside the kernels in CUDA C++; it has no legal config where Triton is not installed."""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Config, Constraint, Kernel, Launch, Problem, Scope, Source, ceil_div, choice
from tuner.declare.rules import asynchronous_copies, block_registers_fit, for_speed, shared_fits
from tuner.triton.language import version

#: Sides of the smallest tile that ``tl.dot`` takes.
LEAST = 16
#: Registers of a thread beside its sums: addresses and fragments.
OTHER_REGISTERS = 32
#: Products of a thread in a step of float32, which has no loop inside: more do not fit the instruction cache.
MOST_PRODUCTS = 4096


def _threads(p: Problem, c: Any) -> Any:
    return 32 * c.num_warps


def _sums(p: Problem, c: Any) -> Any:
    """Elements of C that a thread computes."""
    return c.BM * c.BN // _threads(p, c)


def _launch(p: Problem, c: Config) -> Launch:
    return Launch((ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN),), (_threads(p, c),))


def _config(bm: int, bn: int, bk: int, warps: int, stages: int, group: int = 8) -> dict[str, int]:
    return {"BM": bm, "BN": bn, "BK": bk, "GROUP": group, "num_warps": warps, "num_stages": stages}


KERNEL = Kernel(
    operation="gemm",
    name="triton_tiled",
    target="triton",
    source=Source(Path("triton_tiled.triton.py")),
    idea="tiles by Triton's tl.dot, with groups of tiles that share what the cache holds",
    scope=Scope(dtypes=("float32", "float16", "bfloat16")),
    parameters=(
        choice("BM", 16, 32, 64, 128, 256),
        choice("BN", 16, 32, 64, 128, 256),
        choice("BK", 16, 32, 64, 128),
        choice("GROUP", 1, 8),
        choice("num_warps", 1, 2, 4, 8),
        choice("num_stages", 2, 3, 4, 5),
    ),
    constraints=(
        *(() if version() else (Constraint("Triton is installed", lambda p, d, c: False),)),
        asynchronous_copies("num_stages"),
        shared_fits(
            "num_stages stages of both tiles",
            lambda p, c: c.num_stages * c.BK * (c.BM + c.BN) * DTYPE_BYTES[p.dtype],
        ),
        block_registers_fit("sums and addresses", lambda p, c: _sums(p, c) + OTHER_REGISTERS, _threads),
        for_speed("a thread has 8 sums or more", lambda p, d, c: _sums(p, c) >= 8),
        for_speed(
            "a step of float32 has few enough products a thread",
            lambda p, d, c: (p.dtype != "float32") | (_sums(p, c) * c.BK <= MOST_PRODUCTS),
        ),
        for_speed(
            "a tile is less than twice as long as the problem in each direction, or the smallest",
            lambda p, d, c: (
                ((c.BM == LEAST) | (2 * p.m > c.BM))
                & ((c.BN == LEAST) | (2 * p.n > c.BN))
                & ((c.BK == LEAST) | (2 * p.k > c.BK))
            ),
        ),
        for_speed("a group has several rows of tiles", lambda p, d, c: (c.GROUP == 1) | (p.m > c.BM)),
    ),
    launch=_launch,
    tiles=lambda p, c: {"m": c.BM, "n": c.BN},
    starts=(
        _config(64, 64, 32, 4, 3),
        _config(128, 128, 16, 8, 3),
        # 16 bits, on tensor cores.
        _config(128, 256, 64, 8, 3),
        _config(128, 128, 64, 4, 4),
        # Few rows.
        _config(16, 64, 128, 4, 4, 1),
    ),
)  # fmt: skip
