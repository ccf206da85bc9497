"""Packing of the emulated gemm, run on the CPU: what is packed, and what the check says of it."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from operands_drawn import LOW_SHIFT, SHARE, drawn
from probing import run_on_cpu

from tuner.declare.launch import Launch, Workspace, ceil_div

CUDA = Path(__file__).resolve().parents[2] / "kernels" / "gemm" / "cuda"
FILES = "dependent.cuh", "emulated.cuh", "emulated_pack.cuh", "emulated_pack.cu"
TEXT = "\n".join((CUDA / name).read_text() for name in FILES)
HEADER, FALL_BACK = 256, 128


def groups_of(rows: int, share: int) -> int:
    """Factors of a chunk, padded to 16 bytes."""
    return ceil_div(ceil_div(rows, 8) * 8 // share, 4) * 4


def packed_bytes(rows: int, k: int, share: int, chunk: int) -> int:
    """Size of a packed operand."""
    chunks = ceil_div(k, chunk)
    factors = ceil_div(4 * chunks * groups_of(rows, share), 256) * 256
    return HEADER + factors + chunks * (chunk // 32) * ceil_div(rows, 8) * 8 * 128


def run(
    folder: Path, a: np.ndarray, b: np.ndarray, layout: str = "nn", chunk: int = 64, order: str = "forward"
) -> dict[str, np.ndarray]:
    """Packs a (m x k) and b (k x n), stored as the layout says."""
    (m, k), n = a.shape, b.shape[1]
    values = {
        "CHUNK": chunk, "BLOCKS_PER_SM": 4, "A_TRANSPOSED": int(layout[0] == "t"),
        "B_TRANSPOSED": int(layout[1] == "t"),
    }  # fmt: skip
    text = "\n".join([*(f"#define {name} {value}" for name, value in values.items()), TEXT])
    launch = Launch((3,), (256,), workspace=Workspace(256, zeroed_bytes=FALL_BACK))
    stored = {"a": a.T.copy() if layout[0] == "t" else a, "b": b.T.copy() if layout[1] == "t" else b}
    outputs = [
        ("packed_a", (packed_bytes(m, k, 1, chunk),), "uint8"),
        ("packed_b", (packed_bytes(n, k, SHARE, chunk),), "uint8"), ("fallbacks", (1,), "uint32"),
    ]  # fmt: skip
    return run_on_cpu(text, "pack", stored, outputs, folder, launch, order, m=m, n=n, k=k)


def unpacked(packed: np.ndarray, rows: int, k: int, share: int, chunk: int) -> np.ndarray:
    """Rows x terms, from high and low parts, swizzle and factors."""
    padded, chunks, groups = ceil_div(rows, 8) * 8, ceil_div(k, chunk), groups_of(rows, share)
    size = chunks * (chunk // 32) * padded * 128
    factors = (
        packed[HEADER:].view(np.uint8)[: 4 * chunks * groups].copy().view(np.float32).reshape(chunks, groups)
    )
    pieces = packed[-size:].copy().view(np.float16).reshape(-1, padded, 8, 8).astype(np.float64)
    row = np.arange(padded)[:, None]
    pieces = pieces[:, row, np.arange(8) ^ (row % 8)].reshape(chunks, chunk // 32, padded, 2, 32)
    high, low = (pieces[:, :, :, part].transpose(2, 0, 1, 3).reshape(padded, chunks, chunk) for part in (0, 1))
    of_rows = np.repeat(factors[:, : padded // share], share, 1).T[:, :, None].astype(np.float64)
    values = (high + low * np.where(of_rows < 0, 2.0**-LOW_SHIFT, 1)) * np.abs(of_rows)
    return values.reshape(padded, -1)[:rows, :k]


def fell_back(result: dict[str, np.ndarray]) -> bool:
    """The count starts at -1, which is what a poisoned output holds."""
    return int(result["fallbacks"][0]) == 0


SHAPES = [(70, 41, 129), (8, 128, 64), (65, 24, 300)]
CASES = [
    *itertools.product(SHAPES, ("nn", "nt", "tn", "tt"), [64]),
    *itertools.product(SHAPES[:1], ["nn"], [32, 128]),
]


@pytest.mark.parametrize(("shape", "layout", "chunk"), CASES)
def test_packed_operands_hold_22_bits(
    shape: tuple[int, int, int], layout: str, chunk: int, folder: Path
) -> None:
    m, n, k = shape
    a, b = drawn("lognormal:2", m, n, k)
    result = run(folder, a, b, layout, chunk, ("forward", "backward", "random")[(m + n) % 3])
    for name, exact, rows, share in (("a", a, m, 1), ("b", b.T, n, SHARE)):
        values = unpacked(result[f"packed_{name}"], rows, k, share, chunk)
        assert (np.abs(values - exact) <= 2.0**-20 * np.abs(exact)).all()
        assert np.median(np.abs(values - exact) / np.abs(exact)) <= 2.0**-23


VERDICTS = {
    "normal": False, "uniform": False, "positive": False, "lognormal:2": False, "rows": False, "relu": False,
    "outlier:1e4": False, "outlier_zeros:1e4": False, "integers:16": False, "zeros": False, "empty": False,
    "lognormal:4": True, "largest": True, "identity": True, "inf": True, "nan": True,
}  # fmt: skip


def test_verdicts(folder: Path) -> None:
    assert {kind: fell_back(run(folder, *drawn(kind, 128, 128, 256))) for kind in VERDICTS} == VERDICTS


def test_tiny_elements_that_make_up_a_sum_alone_are_found(folder: Path) -> None:
    """The large elements meet zeros: nothing but what lies 2^-40 below them is left."""
    a, b = drawn("normal", 64, 64, 128)
    a[:, ::2] *= np.float32(2.0**40)
    assert fell_back(run(folder, a, b))
    b[::2] = 0
    assert fell_back(run(folder, a, b))


def test_last_chunk_of_few_terms_is_judged_by_its_own_terms(folder: Path) -> None:
    a, b = drawn("normal", 64, 64, 130)
    a[:, 128] *= np.float32(2.0**45)
    assert not fell_back(run(folder, a, b))  # no element of C can do without the large one
    b[128] = 0
    assert fell_back(run(folder, a, b))
