"""The 16-bit gemm on tensor cores, without a GPU: it compiles, operands lie where wgmma looks for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_models import GPUS, H200
from probing import probe, run_on_cpu

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import render
from tuner.declare.launch import Launch
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Space

CATALOGUE = builtin()
GEMM = CATALOGUE.operation("gemm")
(KERNEL,) = CATALOGUE.of("gemm", "cuda", ("wgmma_tma",))
FOLDER = Path(__file__).resolve().parents[2] / "kernels" / "gemm" / "cuda"
#: Of the producer's one thread, which waits most of the time.
SPILLED_MOST = 96


def problem(m: int, n: int, k: int, dtype: str = "bfloat16", layout: str = "nn") -> Problem:
    return GEMM.problem({"m": m, "n": n, "k": k}, dtype, layout)


def config(**changes: Any) -> Config:
    return Config({**KERNEL.default_config(), **changes})


def complaints(of: Problem, chosen: Config, *, also_slow: bool = True) -> list[str]:
    rules = [each for each in KERNEL.constraints if also_slow or not each.for_speed]
    return [each.sentence for each in rules if not each.rule(of, H200, chosen)]


# --- it compiles ----------------------------------------------------------------------------------------------

COMPILED = {
    "128 x 256, a cluster": (("bfloat16", "nn"), {"LEAD": 3}),
    "no boxes of C, A shared": (("float16", "nt"), {"STORE": "registers", "CLUSTER_M": 1, "CLUSTER_N": 2}),
    "apart": (("bfloat16", "tn"), {"TEAM": "apart", "ROWS": 2, "WIDTH": 128, "ORDER": "hilbert"}),
    "three, K split": (
        ("float16", "tt"),
        {"CONSUMERS": 3, "WIDTH": 64, "GIVEN": 160, "SPLIT_K": 4, "CLUSTER_N": 2},
    ),
    "one, 32 contiguous columns": (
        ("bfloat16", "nn"),
        {"CONSUMERS": 1, "WIDTH": 32, "STAGES": 16, "GIVEN": 0, "CLUSTER_M": 1, "CLUSTER_N": 2, "BLOCKS": 0},
    ),
    "160 of 192 contiguous columns, clusters of eight": (
        ("float16", "nn"), {"WIDTH": 160, "CLUSTER_M": 4, "CLUSTER_N": 2, "BLOCKS": 0},
    ),
    "the transpose, K split": (
        ("float16", "tn"),
        {"SWAP": 1, "CLUSTER_M": 1, "BLOCKS": 0, "SPLIT_K": 16, "ADD": "after", "STORE": "registers"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_it_compiles_with_its_sums_in_registers(name: str) -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extras cuda12 and cuda13")
    from tuner.devices.cuda.nvrtc import compile_cubin, read_report

    (dtype, layout), changes = COMPILED[name]
    of, chosen = problem(4096, 4096, 4096, dtype, layout), config(**changes)
    assert complaints(of, chosen, also_slow=False) == []
    cubin, log = compile_cubin(render(KERNEL, of, chosen).text, "sm_90a")
    assert read_report(log, cubin).spill_bytes <= SPILLED_MOST
    assert not re.search(r"C7508|C751[0-8]", log), log  # registers not set aside; products one by one


# --- shares of k ----------------------------------------------------------------------------------------------

#: A warpgroup leaves its shares as wgmma left them in its threads' registers: where the PTX manual puts them,
#: of 64 rows each.
SHARED = """
struct Place { int row, column; };
__device__ Place place(int r, int i)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return {r * 64 + warp * 16 + i / 2 % 2 * 8 + lane / 4, i / 4 * 8 + lane % 4 * 2 + i % 2};
}

extern "C" __global__ void
shares(const float* given, float* parts, unsigned short* stored, unsigned short* summed, int m, int n)
{
    float sum[ROWS][SUMS];
    for (int share = 0; share < SPLIT_K; ++share) {
        for (int r = 0; r < ROWS; ++r)
            for (int i = 0; i < SUMS; ++i) {
                const Place at = place(r, i);
                sum[r][i] = at.row < m && at.column < n ? given[(share * m + at.row) * n + at.column] : 7.0f;
            }
        leave_share(sum, shares_at(parts, 0), share, 0, m);
    }
    __syncthreads();
    for (int at = 0; at < FOURS_EACH; ++at)
        store_total(shares_at(parts, 0), at, stored, 0, 0, SWAP ? n : m, SWAP ? m : n);
    sum_shares(sum, shares_at(parts, 0), 0, m);
    for (int r = 0; r < ROWS; ++r)
        for (int i = 0; i < SUMS; ++i) {
            const Place at = place(r, i);
            const bool inside = at.row < m && at.column < n;
            if (inside) summed[at.row * n + at.column] = (unsigned short)pair(sum[r][i], 0.0f);
        }
}
"""


@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize(("m", "n"), [(128, 16), (101, 13), (5, 16)])
def test_shares_of_k_add_up_where_they_were_left(m: int, n: int, swap: int, folder: Path) -> None:
    shares = 3
    lines = ["#define ROWS 2", "#define SUMS 8", f"#define SPLIT_K {shares}", "#define BFLOAT 0"]
    lines.append(f"#define SWAP {swap}")
    lines += ["#define EPILOGUE_PARAMETER", "#define EPILOGUE_PASSED"]
    lines.append("#define EPILOGUE_RESULT(sum, row, column, n) sum")
    text = "\n".join([*lines, (FOLDER / "wgmma_shares.cuh").read_text(), SHARED])
    outputs = [("parts", (shares, 128, 16), "float32"), *((x, (m, n), "float16") for x in ("stored", "summed"))]
    shared = probe("shares", lambda p: [("given", (shares, m, n), "float32")], lambda p: outputs, "m n")
    given = np.random.default_rng(5).integers(-64, 64, (shares, m, n)).astype("float32")
    of, launch = shared.problem({"m": m, "n": n}), Launch((1,), (128,))
    found = run_on_cpu(text, of, launch, {"given": given}, folder)
    stored = found["stored"].reshape(n, m).T if swap else found["stored"]
    np.testing.assert_array_equal(stored.astype("float32"), given.sum(axis=0))
    np.testing.assert_array_equal(found["summed"].astype("float32"), given.sum(axis=0))


# --- operands -------------------------------------------------------------------------------------------------

PROBE = probe("probe", lambda p: [("x", (p.n,), "int64")], lambda p: [("y", (p.n,), "int64")])
DESCRIBED = """
extern "C" __global__ void probe(const long long* x, long long* y, int n)
{
    if (threadIdx.x > 0) return;
    y[0] = along_terms(x[0]), y[1] = across_terms<64>(x[0], x[1]), y[2] = across_terms<32>(x[0], x[1]);
}
"""
TERMS = 64


@pytest.fixture(scope="module")
def descriptors(folder: Path) -> tuple[int, ...]:
    """What the kernel tells wgmma of an operand at address 0: terms contiguous; 64 rows, 32 rows contiguous."""
    unswapped = "".join(f"#define {name} 0\n" for name in ("SWAP", "A_TRANSPOSED", "B_TRANSPOSED"))
    text = f"{unswapped}{(FOLDER / 'operand_layout.cuh').read_text()}"
    given = {"x": np.array([0, TERMS, 0], np.int64)}
    outputs = run_on_cpu(text + DESCRIBED, PROBE.problem({"n": 3}), Launch((1,), (32,)), given, folder)
    return tuple(outputs["y"].tolist())


def swizzled(address: int, by: int = 128) -> int:
    """Swizzle: the 16-byte chunk, exclusive or the line of 128 bytes in its pattern of 8 times `by` bytes."""
    return address ^ (address >> 7 & by // 16 - 1) << 4


def put_by_boxes(
    lines: int, terms: int, line_first: bool, sharers: int, wide: int
) -> dict[int, tuple[int, int]]:
    """Address -> (line, term) of a tile of an operand, as the blocks of a cluster fetch it box by box."""
    found: dict[int, tuple[int, int]] = {}
    for share in range(sharers):
        if line_first:  # a box has `wide` lines, contiguous, by terms / sharers
            depth = terms // sharers
            for box in range(lines // wide):
                for y in range(depth):
                    for x in range(wide):
                        address = (box * terms + share * depth + y) * 2 * wide + 2 * x
                        found[swizzled(address, 2 * wide)] = (box * wide + x, share * depth + y)
        else:  # a box has lines / sharers rows of 64 contiguous terms
            each = lines // sharers
            for y in range(each):
                for x in range(terms):
                    found[swizzled((share * each + y) * 128 + 2 * x)] = (share * each + y, x)
    return found


def seen_by_wgmma(descriptor: int, lines: int, line_first: bool, wide: int) -> dict[tuple[int, int], int]:
    """(Line, term) -> address of 16 terms, by PTX's canonical layouts for 128 and 64 bytes of swizzle."""
    start, leading, stride = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    by = {1: 128, 2: 64}[descriptor >> 62 & 3]
    assert by == 2 * wide
    found = {}
    for line in range(lines):
        for term in range(16):
            if line_first:
                address = line // wide * leading + term // 8 * stride + term % 8 * by + line % wide * 2
            else:
                address = line // 8 * stride + line % 8 * 128 + term * 2
            found[line, term] = swizzled(start + address, by)
    return found


@pytest.mark.parametrize("line_first", [False, True], ids=["terms contiguous", "lines contiguous"])
@pytest.mark.parametrize(
    ("lines", "sharers"), [(32, 1), (32, 4), (64, 1), (64, 2), (256, 2), (192, 1), (160, 4)]
)
def test_wgmma_looks_where_boxes_were_put(
    descriptors: tuple[int, ...], line_first: bool, lines: int, sharers: int
) -> None:
    wide = min(lines, 64) if line_first else 64
    fetched = -(-lines // wide) * wide if line_first else lines
    put = put_by_boxes(fetched, TERMS, line_first, sharers, wide)
    assert len(put) == fetched * TERMS
    step = 16 * 2 * wide // 16 if line_first else 2  # NEXT_A and NEXT_B of the kernel, in units of 16 bytes
    described = descriptors[(1 if wide == 64 else 2) if line_first else 0]
    for number in range(TERMS // 16):
        seen = seen_by_wgmma(described + number * step, lines, line_first, wide)
        for (line, term), address in seen.items():
            assert put[address] == (line, 16 * number + term)


@pytest.mark.parametrize("layout", GEMM.layouts)
def test_boxes_of_a_cluster_make_up_whole_tiles(layout: str) -> None:
    of, chosen = problem(4096, 4096, 4096, layout=layout), config(CLUSTER_M=2, CLUSTER_N=2, WIDTH=128)
    launch = KERNEL.launched(of, chosen)
    assert launch is not None
    a, b, c = launch.maps
    bytes_a, bytes_b = (2 * int(np.prod(each.box)) for each in (a, b))
    boxes_a, boxes_b = (2 if layout[0] == "t" else 1), (2 if layout[1] == "n" else 1)
    assert (2 * bytes_a * boxes_a, 2 * bytes_b * boxes_b) == (128 * 128, 128 * 128)
    assert all(each.swizzle == 128 and each.box[-1] == 64 for each in (a, b, c))


@pytest.mark.parametrize("layout", GEMM.layouts)
def test_the_transpose_takes_the_operands_the_other_way_round(layout: str) -> None:
    of, mirrored = problem(512, 1024, 768, layout=layout), {"nn": "tt", "tt": "nn"}.get(layout, layout)
    swapped = KERNEL.launched(of, config(SWAP=1, WIDTH=128))
    usual = KERNEL.launched(problem(1024, 512, 768, layout=mirrored), config(SWAP=0, WIDTH=128))
    assert swapped is not None
    assert usual is not None
    assert [each.tensor for each in swapped.maps] == ["b", "a", "c"]
    assert [each.box for each in swapped.maps[:2]] == [each.box for each in usual.maps[:2]]
    assert swapped.steps[0].grid == usual.steps[0].grid
    assert swapped.maps[2].box == (64, 64), "64 rows of C, 64 columns of each"


def test_misses_bring_what_the_same_block_fetches_next() -> None:
    """Along k: 256 bytes. Across: those after 128 bytes are another block's."""
    for layout, promoted in (("nn", (256, 128)), ("nt", (256, 256)), ("tn", (128, 128)), ("tt", (128, 256))):
        launch = KERNEL.launched(problem(4096, 4096, 4096, layout=layout), config())
        assert launch is not None
        assert tuple(each.promotion for each in launch.maps[:2]) == promoted


# --- tiles ----------------------------------------------------------------------------------------------------

CELLS = probe(
    "cells",
    lambda p: [("x", (1,), "int32")],
    lambda p: [("y", (p.rows * p.columns, 2), "int32")],
    "rows columns",
)
WALK = """
extern "C" __global__ void cells(const int* x, int* y, int rows, int columns)
{
    for (int i = threadIdx.x; i < rows * columns; i += blockDim.x) {
        const Cell cell = cell_at(i, rows, columns);
        y[2 * i] = cell.row, y[2 * i + 1] = cell.column;
    }
}
"""
ORDERS = ("rows", "snake", "hilbert")


@pytest.mark.parametrize("order", ORDERS)
def test_every_tile_is_taken_once(order: str, folder: Path) -> None:
    names = "".join(f"#define ORDER_{name} {place}\n" for place, name in enumerate(ORDERS))
    text = (
        f"{names}#define ORDER ORDER_{order}\n#define GROUP 4\n{(FOLDER / 'tile_order.cuh').read_text()}{WALK}"
    )
    for rows, columns in ((1, 1), (1, 7), (9, 1), (2, 3), (5, 5), (32, 16), (13, 64), (64, 17), (31, 33)):
        of = CELLS.problem({"rows": rows, "columns": columns})
        cells = run_on_cpu(text, of, Launch((1,), (32,)), {"x": np.zeros(1, np.int32)}, folder)["y"]
        assert {tuple(cell) for cell in cells} == {(r, c) for r in range(rows) for c in range(columns)}
        if order == "hilbert" and len(cells) > 1:
            steps = np.abs(np.diff(cells, axis=0)).max(axis=1)
            assert steps.max() == 1, "each tile is beside the one before it, corners included"


# --- what is declared -----------------------------------------------------------------------------------------


def test_it_computes_in_16_bits_alone() -> None:
    assert KERNEL not in CATALOGUE.of("gemm", "cuda", dtype="float32")
    usual = GEMM.problem(dict.fromkeys("mnk", 1024))
    assert "elements are float16 or bfloat16" in complaints(usual, config())
    others = [
        kernel for kernel in CATALOGUE.of("gemm", "cuda") if kernel not in CATALOGUE.of("gemm", dtype="float16")
    ]
    assert {"naive", "warp_tiled", "emulated"} <= {kernel.name for kernel in others}
    for kernel in others:
        assert any(each.sentence.startswith("elements are float32") for each in kernel.constraints)


@pytest.mark.parametrize("layout", GEMM.layouts)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dims", [(8192, 8192, 8192), (1000, 1304, 776), (64, 8192, 8192), (8, 8, 8)])
def test_shapes_with_whole_16_byte_rows_have_a_start(
    dims: tuple[int, int, int], dtype: str, layout: str
) -> None:
    of = problem(*dims, dtype, layout)
    assert any(not complaints(of, each) for each in KERNEL.first_configs())


def test_operands_with_other_rows_are_padded_and_no_others() -> None:
    for dims, layout, padded in (
        ((1000, 1301, 776), "nt", {}), ((1000, 1301, 776), "nn", {"b": (776, 1304)}),
        ((1001, 1304, 776), "nn", {}), ((1001, 1304, 776), "tn", {"a": (776, 1008)}),
        ((1000, 1304, 777), "nt", {"a": (1000, 784), "b": (1304, 784)}),
        ((8192, 1, 8192), "nn", {"b": (8192, 8)}),
    ):  # fmt: skip
        of = problem(*dims, layout=layout)
        start = next(each for each in KERNEL.first_configs() if not complaints(of, each))
        launch = KERNEL.launched(of, start)
        assert launch is not None
        assert {each.tensor: each.shape for each in launch.padded} == padded


def test_devices_without_its_instructions_have_the_plain_kernel() -> None:
    (plain,) = CATALOGUE.of("gemm", "cuda", ("half_tiled",))
    of = problem(1001, 777, 333)
    assert all(len(Space.build(plain.parameters, plain.constraints, of, device)) for device in GPUS)
    assert not any(len(Space.build(KERNEL.parameters, KERNEL.constraints, of, device)) for device in GPUS[1:])
