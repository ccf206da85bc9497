"""Finalists at small awkward shapes, and at inputs of several kinds beside the library. NumPy is the device."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.declare.catalogue import builtin
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, Source
from tuner.declare.problem import Operation, Tensor, Work
from tuner.declare.space import Config, Constraint, choice
from tuner.results.measurement import VARIES
from tuner.workers.further_checks import CASES, LIMIT_BYTES, LONG, broken_promise, class_of_rows, edge_problems
from tuner.workers.workload import Workload

BOARD = DeviceInfo("Board", "cuda", max_threads_per_block=1024)
OPERATION = Operation(
    name="outer",
    dims=("m", "n"),
    dtypes=("float32", "float64"),
    tensors=lambda p: (Tensor("c", (p.m, p.n), p.dtype, output=True),),
    work=lambda p: Work(flops=1.0, bytes=1.0),
    reference=lambda xp, p, arrays: xp.zeros((p.m, p.n)),
)


def kernel(*constraints: Constraint) -> Kernel:
    """All that counts are its parameters and rules."""
    return Kernel(
        operation="outer", name="plain", target="cpu", source=Source(Path("none.numba.py")),
        parameters=(choice("TILE", *range(1, 600)), choice("FAST", 0, 1)), constraints=constraints,
    )  # fmt: skip


def shapes(tile: int, *constraints: Constraint, dtype: str = "float32") -> list[tuple[int, ...]]:
    problem = OPERATION.problem({"m": 1000, "n": 2000}, dtype)
    found = edge_problems(problem, kernel(*constraints), Config({"TILE": tile, "FAST": 1}), BOARD)
    assert all((each.operation, each.dtype) == (OPERATION, dtype) for each in found)
    return [tuple(size for _, size in each.shape) for each in found]


@pytest.mark.parametrize("dtype", OPERATION.dtypes)
def test_ones_primes_the_tile_and_its_neighbours_and_thin_ones(dtype: str) -> None:
    found = shapes(48, dtype=dtype)
    assert found[:5] == [(1, 1), (37, 61), (47, 47), (48, 48), (49, 49)]
    assert len(set(found)) == len(found) <= CASES
    assert all(8 * m * n <= LIMIT_BYTES for m, n in found)
    assert {(LONG, 1), (1, LONG), (LONG, 3), (3, LONG)} <= set(found)


def test_where_the_config_breaks_a_rule_that_is_not_for_speed_alone_it_need_not_be_right() -> None:
    even = Constraint("rows are in pairs", lambda p, d, c: p.m % 2 == 0)
    assert {m % 2 for m, _ in shapes(48, even)} == {0}
    large = Constraint("worth its while", lambda p, d, c: p.m > 10_000, for_speed=True)
    assert shapes(48, large) == shapes(48)
    assert shapes(48, replace(large, for_speed=False)) == []


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


def told(product: Product, device: Host | None = None) -> str:
    device = device or Host()
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


@pytest.mark.parametrize(("product", "wrong"), [
    (np.matmul, ""),
    (lambda a, b: a.astype("f8") @ b.astype("f8"), ""),
    (in_halves, "inputs that are all a third: an element of c is off by"),
    (split_globally, "outliers of 1e8"),
    (lambda a, b: np.nan_to_num(a @ b, nan=0, posinf=np.inf, neginf=-np.inf), "c is not finite where"),
    (lambda a, b: flushed(a) @ b, "subnormal against large: an element of c is off by"),
    (lambda a, b: flushed(a @ b), "so small that their products are subnormal: an element of c is off by"),
    (lambda a, b: (a * SCALE) @ (b * SCALE) / SCALE**2, "near the end of the range: c is not finite where"),
])  # fmt: skip
def test_the_promise_is_held_against_the_library_at_inputs_of_all_kinds(product: Product, wrong: str) -> None:
    complaint = told(product)
    assert wrong in complaint
    assert bool(complaint) == bool(wrong)


def in_order(a: Any, b: Any) -> Any:
    return sum(a[:, at, None] * b[at] for at in range(a.shape[1]))


def with_a_fallback(a: Any, b: Any) -> Any:
    """Adds in another order if any number is not finite."""
    return in_order(a, b) if np.isfinite(a).all() else in_order(a[:, ::-1], b[::-1])


def by_place(a: Any, b: Any) -> Any:
    return np.vstack([in_order(a[:5], b), in_order(a[5:, ::-1], b[::-1])])


def classes(product: Product, layout: str = "nn") -> list[str]:
    """Of products of 1, 2, 5 and 64 rows."""
    found = []
    for m in (1, 2, 5, 64):
        problem = PROBLEM.operation.problem({"m": m, "n": 8, "k": 24}, layout=layout)
        workload = Workload(Host(), problem, 1, checked=False)
        found.append(class_of_rows(Host(), workload, running(workload, product), "m", 37))
    return found


def test_a_row_has_one_class_for_any_number_unless_others_or_its_place_count() -> None:
    (rows,) = set(classes(in_order))
    assert set(classes(lambda a, b: in_order(a.T, b), "tn")) == {rows} != {VARIES}
    assert len(set(classes(with_a_fallback))) > 1
    assert classes(by_place) == [rows, rows, rows, VARIES]
