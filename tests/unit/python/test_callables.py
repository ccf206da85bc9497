"""`tuner.matmul`, `gemv` and `transpose` on NumPy arrays: every layout, view and dtype."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result
from fixtures.callable_records import crowned
from fixtures.operands import Array, close, normal, stored

import tuner
from tuner.cli.main import command_line
from tuner.devices.cpu import numba
from tuner.errors import InputError, UnknownName
from tuner.python import running
from tuner.python.decisions import Rereading
from tuner.store import Store
from tuner.study import crowns

pytestmark = pytest.mark.usefixtures("own_records")
LAYOUTS = ("nn", "nt", "tn", "tt")
KERNEL_OR_LIBRARY = pytest.mark.parametrize("speedup", [2.0, 0.5], ids=["kernel", "library"])


@pytest.mark.parametrize(("m", "n", "k"), [(1, 9, 4), (33, 17, 65)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_product_is_right_in_every_layout(m: int, n: int, k: int, layout: str, ran: list[str]) -> None:
    a, b = stored(normal(m, k), layout[0]), stored(normal(k, n), layout[1])
    # A single row lies in either way.
    for each in LAYOUTS if m == 1 else (layout,):
        crowned("gemm", {"m": m, "n": n, "k": k}, layout=each)
    got = tuner.matmul(a, b)
    assert ran == ["blocked"]
    assert got.flags.c_contiguous
    close(got, a @ b)


@pytest.mark.parametrize("letter", ["n", "t"])
def test_a_matrix_times_a_vector_and_a_vector_times_a_matrix(letter: str, ran: list[str]) -> None:
    a, x = stored(normal(23, 31, dtype=np.float64), letter), normal(31, dtype=np.float64)
    crowned("gemv", {"m": 23, "n": 31}, dtype="float64", layout=letter)
    for got in (tuner.gemv(a, x), tuner.matmul(a, x), tuner.matmul(x, a.T)):
        close(got, a @ x)
    assert ran == ["naive"] * 3


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_a_transpose_is_an_array_of_its_own(dtype: Any, ran: list[str]) -> None:
    a = (normal(19, 45) * 100).astype(dtype)
    crowned("transpose", {"m": 19, "n": 45}, dtype=np.dtype(dtype).name)
    out = np.empty((45, 19), dtype)
    assert tuner.transpose(a, out=out) is out
    for got in (tuner.transpose(a), out):
        np.testing.assert_array_equal(got, a.T)
        assert got.flags.c_contiguous
    assert set(ran) == {"blocked"}


@KERNEL_OR_LIBRARY
def test_leading_dims_that_are_one_in_memory_are_rows(speedup: float, ran: list[str]) -> None:
    crowned("gemm", {"m": 6, "n": 5, "k": 4}, speedup=speedup)
    crowned("gemv", {"m": 6, "n": 4}, layout="n", speedup=speedup)
    a, b = normal(2, 3, 4), normal(4, 5)
    out, apart = np.empty((2, 3, 5), np.float32), np.empty((2, 6, 5), np.float32)[:, ::2]
    for given in ((a, b), (a, b, out), (a, b, apart), (a, b[None])):
        close(tuner.matmul(*given), a @ b)
    assert tuner.matmul(a, b, out=out) is out
    close(tuner.matmul(a, b[:, 0].copy()), a @ b[:, 0])
    close(tuner.matmul(a, b, bias=b[0], activation="relu"), np.maximum(a @ b + b[0], 0))
    whole = normal(2, 3, 8)  # rows with gaps are one axis all the same
    close(tuner.matmul(whole[..., :4], b), whole[..., :4] @ b)
    assert bool(ran) == (speedup > 1)


@KERNEL_OR_LIBRARY
def test_stacks_are_one_product_by_numpys_rules(speedup: float, ran: list[str]) -> None:
    dims, how = {"batch": 6, "m": 5, "n": 7, "k": 4}, {"config": {"THREADS": 1}, "speedup": speedup}
    for layout in ("nt", "nt-a", "tt-b"):
        crowned("bmm", dims, layout=layout, **how)
    crowned("bmm", dims | {"batch": 2, "m": 15}, layout="nt", **how)
    crowned("bmm", dims | {"batch": 3}, layout="nt-a", **how)
    a, b = normal(2, 3, 5, 4), normal(2, 3, 7, 4).swapaxes(2, 3)
    out, apart = np.empty((2, 3, 5, 7), np.float32), np.empty((2, 3, 5, 14), np.float32)[..., ::2]
    for given in ((a, b), (a, b, out), (a, b, apart), (a.reshape(6, 5, 4), b.reshape(6, 4, 7))):
        close(tuner.matmul(*given).reshape(2, 3, 5, 7), a @ b)
    assert tuner.matmul(a, b, out=out) is out
    named = tuner.explain("bmm", batch=6, m=5, n=7, k=4, layout="nt", device="cpu")
    assert (named.problem, named.use) == (tuner.explain(a, b).problem, tuner.explain(a, b).use)
    turned, one = normal(2, 3, 4, 5).swapaxes(2, 3), np.broadcast_to(a[:1, :1], a.shape)
    few = normal(2, 1, 7, 4).swapaxes(2, 3)
    for left, right in ((a[0, 0], b), (one, b), (turned, b[0, 0]), (a, few), (a[:, :1], b[0])):
        for given in ((left, right), (left, right, out), (left, right, apart)):
            close(tuner.matmul(*given), left @ right)
            assert not tuner.explain(left, right).copies
    assert set(ran) == ({"stacked"} if speedup > 1 else set())
    for left, right in ((a, b[0]), (one, b[0, 0]), (a[0, 0, 0], b), (one, b[:, :1])):
        close(tuner.matmul(left, right), left @ right)


@KERNEL_OR_LIBRARY
def test_rows_of_groups_are_multiplied_each_by_its_matrix(speedup: float, ran: list[str]) -> None:
    dims = {"rows": 40, "n": 7, "k": 4, "groups": 4}
    crowned("grouped", dims, layout="nt-hot", config={"THREADS": 1}, speedup=speedup)
    a, b, ends = normal(40, 4), normal(4, 7, 4).swapaxes(1, 2), np.array([3, 3, 31, 40], np.int32)
    expected = np.concatenate([a[:3] @ b[0], a[3:31] @ b[2], a[31:] @ b[3]])
    out = np.empty((40, 7), np.float32)
    for given in ((a, b, ends), (a, b, ends, out), (a, b, ends.astype(np.int64)), (a, b.copy(), ends)):
        close(tuner.grouped(*given, distribution="hot"), expected)
    assert tuner.grouped(a, b, ends, out=out, distribution="hot") is out
    close(tuner.grouped(a, b, ends), expected)  # of another class nothing is known
    named = tuner.explain("grouped", layout="nt-hot", device="cpu", **dims)
    assert named.use == ("kernel" if speedup > 1 else "NumPy in a loop")
    assert tuner.explain(tuner.grouped, a, b, ends).problem == "grouped 40 x 7 x 4 x 4 float32 nt-uniform"
    assert set(ran) == ({"stacked"} if speedup > 1 else set())
    with pytest.raises(ValueError, match=r"\(groups, k, n\) and \(groups,\)"):
        tuner.grouped(a, b, ends[:3])
    with pytest.raises(UnknownName, match="distribution 'even'"):
        tuner.grouped(a, b, ends, distribution="even")


def test_rows_of_groups_in_8_bits_are_multiplied_with_their_scales() -> None:
    (rows, n, k), ends = (40, 200, 300), np.array([3, 3, 31, 40], np.int32)
    a, stored = (normal(*shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((rows, k), (4, n, k)))
    b, lines, blocks = (
        stored.swapaxes(1, 2),
        (abs(normal(rows)), abs(normal(4, n))),
        (normal(rows, 3), normal(4, 3, 2)),
    )
    terms, columns = np.arange(k) // 128, np.arange(n) // 128
    for given, of_a, of_b in (
        ((), 1, 1),
        ((abs(normal(1)), abs(normal(4))), None, None),
        (lines, lines[0][:, None], lines[1][:, None]),
        (blocks, blocks[0][:, terms], blocks[1][:, terms][:, :, columns]),
    ):
        of_a, of_b = (given[0], given[1][:, None, None]) if of_a is None else (of_a, of_b)
        wide_a, wide_b = a.astype("float32") * of_a, b.astype("float32") * of_b
        expected = np.concatenate([wide_a[:3] @ wide_b[0], wide_a[3:31] @ wide_b[2], wide_a[31:] @ wide_b[3]])
        got = tuner.grouped(
            a, b, ends, dtype="float32", **dict(zip(("scale_a", "scale_b"), given, strict=False))
        )
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)
    with pytest.raises(ValueError, match=r"\(4,\) for stacks, got"):
        tuner.grouped(a, b, ends, scale_a=lines[0], scale_b=lines[1][0])


VIEWS: dict[str, Callable[[Array], Array]] = {
    "rows with gaps": lambda whole: whole[:8, :6],
    "backwards": lambda whole: whole[7::-1, 5::-1],
    "transposed with gaps": lambda whole: whole[:6, :8].T,
    "one row for all": lambda whole: np.broadcast_to(whole[0, :6], (8, 6)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("saved_s", [1.0, 1e-9])
def test_views_with_gaps_are_copied_where_that_pays(view: str, saved_s: float, ran: list[str]) -> None:
    a, b = VIEWS[view](normal(12, 12)), normal(6, 7)
    for layout in ("nn", "tn"):
        crowned("gemm", {"m": 8, "n": 7, "k": 6}, layout=layout, library_s=saved_s * 2, time_s=saved_s)
    close(tuner.matmul(a, b), a @ b)
    assert ran == (["blocked"] if saved_s == 1.0 else [])
    [copy] = tuner.explain(a, b).copies
    assert "leave gaps, kernels take dense arrays" in copy


def test_a_read_only_operand_is_read_and_an_unaligned_one_copied(ran: list[str]) -> None:
    crowned("gemm", {"m": 8, "n": 7, "k": 6}, library_s=2.0, time_s=1.0)
    a, b = normal(8, 6), normal(6, 7)
    a.flags.writeable = False
    assert tuner.explain(a, b).copies == ()
    odd = np.frombuffer(bytearray(8 * 6 * 4 + 1), np.float32, offset=1, count=48).reshape(8, 6)
    odd[...] = a
    assert "address" in tuner.explain(odd, b).copies[0]
    for left in (a, odd):
        close(tuner.matmul(left, b), a @ b)
    assert ran == ["blocked"] * 2


@KERNEL_OR_LIBRARY
def test_an_out_that_is_an_input_works_as_if_it_were_not(speedup: float) -> None:
    crowned("gemm", {"m": 9, "n": 9, "k": 9}, speedup=speedup)
    crowned("transpose", {"m": 9, "n": 9}, speedup=speedup)
    for place in range(2):
        a, b = normal(9, 9), normal(9, 9)
        wanted, out = a @ b, (a, b)[place]
        assert tuner.matmul(a, b, out=out) is out
        close(out, wanted)
    a = normal(9, 9)
    wanted = a.T.copy()
    assert tuner.transpose(a, out=a) is a
    np.testing.assert_array_equal(a, wanted)


@KERNEL_OR_LIBRARY
def test_an_out_of_any_strides_is_written_and_nothing_beside_it(speedup: float) -> None:
    crowned("gemm", {"m": 4, "n": 5, "k": 6}, speedup=speedup)
    a, b, whole = normal(4, 6), normal(6, 5), np.zeros((8, 10), np.float32)
    for out in (whole[::2, ::2], whole.T[:4, :5]):
        assert tuner.matmul(a, b, out=out) is out
        close(out, a @ b)
        out[...] = 0
        assert not whole.any()


@pytest.mark.parametrize(("a", "b"), [
    (normal(2, 3, 4), normal(2, 4, 5)), (normal(2, 3, 4).swapaxes(0, 1), normal(4, 5)),
    (normal(2, 1, 3, 4), normal(5, 4, 2)), (normal(4), normal(3, 4, 2)), (normal(3, 0), normal(0, 2)),
    (normal(4), normal(4)), (normal(0, 4), normal(4, 3)), ([[1, 2], [3, 4]], [[5.0], [6.0]]),
    (normal(3, 4, dtype=np.float16), normal(4, 5, dtype=np.float16)),
    (normal(3, 4), normal(4, 5, dtype=np.float64)),
    (normal(3, 4).astype(np.int64), normal(4, 5).astype(np.int64)),
], ids=lambda given: f"{np.asarray(given).dtype}{np.asarray(given).shape}")  # fmt: skip
def test_what_kernels_cannot_do_the_library_does(a: Any, b: Any, ran: list[str]) -> None:
    got, wanted = tuner.matmul(a, b), np.matmul(a, b)
    assert (type(got), got.dtype, got.shape) == (type(wanted), wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(got, wanted)
    assert ran == []


def test_a_subclass_stays_what_it_is(ran: list[str]) -> None:
    crowned("gemm", {"m": 3, "n": 3, "k": 3})
    masked = np.ma.masked_array(normal(3, 3), mask=np.eye(3))
    for got in (tuner.matmul(masked, masked), tuner.transpose(masked)):
        assert isinstance(got, np.ma.MaskedArray)
    assert ran == []


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_a_transpose_of_other_than_two_axes_is_numpys(shape: tuple[int, ...]) -> None:
    a = np.asarray(normal(*shape))
    np.testing.assert_array_equal(tuner.transpose(a), np.transpose(a))
    assert not np.shares_memory(tuner.transpose(a), a)


# --- rows with the same bits ----------------------------------------


def ask(words: str) -> Result:
    """What a command printed."""
    return CliRunner().invoke(command_line, words.split())


def test_a_row_of_a_product_does_not_depend_on_how_many_there_are() -> None:
    options = "--device cpu --kernel naive --trials 2 --seconds 10 --invariant m --quiet"
    tuned = ask(f"tune gemm 4 24 40 {options}")
    assert tuned.exit_code == 0, tuned.output
    assert "4 x 24 x 40" in tuned.stdout
    told = json.loads(ask("best gemm 3 24 40 --device cpu --invariant m --json").stdout)
    assert (told["match"], told["record"]["shape"]["m"], told["use"]) == ("invariant", 4, "kernel")
    a, b = normal(4, 40), normal(40, 24)
    whole = tuner.matmul(a, b, invariant="m")
    np.testing.assert_allclose(whole, a @ b, rtol=1e-3, atol=1e-3)
    for rows in (slice(0, 1), slice(1, 4), slice(2, 4), slice(3, 4)):
        assert (tuner.matmul(a[rows], b, invariant="m") == whole[rows]).all()
    with pytest.raises(
        InputError, match="invariant='m' is for products of two matrices by kernels, but it is gemv"
    ):
        tuner.matmul(a[0], b, invariant="m")
    with pytest.raises(InputError, match="invariant is for plain products of arrays"):
        tuner.matmul(a, b, invariant="m", alpha=2.0)


# --- in trouble and in company ----------------------------------------


A, B, X = normal(3, 4), normal(5, 6), normal(7)
FIXED = np.empty((3, 3), np.float32)
FIXED.flags.writeable = False


@pytest.mark.parametrize(("function", "arrays", "out", "kind", "words"), [
    (tuner.matmul, (A, B), None, ValueError, r"core dimensions .* got \(3, 4\) and \(5, 6\)"),
    (tuner.gemv, (A, X), None, ValueError, r"\(m, n\) and \(n,\), .* got"),
    (tuner.gemv, (A, A.T), None, ValueError, r"got \(3, 4\) and \(4, 3\)"),
    (tuner.matmul, (A, A.T), B, ValueError, r"shape of the result, \(3, 3\)"),
    (tuner.matmul, (A, A.T), FIXED, ValueError, "read-only"),
    (tuner.matmul, (A, "b"), None, TypeError, "b is an array.*got str"),
    (tuner.transpose, (None,), None, TypeError, "a is an array.*got NoneType"),
    (tuner.matmul, (A, A.T), np.empty((3, 3), np.int32), TypeError, "cannot cast|Cannot cast"),
])  # fmt: skip
def test_mistakes_are_told(function: Any, arrays: Any, out: Any, kind: type[Exception], words: str) -> None:
    for _ in range(2):  # an error is not remembered
        with pytest.raises(kind, match=words):
            function(*arrays, out=out)


def test_many_threads_get_what_one_gets(ran: list[str]) -> None:
    cases = [(normal(m, 20), normal(20, 12)) for m in (16, 17)]
    for m in (16, 17):
        crowned("gemm", {"m": m, "n": 12, "k": 20}, config={"BLOCK": 16, "THREADS": 2})

    def work(seed: int) -> None:
        for place in np.random.default_rng(seed).integers(0, len(cases), 50):
            a, b = cases[place]
            close(tuner.matmul(a, b), a @ b)
            close(tuner.matmul(a, b, out=np.empty_like(a @ b)), a @ b)

    with ThreadPoolExecutor(8) as threads:
        running = list(map(threads.submit, [work] * 8, range(8)))
        tuner.clear_caches()
        for thread in running:
            thread.result()
    assert set(ran) == {"blocked"}


def test_a_problem_is_looked_up_once_until_caches_are_cleared(ran: list[str]) -> None:
    a, b = normal(4, 6), normal(6, 5)
    tuner.matmul(a, b)
    crowned("gemm", {"m": 4, "n": 5, "k": 6})
    tuner.matmul(a, b)
    assert ran == []
    tuner.clear_caches()
    for _ in range(2):
        tuner.matmul(a, b)
    assert ran == ["blocked"]


def test_a_broken_database_is_said_once_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "studies.db").write_bytes(b"rubbish" * 1000)
    a, b = normal(4, 6), normal(6, 5)
    with pytest.warns(tuner.python.CallableWarning, match="are left out"):
        close(tuner.matmul(a, b), a @ b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(tuner.matmul(a[:3], b), a[:3] @ b)


def test_a_forked_process_opens_the_database_itself(ran: list[str]) -> None:
    for m in (5, 6):
        crowned("gemm", {"m": m, "n": 4, "k": 3})
    a, b = normal(6, 3), normal(3, 4)
    tuner.matmul(a[:5], b)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads are asleep
        child = os.fork()
    if child == 0:
        right = np.allclose(tuner.matmul(a, b), a @ b, rtol=1e-4) and ran == ["blocked"] * 2
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_call_whose_kernel_does_not_compile_is_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("the cache folder is full")

    monkeypatch.setattr(numba, "ready", fails)
    monkeypatch.setattr(running, "_ENTRIES", {})
    crowned("gemm", {"m": 4, "n": 5, "k": 6})
    a, b = normal(4, 6), normal(6, 5)
    with pytest.warns(tuner.python.CallableWarning, match="cache folder is full"):
        close(tuner.matmul(a, b), a @ b)
    close(tuner.matmul(a, b), a @ b)


def test_the_package_loads_callables_at_first_use_only() -> None:
    code = (
        "import sys, tuner; before = set(sys.modules); assert 'numpy' not in before;"
        "tuner.matmul; import json; print(json.dumps(sorted(name.split('.')[0] for name in sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numba", "cupy", "sqlalchemy", "optuna"} & set(json.loads(done.stdout))
    assert {"matmul", "gemv", "transpose", "explain", "clear_caches"} <= set(dir(tuner))


def test_what_was_prepared_is_forgotten_after_a_rollback(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    forgotten = threading.Event()
    looking = Rereading(every_s=0.05)
    looking.forget = forgotten.set
    monkeypatch.setenv("TUNER_DB", "sqlite:///studies.db")
    dims = {"m": 64, "n": 64, "k": 64}
    crowned("gemm", dims, config={"TRANSPOSE_B": False}, time_s=2e-3)
    looking.begin()
    champion = crowned("gemm", dims, config={"TRANSPOSE_B": True}, time_s=1e-3)
    looking.look()
    assert not forgotten.is_set()
    with Store.open("sqlite:///studies.db") as store:
        crowns.rollback(store, crowns.reign(store, champion.record.problem), "slower", "me")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert forgotten.wait(20)
