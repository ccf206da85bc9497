"""Exports of kernels whose run is more than a launch: padded arrays, a vector in pieces, own memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.exported import CATALOGUE, GXX, champion, imported, run_on_host

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.export import export

PADDED = {"BLOCK_X": 8, "BLOCK_Y": 4, "ACCUMULATE": "plain", "PITCH": 32}
SPLIT = {
    "BM": 64, "BN": 64, "BK": 16, "TM": 8, "TN": 4, "LANES_M": 4, "STAGES": 3, "VECTOR": 4, "SWATH": 8,
    "BLOCKS_PER_SM": 1, "SPLIT_K": 4, "BLOCKS": 0, "TURN": "relay", "PITCH": 4, "ORDER": "snake",
    "ARRIVE": "middle", "UNTIE": 1,
}  # fmt: skip
RNG = np.random.default_rng(0)
PIECES = {"BLOCK": 32, "PIECE": 256, "UNROLL": 1}


def given(operation: str, name: str, config: dict, layout: str, *sizes: int) -> tuple[Any, Kernel, Problem]:
    declared = CATALOGUE.operation(operation)
    problem = declared.problem(dict(zip(declared.dims, sizes, strict=True)), layout=layout)
    (kernel,) = CATALOGUE.of(operation, "cuda", (name,))
    return champion(kernel, problem, config), kernel, problem


def padded(layout: str = "nn") -> tuple[Any, Kernel, Problem]:
    return given("gemm", "naive", PADDED, layout, 67, 45, 33)


def in_pieces(layout: str = "n") -> tuple[Any, Kernel, Problem]:
    return given("gemv", "constant", PIECES, layout, 67, 600)


def with_workspace(layout: str = "nn") -> tuple[Any, Kernel, Problem]:
    return given("gemm", "warp_tiled", SPLIT, layout, 67, 45, 331)


@GXX
@pytest.mark.parametrize(
    "case",
    [padded("nn"), padded("tt"), in_pieces("n"), in_pieces("t")],
    ids=["padded nn", "padded tt", "pieces n", "pieces t"],
)
def test_the_exported_main_finds_it_right(case: tuple, tmp_path: Path) -> None:
    (path,) = export(*case, "source", tmp_path)
    code, told = run_on_host(path)
    assert (code, told.splitlines()[-1]) == (0, "PASSED"), told
    assert run_on_host(path, *(1 for _ in case[2].shape))[0] == 0


@GXX
def test_the_exported_main_finds_a_piece_left_out(tmp_path: Path) -> None:
    (path,) = export(*in_pieces(), "source", tmp_path)
    code, told = run_on_host(path, change=("first < size &&", "first + 256 < size &&"))
    assert (code, told.splitlines()[-1]) == (1, "FAILED"), told


def test_the_binary_says_what_belongs_to_a_run(tmp_path: Path) -> None:
    rules, in_parts, own = (
        json.loads(export(*case, "binary", tmp_path)[1].read_text())["rules"]
        for case in (padded(), in_pieces(), with_workspace())
    )
    assert rules["padded"][0] == {"tensor": "a", "shape": ["ceil_div(m, 1)", "ceil_div(k, 32) * 32"]}
    assert in_parts["pieces"] == {"symbol": "piece", "tensor": "x", "elements": 256}
    assert "padded" not in in_parts
    names = {"m": 67, "n": 45, "k": 33, "ceil_div": lambda x, y: -(-x // y)}
    counters = 256  # of 2 x 1 tiles
    assert eval(own["workspace"]["zeroed_bytes"], names) == counters
    assert eval(own["workspace"]["bytes"], names) == counters + 2 * 4 * 64 * 64 * 4


def test_a_module_pads_its_arrays(tmp_path: Path, cupy: Any) -> None:
    def compute(a: Any, b: Any, c: Any, m: int, n: int, k: int) -> None:
        assert (a.shape[1] % 32, b.shape[1] % 32, c.shape[1] % 32) == (0, 0, 0)
        c[:m, :n] = a[:m, :k] @ b[:k, :n]

    cupy.compute = compute
    module = imported(export(*padded(), "python", tmp_path)[0])
    a, b = (cupy.array(RNG.random(shape, dtype=np.float32)) for shape in ((50, 33), (33, 45)))
    np.testing.assert_allclose(module.matmul(a, b), np.asarray(a) @ np.asarray(b), rtol=1e-5)


def test_a_module_takes_its_vector_in_pieces(tmp_path: Path, cupy: Any) -> None:
    def compute(a: Any, _: Any, y: Any, m: int, n: int, first: int) -> None:
        count = min(256, n - first)
        before = 0 if first == 0 else y
        y[...] = before + a.reshape(m, n)[:, first : first + count] @ cupy.piece[:count]

    cupy.compute = compute
    module = imported(export(*in_pieces(), "python", tmp_path)[0])
    a, x = (cupy.array(RNG.random(shape, dtype=np.float32)) for shape in ((5, 700), (700,)))
    np.testing.assert_allclose(module.matvec(a, x), np.asarray(a) @ np.asarray(x), rtol=1e-5)
