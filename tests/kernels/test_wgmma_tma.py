"""The 16-bit gemm on tensor cores, without a GPU: it compiles, operands lie where wgmma looks for them."""

from pathlib import Path

import numpy as np
import pytest
from gpu_models import GPUS
from probing import run_on_cpu
from products import LAYOUTS, gemm, kernel_of
from sampling import is_legal

from tuner.declare.launch import Launch
from tuner.declare.space import Space

KERNEL = kernel_of("wgmma_tma")
FOLDER = Path(__file__).resolve().parents[2] / "kernels" / "gemm" / "cuda"


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
    names = ("ROWS 2", "SUMS 8", f"SPLIT_K {shares}", "BFLOAT 0", f"SWAP {swap}", "EPILOGUE_PARAMETER",
             "EPILOGUE_PASSED", "EPILOGUE_RESULT(sum, row, column, n) sum")  # fmt: skip
    text = "\n".join(
        [*(f"#define {name}" for name in names), (FOLDER / "wgmma_shares.cuh").read_text(), SHARED]
    )
    outputs = [("parts", (shares, 128, 16), "float32"), *((x, (m, n), "float16") for x in ("stored", "summed"))]
    given = np.random.default_rng(5).integers(-64, 64, (shares, m, n)).astype("float32")
    found = run_on_cpu(text, "shares", {"given": given}, outputs, folder, Launch((1,), (128,)), m=m, n=n)
    stored = found["stored"].reshape(n, m).T if swap else found["stored"]
    np.testing.assert_array_equal(stored.astype("float32"), given.sum(axis=0))
    np.testing.assert_array_equal(found["summed"].astype("float32"), given.sum(axis=0))


# --- tiles ----------------------------------------------------------------------------------------------------

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
    walk = (FOLDER / "tile_order.cuh").read_text() + WALK
    text = f"{names}#define ORDER ORDER_{order}\n#define GROUP 4\n{walk}"
    for rows, columns in ((1, 1), (1, 7), (9, 1), (2, 3), (5, 5), (32, 16), (13, 64), (64, 17), (31, 33)):
        outputs, dims = [("y", (rows * columns, 2), "int32")], {"rows": rows, "columns": columns}
        x = {"x": np.zeros(1, np.int32)}
        cells = run_on_cpu(text, "cells", x, outputs, folder, Launch((1,), (32,)), **dims)["y"]
        assert {tuple(cell) for cell in cells} == {(r, c) for r in range(rows) for c in range(columns)}
        if order == "hilbert" and len(cells) > 1:
            steps = np.abs(np.diff(cells, axis=0)).max(axis=1)
            assert steps.max() == 1, "each tile is beside the one before it, corners included"


# --- what is declared -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dims", [(8192, 8192, 8192), (1000, 1304, 776), (64, 8192, 8192), (8, 8, 8)])
def test_shapes_of_whole_16_byte_rows_have_starts(dims: tuple[int, int, int], dtype: str, layout: str) -> None:
    of = gemm(*dims, layout, dtype)
    assert any(is_legal(KERNEL, of, each) for each in KERNEL.first_configs())


def test_operands_with_other_rows_are_padded_and_no_others() -> None:
    for dims, layout, padded in (
        ((1000, 1301, 776), "nt", {}), ((1000, 1301, 776), "nn", {"b": (776, 1304)}),
        ((1001, 1304, 776), "nn", {}), ((1001, 1304, 776), "tn", {"a": (776, 1008)}),
        ((1000, 1304, 777), "nt", {"a": (1000, 784), "b": (1304, 784)}),
        ((8192, 1, 8192), "nn", {"b": (8192, 8)}),
    ):  # fmt: skip
        of = gemm(*dims, layout, "bfloat16")
        start = next(each for each in KERNEL.first_configs() if is_legal(KERNEL, of, each))
        launch = KERNEL.launched(of, start)
        assert {each.tensor: each.shape for each in launch.padded} == padded


def test_devices_without_its_instructions_have_the_plain_kernel() -> None:
    plain, of = kernel_of("half_tiled"), gemm(1001, 777, 333, "nn", "bfloat16")
    assert all(len(Space.build(plain.parameters, plain.constraints, of, device)) for device in GPUS)
    assert not any(len(Space.build(KERNEL.parameters, KERNEL.constraints, of, device)) for device in GPUS[1:])
