"""Sums in FP64: each element is the exact one, rounded, whatever the inputs are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import compile_for_cpu
from operands_drawn import drawn
from products import LAYOUTS, gemm, kernel_of

from tuner.declare.kernel import render
from tuner.declare.space import Config

KERNEL = kernel_of("double_sums")
SMALL = {"BM": 32, "BN": 32, "WM": 16, "WN": 16, "STAGES": 3, "BK": 16}
KINDS = ("normal", "lognormal:4", "outlier_zeros:1e8", "subnormal", "largest", "identity", "inf", "nan")


def product(
    folder: Path, a: np.ndarray, b: np.ndarray, layout: str = "nn", architecture: int = 900, **changes: int
) -> np.ndarray:
    """What the kernel makes of operands, stored as the layout says."""
    (m, k), n = a.shape, b.shape[1]
    problem = gemm(m, n, k, layout, precision="emulated")
    rendered = render(KERNEL, problem, Config({**KERNEL.default_config(), **SMALL, **changes}))
    rendered = replace(rendered, text=f"#define __CUDA_ARCH__ {architecture}\n{rendered.text}")
    stored = {"a": a.T.copy() if layout[0] == "t" else a, "b": b.T.copy() if layout[1] == "t" else b}
    return compile_for_cpu(rendered, folder).run(problem, rendered.launch, stored)["c"]


def rounded(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_inputs_is_rounded_once(kind: str, folder: Path) -> None:
    a, b = drawn(kind, 33, 40, 50)
    found, wanted = product(folder, a, b, VECTOR=1), rounded(a, b)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
    where = np.isfinite(wanted)
    assert (np.abs(found[where] - wanted[where].astype(float)) <= np.spacing(np.abs(wanted[where]))).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("vector", "architecture"), [(1, 900), (4, 900), (4, 800)])
def test_layouts_and_blocks_that_share_k(layout: str, vector: int, architecture: int, folder: Path) -> None:
    a, b = drawn("normal", 36, 44, 52)
    for shares in (1, 8) if layout == "nn" else (1,):
        made = product(folder, a, b, layout, architecture, VECTOR=vector, SPLIT_K=shares)
        np.testing.assert_allclose(made, rounded(a, b), rtol=2**-23)
