"""The emulated gemm compiles for sm_90a with NVRTC alone; sums stay in registers, products need not wait."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tuner.devices.cuda.nvrtc import compile_cubin, read_report

pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extras cuda12 and cuda13")

CUDA = Path(__file__).resolve().parents[2] / "kernels" / "gemm" / "cuda"
PRODUCT = ("epilogue.cuh", "hopper.cuh", "dependent.cuh", "wgmma.cuh", "emulated.cuh", "emulated.cu")
PACK = ("dependent.cuh", "emulated.cuh", "emulated_pack.cu")
USUAL = {
    "CONSUMERS": 2, "WIDTH": 192, "PARTS": 1, "CHUNK": 64, "STAGES": 5, "CLUSTER": 2, "GROUP": 8, "SPLIT_K": 1,
    "GIVEN": 232, "BLOCKS_PER_SM": 4, "ORDER_rows": 0, "ORDER_snake": 1, "ORDER": "ORDER_rows", "TURNS_free": 0,
    "PROMOTION_plain": 0, "PROMOTION_compensated": 1, "PROMOTION": "PROMOTION_plain",
    "TURNS_taken": 1, "TURNS_early": 2, "TURNS": "TURNS_free", "A_TRANSPOSED": 0, "B_TRANSPOSED": 0,
}  # fmt: skip
PRODUCTS: dict[str, dict[str, Any]] = {
    "one part": {},
    "two parts, K shared": {"WIDTH": 128, "PARTS": 2, "STAGES": 4, "SPLIT_K": 4},
    "turns, no cluster": {"WIDTH": 176, "CLUSTER": 1, "TURNS": "TURNS_early", "ORDER": "ORDER_snake"},
    "small": {"WIDTH": 64, "STAGES": 8, "CLUSTER": 1, "TURNS": "TURNS_taken"},
    "compensated": {"WIDTH": 128, "STAGES": 6, "PROMOTION": "PROMOTION_compensated", "SPLIT_K": 16},
    "short": {"WIDTH": 64, "STAGES": 8, "CLUSTER": 1, "CHUNK": 32, "PROMOTION": "PROMOTION_compensated"},
    "one consumer": {"CONSUMERS": 1, "WIDTH": 96, "GIVEN": 0},
}
#: Of the producer's one thread, which waits most of the time.
SPILLED_MOST = 128


def compiled(files: tuple[str, ...], changes: dict[str, Any]) -> tuple[bytes, str]:
    """Cubin and log of files behind constants."""
    lines = [f"#define {name} {value}" for name, value in {**USUAL, **changes}.items()]
    return compile_cubin("\n".join([*lines, *((CUDA / name).read_text() for name in files)]), "sm_90a")


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    cubin, log = compiled(PRODUCT, PRODUCTS[name])
    assert read_report(log, cubin).spill_bytes <= SPILLED_MOST
    assert not re.search(r"C7508|C751[0-8]", log), log  # registers not set aside; products one by one


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_packing(layout: str) -> None:
    changes = {"A_TRANSPOSED": int(layout[0] == "t"), "B_TRANSPOSED": int(layout[1] == "t")}
    cubin, log = compiled(PACK, changes)
    assert read_report(log, cubin).spill_bytes == 0
