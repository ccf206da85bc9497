"""`tuner.matmul`, `gemv` and `transpose` on NumPy arrays: every layout, view and dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fixtures.callable_records import crowned, empty_database, own_records, ran
from fixtures.operands import Array, close, normal, stored

import tuner

__all__ = ["empty_database", "own_records", "ran"]
SHAPES = [(1, 1, 1), (1, 9, 4), (33, 17, 65)]


pytestmark = pytest.mark.usefixtures("own_records")


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_a_product_is_right_in_every_layout(m: int, n: int, k: int, layout: str, ran: list[str]) -> None:
    a, b = stored(normal(m, k), layout[0]), stored(normal(k, n), layout[1])
    # A single row lies in either way.
    for each in {"nn", "nt", "tn", "tt"} if 1 in (m, n, k) else {layout}:
        crowned("gemm", {"m": m, "n": n, "k": k}, layout=each)
    got = tuner.matmul(a, b)
    assert ran == ["blocked"]
    assert got.flags.c_contiguous
    close(got, a @ b)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_a_column_major_result_is_the_transposed_product(layout: str, ran: list[str]) -> None:
    a, b = stored(normal(6, 5), layout[0]), stored(normal(5, 9), layout[1])
    for each in ("nn", "nt", "tn", "tt"):
        crowned("gemm", {"m": 9, "n": 6, "k": 5}, layout=each)
    out = np.full((9, 6), np.nan, np.float32).T
    assert tuner.matmul(a, b, out=out) is out
    close(out, a @ b)
    assert ran == ["blocked"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_threads_of_a_config_run(dtype: Any, threads: int, ran: list[str]) -> None:
    a, b = normal(37, 21, dtype=dtype), normal(21, 40, dtype=dtype)
    crowned(
        "gemm",
        {"m": 37, "n": 40, "k": 21},
        dtype=np.dtype(dtype).name,
        config={"BLOCK": 16, "THREADS": threads},
    )
    close(tuner.matmul(a, b), a @ b)
    assert ran == ["blocked"]


@pytest.mark.parametrize("letter", ["n", "t"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_matrix_times_a_vector(letter: str, dtype: Any, ran: list[str]) -> None:
    a, x = stored(normal(23, 31, dtype=dtype), letter), normal(31, dtype=dtype)
    crowned("gemv", {"m": 23, "n": 31}, dtype=np.dtype(dtype).name, layout=letter)
    close(tuner.gemv(a, x), a @ x)
    close(tuner.matmul(a, x), a @ x)
    assert ran == ["naive", "naive"]


@pytest.mark.parametrize("letter", ["n", "t"])
def test_a_vector_times_a_matrix_is_a_gemv_of_the_transpose(letter: str, ran: list[str]) -> None:
    x, b = normal(31), stored(normal(31, 23), letter)
    crowned("gemv", {"m": 23, "n": 31}, layout="t" if letter == "n" else "n")
    close(tuner.matmul(x, b), x @ b)
    assert ran == ["naive"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_a_transpose_is_an_array_of_its_own(dtype: Any, ran: list[str]) -> None:
    a = (normal(19, 45) * 100).astype(dtype)
    crowned("transpose", {"m": 19, "n": 45}, dtype=np.dtype(dtype).name, layout="")
    out = np.empty((45, 19), dtype)
    assert tuner.transpose(a, out=out) is out
    for got in (tuner.transpose(a), out):
        np.testing.assert_array_equal(got, a.T)
        assert got.flags.c_contiguous
    assert set(ran) == {"blocked"}


def test_nan_and_infinity_pass_through(ran: list[str]) -> None:
    crowned("gemm", {"m": 5, "n": 4, "k": 3})
    a, b = normal(5, 3), normal(3, 4)
    a[2, 1], b[0, 3] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isfinite(tuner.matmul(a, b)), np.isfinite(a @ b))
    assert ran == ["blocked"]


VIEWS: dict[str, Callable[[Array], Array]] = {
    "rows with gaps": lambda whole: whole[:8, :6],
    "every other column": lambda whole: whole[:8, ::2],
    "backwards": lambda whole: whole[7::-1, 5::-1],
    "transposed with gaps": lambda whole: whole[:6, :8].T,
    "one row for all": lambda whole: np.broadcast_to(whole[0, :6], (8, 6)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("saved_s", [1.0, 1e-9])
def test_views_with_gaps_are_copied_where_that_pays_and_left_to_the_library_where_not(
    view: str, saved_s: float, ran: list[str]
) -> None:
    a = VIEWS[view](normal(12, 12))
    b = normal(a.shape[1], 7)
    for layout in ("nn", "tn"):
        crowned("gemm", {"m": 8, "n": 7, "k": a.shape[1]}, layout=layout, library_s=saved_s * 2, time_s=saved_s)
    before = a.copy()
    close(tuner.matmul(a, b), a @ b)
    np.testing.assert_array_equal(a, before)
    assert ran == (["blocked"] if saved_s == 1.0 else [])


def test_a_read_only_operand_needs_neither_copy_nor_other_code(ran: list[str]) -> None:
    crowned("gemm", {"m": 8, "n": 7, "k": 6})
    a, b = normal(8, 6), normal(6, 7)
    a.flags.writeable = False
    assert tuner.explain(a, b).copies == ()
    close(tuner.matmul(a, b), a @ b)
    assert not a.flags.writeable
    assert ran == ["blocked"]


def test_an_unaligned_operand_is_copied(ran: list[str]) -> None:
    crowned("gemm", {"m": 8, "n": 7, "k": 6}, library_s=2.0, time_s=1.0)
    memory = bytearray(8 * 6 * 4 + 1)
    a = np.frombuffer(memory, np.float32, offset=1, count=48).reshape(8, 6)
    a[...] = normal(8, 6)
    b = normal(6, 7)
    assert "address" in tuner.explain(a, b).copies[0]
    close(tuner.matmul(a, b), a @ b)
    assert ran == ["blocked"]


@pytest.mark.parametrize("speedup", [2.0, 0.5], ids=["kernel", "library"])
def test_an_out_that_is_an_input_works_as_if_it_were_not(speedup: float) -> None:
    crowned("gemm", {"m": 9, "n": 9, "k": 9}, speedup=speedup)
    crowned("transpose", {"m": 9, "n": 9}, layout="", speedup=speedup)
    for place in range(2):
        a, b = normal(9, 9), normal(9, 9)
        wanted, out = a @ b, (a, b)[place]
        assert tuner.matmul(a, b, out=out) is out
        close(out, wanted)
    a = normal(9, 9)
    wanted = a.T.copy()
    assert tuner.transpose(a, out=a) is a
    np.testing.assert_array_equal(a, wanted)


@pytest.mark.parametrize("speedup", [2.0, 0.5], ids=["kernel", "library"])
def test_an_out_with_gaps_is_written_and_nothing_beside_it(speedup: float) -> None:
    crowned("gemm", {"m": 4, "n": 5, "k": 6}, speedup=speedup)
    a, b, whole = normal(4, 6), normal(6, 5), np.zeros((8, 10), np.float32)
    assert np.shares_memory(tuner.matmul(a, b, out=whole[::2, ::2]), whole)
    close(whole[::2, ::2], a @ b)
    whole[::2, ::2] = 0
    assert not whole.any()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (normal(3, 4, 5), normal(5, 6)),
        (normal(2, 3, 4), normal(2, 4, 5)),
        (normal(4), normal(4)),
        (normal(0, 4), normal(4, 3)),
        (normal(3, 0), normal(0, 2)),
        (normal(3, 4, dtype=np.float16), normal(4, 5, dtype=np.float16)),
        (normal(3, 4), normal(4, 5, dtype=np.float64)),
        (normal(3, 4).astype(np.int64), normal(4, 5).astype(np.int64)),
        (normal(3, 4).astype(np.complex64), normal(4, 5).astype(np.complex64)),
        (normal(3, 4) > 0, normal(4, 5) > 0),
        (normal(3, 4).astype(">f4"), normal(4, 5).astype(">f4")),
        ([[1, 2], [3, 4]], [[5.0], [6.0]]),
    ],
    ids=lambda given: f"{np.asarray(given).dtype}{np.asarray(given).shape}",
)
def test_what_kernels_cannot_do_the_library_does(a: Any, b: Any, ran: list[str]) -> None:
    got, wanted = tuner.matmul(a, b), np.matmul(a, b)
    assert (type(got), got.dtype, got.shape) == (type(wanted), wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(got, wanted)
    assert ran == []
    if isinstance(a, np.ndarray) and wanted.ndim:
        out = np.empty_like(wanted)
        np.testing.assert_array_equal(tuner.matmul(a, b, out=out), wanted)


def test_a_subclass_stays_what_it_is(ran: list[str]) -> None:
    crowned("gemm", {"m": 3, "n": 3, "k": 3})
    plain = normal(3, 3)
    masked = np.ma.masked_array(plain, mask=np.eye(3))
    tuner.matmul(plain, plain)
    assert isinstance(tuner.matmul(masked, masked), np.ma.MaskedArray)
    assert ran == ["blocked"]


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_a_transpose_of_other_than_two_axes_is_numpys(shape: tuple[int, ...]) -> None:
    a = np.asarray(normal(*shape))
    np.testing.assert_array_equal(tuner.transpose(a), np.transpose(a))
    assert not np.shares_memory(tuner.transpose(a), a)
