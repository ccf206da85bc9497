"""transpose on CUDA: several elements a thread."""

from pathlib import Path

from tuner import DTYPE_BYTES, Config, Constraint, Kernel, Launch, Problem, ceil_div, choice

#: Static shared memory that a block may have (CUDA C++ Programming Guide, compute capabilities).
STATIC_SHARED_BYTES = 48 << 10


def _launch(p: Problem, c: Config) -> Launch:
    blocks = ceil_div(p.n, c.TILE) * ceil_div(p.m, c.TILE)
    return Launch(grid=(blocks,), block=(c.TILE, c.ROWS))


KERNEL = Kernel(
    operation="transpose",
    name="unrolled",
    target="cuda",
    source=Path("unrolled.cu"),
    idea="a padded tile moved by TILE x ROWS threads, several elements each",
    parameters=(choice("TILE", 16, 32, 64, 128), choice("ROWS", 1, 2, 4, 8, 16, 32)),
    constraints=(
        Constraint("a tile has whole sets of ROWS rows", lambda p, d, c: c.TILE % c.ROWS == 0),
        Constraint(
            "a block has no more threads than the device allows",
            lambda p, d, c: d.max_threads_per_block >= c.TILE * c.ROWS,
        ),
        Constraint(
            "a padded tile fits into static shared memory",
            lambda p, d, c: DTYPE_BYTES[p.dtype] * c.TILE * (c.TILE + 1) <= STATIC_SHARED_BYTES,
        ),
    ),
    launch=_launch,
    defaults={"TILE": 32, "ROWS": 8},
)
