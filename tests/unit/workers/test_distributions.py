"""Kernels that promise the library's error are held to it at inputs of several kinds. NumPy is the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tuner.declare.catalogue import builtin
from tuner.workers.further_checks import KINDS, broken_promise, changed
from tuner.workers.workload import Workload

PROBLEM = builtin().operation("gemm").problem({"m": 48, "n": 40, "k": 160}, precision="emulated")
Product = Callable[[Any, Any], Any]


class Host:
    """A device with a library that is NumPy's float32 product."""

    xp = np

    def random(self, seed: int) -> Any:
        return np.random.default_rng(seed)

    def synchronize(self) -> None:
        """Nothing is queued."""

    def library(self, workload: Workload) -> Any:
        return running(workload, np.matmul)


def running(workload: Workload, product: Product) -> Any:
    def run() -> None:
        arrays = workload.arrays
        with np.errstate(all="ignore"):
            arrays["c"][...] = product(arrays["a"], arrays["b"])

    return run


def told(product: Product) -> str:
    device = Host()
    workload = Workload(device, PROBLEM, 1)
    before = workload.arrays["a"].copy()
    found = broken_promise(device, workload, running(workload, product))
    np.testing.assert_array_equal(workload.arrays["a"], before)
    return found


def in_halves(a: Any, b: Any) -> Any:
    return (a.astype("f2").astype("f4")) @ (b.astype("f2").astype("f4"))


def split_globally(a: Any, b: Any) -> Any:
    """Two half-precision parts with one scale for all: right for what is near the largest element alone."""

    def parts(x: Any) -> Any:
        scale = np.float64(2.0) ** (14 - np.frexp(np.nanmax(np.where(np.isfinite(x), np.abs(x), 0)))[1])
        scaled = x.astype("f8") * scale
        high = scaled.astype("f2").astype("f8")
        return high, (scaled - high).astype("f2").astype("f8"), scale

    (a_high, a_low, of_a), (b_high, b_low, of_b) = parts(a), parts(b)
    return (a_high @ b_high + a_high @ b_low + a_low @ b_high) / of_a / of_b


def flushed(x: Any) -> Any:
    """With zeros for subnormal numbers."""
    return np.where(np.abs(x) < 2.0**-126, 0, x)


SCALE = np.float32(2**16)


@pytest.mark.parametrize(
    ("product", "wrong"),
    [
        (np.matmul, ""),
        (lambda a, b: a.astype("f8") @ b.astype("f8"), ""),
        (in_halves, "inputs that are uniform from 0 to 1: an element of c is off by"),
        (split_globally, "outliers of 1e8"),
        (lambda a, b: np.nan_to_num(a @ b, nan=0, posinf=np.inf, neginf=-np.inf), "c is not finite where"),
        (lambda a, b: flushed(a) @ b, "subnormal against large: an element of c is off by"),
        (lambda a, b: flushed(a @ b), "so small that their products are subnormal: an element of c is off by"),
        (lambda a, b: (a * SCALE) @ (b * SCALE) / SCALE**2, "near the end of the range: c is not finite where"),
    ],
    ids=[
        "library",
        "exact",
        "halves",
        "one scale",
        "hides NaN",
        "subnormal inputs",
        "small results",
        "overflow",
    ],
)
def test_the_promise_is_held_against_the_library_at_inputs_of_all_kinds(product: Product, wrong: str) -> None:
    complaint = told(product)
    assert wrong in complaint
    assert bool(complaint) == bool(wrong)


def test_every_kind_changes_the_inputs() -> None:
    for change in KINDS.values():
        arrays = {
            name: np.random.default_rng(1).standard_normal((8, 97), dtype=np.float32) for name in ("a", "b")
        }
        before = {name: x.copy() for name, x in arrays.items()}
        changed(np, change, arrays)
        assert not any(np.array_equal(arrays[name], before[name]) for name in arrays)


def test_what_ladders_show_may_be_inexact_but_not_unwritten() -> None:
    workload = Workload(Host(), PROBLEM, 1)
    workload.begin(workload.first)
    running(workload, in_halves)()
    assert "times what rounding explains" in workload.check()[1]
    assert workload.check(2.0**16)[1] == ""
    workload.poison()
    assert "unwritten" in workload.check(2.0**16)[1]
