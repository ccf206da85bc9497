"""grouped on CUDA, on ordinary cores: right for every shape, alignment and dtype."""

from pathlib import Path
from typing import Any

from tuner import Config, Constraint, Kernel, Launch, Problem, Scope, Source, choice, powers_of_two
from tuner.declare.rules import (
    below_multiple,
    block_registers_fit,
    copy_at_most_16_bytes,
    static_shared_fits,
    threads_fit,
    whole_accesses,
)

from ._groups import BMM, GEMM, blocks, countable, tiles

#: Registers beside sums and their factors: addresses, loop, elements on their way.
OTHER_REGISTERS = 32


def _threads(p: Problem, c: Any) -> Any:
    """Threads of a block."""
    return c.BM * c.BN // (c.TM * c.TN)


def _shared_bytes(p: Problem, c: Any) -> Any:
    """Terms of tiles of A and B in float32, each an element longer against bank conflicts."""
    return 4 * c.BK * (c.BM + 1 + c.BN + 1)


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(grid=(blocks(p, c),), block=(_threads(p, c),))


def _start(bm: int, bn: int, bk: int, tm: int, tn: int, vector: int) -> dict[str, int]:
    return {"BM": bm, "BN": bn, "BK": bk, "TM": tm, "TN": tn, "VECTOR": vector}


KERNEL = Kernel(
    operation="grouped",
    name="tiled",
    target="cuda",
    source=Source(
        Path("tiled.cu"),
        includes=(
            Path("../../access.cuh"), GEMM / "half.cuh", GEMM / "stored.cuh",
            BMM / "products.cuh", Path("groups.cuh"),
        ),
    ),
    idea="each block finds its group's rows from the offsets; tiles in shared memory, sums in registers",
    scope=Scope(dtypes=("float32", "float16", "bfloat16")),
    parameters=(
        choice("BM", 8, 16, 32, 64, 128),
        choice("BN", 32, 64, 128),
        choice("BK", 8, 16, 32, 64),
        powers_of_two("TM", 1, 8),
        powers_of_two("TN", 1, 8),
        powers_of_two("VECTOR", 1, 8),
    ),
    constraints=(
        threads_fit(_threads, least_warps=1),
        Constraint("warps are whole, for they search together", lambda p, d, c: _threads(p, c) % 32 == 0),
        static_shared_fits("a tile of A and one of B", _shared_bytes),
        copy_at_most_16_bytes("VECTOR"),
        whole_accesses(),
        countable(),
        block_registers_fit(
            "sums and their factors", lambda p, c: c.TM * c.TN + c.TM + c.TN + OTHER_REGISTERS, _threads,
        ),
        below_multiple(
            "a tile has less than four times the rows of a usual group", lambda p, c: c.BM, 8,
            lambda p, c: p.rows / p.groups, 4,
        ),
        below_multiple("a tile is less than twice as wide as C", lambda p, c: c.BN, 32, lambda p, c: p.n),
    ),
    launch=_launch,
    tiles=tiles,
    starts=(
        _start(64, 64, 16, 4, 4, 1), _start(64, 64, 16, 8, 4, 4), _start(128, 128, 8, 8, 8, 4),
        _start(8, 64, 32, 1, 4, 4), _start(8, 64, 32, 1, 4, 1), _start(16, 64, 32, 2, 4, 4),
    ),
)  # fmt: skip
