"""Configs of one class of rows: found over all sizes, proven between them, answered for each range."""

import itertools
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixtures.fake_device import BEST, BEST_S, database, request, rule, write_device

from tuner import lookup
from tuner.declare import catalogue
from tuner.devices.detect import find
from tuner.errors import InputError, NothingFound
from tuner.lookup.answers import INVARIANT
from tuner.report.invariant import run_invariant
from tuner.results.record import ProblemKey, Role
from tuner.store import Store
from tuner.study.requests import StudyRequest, check_request

DECLARED = """
from pathlib import Path
from tuner import Kernel, Operation, Source, Tensor, Work, choice

OPERATION = Operation(
    name="sums", dims=("m", "k"),
    tensors=lambda p: (Tensor("x", (p.k, p.m), p.dtype), Tensor("y", (p.m,), p.dtype, output=True)),
    work=lambda p: Work(flops=1.0 * p.m * p.k, bytes=4.0 * p.m * p.k),
    reference=lambda xp, p, arrays: arrays["x"].astype(xp.float64).sum(axis=0), terms=lambda p: p.k,
)
KERNEL = Kernel(
    operation="sums", name="ordered", target="cpu", source=Source(Path("sums.numba.py")), idea="an order",
    parameters=(choice("ORDER", "up", "down", "by-size"), choice("FAST", "few", "many")),
    starts=({"ORDER": "up", "FAST": "few"},),
)
"""
#: "by-size" is quick, and gives a row other bits at odd sizes. Of the others "down" is quick for one row only,
#: and "up" takes longer at sizes that it is not made for.
SOURCE = """
def added(x, order):
    total = x[order[0]].copy()
    for at in order[1:]:
        total += x[at]
    return total


def sums(x, y, m, k):
    up, down = range(k), range(k - 1, -1, -1)
    slow = {
        "up": 10 if (FAST == "few") == (m <= 2) else 60, "down": 8 if m == 1 else 100,
        "by-size": 1 if m > 2 else 100,
    }[ORDER]
    for _ in range(slow):
        y[:] = added(x, up if ORDER == "up" or (ORDER == "by-size" and m % 2 == 0) else down)
"""


@pytest.fixture
def asked(tmp_path: Path) -> StudyRequest:
    """All configs of all sizes up to 6 are tried."""
    (tmp_path / "sums.numba.py").write_text(SOURCE)
    (tmp_path / "sums.py").write_text(DECLARED)
    declared = catalogue.from_file(tmp_path / "sums.py")
    return StudyRequest(
        declared.operation("sums").problem({"m": 6, "k": 16}), declared.of("sums"), (find("cpu"),), "hot",
        seconds=None, seed=1, sampler="bruteforce", finals_s=0.4, invariant="m",
    )  # fmt: skip


def test_each_range_has_its_fastest_config_and_no_row_changes_with_their_number(
    tmp_path: Path, asked: StudyRequest
) -> None:
    declared, device = catalogue.from_file(tmp_path / "sums.py"), asked.found[0].info

    def answer(rows: int) -> lookup.Answer:
        key = ProblemKey("sums", (("m", rows), ("k", 16)), "float32", "")
        return lookup.answer(store, key, device, "hot", catalogue=declared, invariant="m")

    with Store.open(database(tmp_path)) as store:
        result = run_invariant(asked, store)
        sizes = [one.record.problem.dims["m"] for one in result.ranges]
        configs = [dict(one.record.config) for one in result.ranges]
        assert sizes == [1, 2, 4, 6]
        assert [config["FAST"] for config in configs] == ["few", "few", "many", "many"]
        assert {config["ORDER"] for config in configs} == {"up"}
        (rows,) = {one.record.measurement.rows for one in result.ranges}
        assert not store.champions()
        assert [dict(answer(rows).config) for rows in (1, 2, 3, 5)] == configs
        assert (answer(5).match, answer(5).to_json()["rows"], answer(5).use) == (INVARIANT, rows, "kernel")
        with pytest.raises(NothingFound, match=r"not for as many rows.*--set m=7.*--invariant m"):
            answer(7)
        (tmp_path / "sums.numba.py").write_text(SOURCE.replace("else 100", "else 99"))
        declared = catalogue.from_file(tmp_path / "sums.py")
        with pytest.raises(NothingFound, match="no rows that are proven now: kernel 'ordered' has changed"):
            answer(5)


@pytest.mark.parametrize(("seconds", "tick_s", "sizes", "searched"), [
    (None, 0.0, [1, 2, 4, 8], [1, 2, 4, 8]), (8.0, 0.0, [1, 2, 4, 8, 16, 32, 64, 80], [80]),
    (8.0, 2.0, [1, 80], [80]), (20.0, 0.8, [1, 4, 8], [1, 8]),
])  # fmt: skip
def test_a_board_takes_the_class_that_is_fastest_at_the_sizes_that_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None, tick_s: float, sizes: list[int],
    searched: list[int],
) -> None:  # fmt: skip
    clock = itertools.count(time.monotonic(), tick_s)
    monkeypatch.setattr("tuner.report.invariant.time", SimpleNamespace(monotonic=clock.__next__))
    slower = BEST | {"BLOCK": 128}
    rules = [rule(BEST, latency_s=BEST_S, error_rel=3e-7), rule(slower, latency_s=2 * BEST_S)]
    board = write_device(tmp_path / "device.json", rules=[*rules, rule({}, latency_s=4 * BEST_S)])
    with Store.open(database(tmp_path)) as store:
        result = run_invariant(request(board, n=sizes[-1], invariant="n", finals_s=0.4, seconds=seconds), store)
        studies = {(one.problem.dims["n"], one.study) for one in store.records(role=Role.TRIAL)}
    assert [one.record.problem.dims["n"] for one in result.ranges] == sizes
    assert sorted(size for size, study in studies if not study.startswith("rows of ")) == searched
    assert seconds or [dict(one.record.config) for one in result.ranges] == [BEST] * 4


def test_rows_are_counted_by_a_dim_of_the_outputs(asked: StudyRequest, tmp_path: Path) -> None:
    board = request(write_device(tmp_path / "device.json"), invariant="m")
    for refused in (board, replace(asked, invariant="k")):
        with pytest.raises(InputError, match=r"--invariant takes a dim that \w+ has rows by, got '[mk]'"):
            check_request(refused)
    with pytest.raises(InputError, match="goes with time alone, and chooses a class itself"):
        check_request(replace(asked, bits="keep"))
    (own,), (emulated,) = asked.kernels, catalogue.builtin().of("gemm", "cuda", ("emulated",))
    falls_back = replace(own, scope=replace(own.scope, fallback=emulated.scope.fallback))
    with Store.open(database(tmp_path)) as store, pytest.raises(NothingFound, match="falls back, got ordered"):
        run_invariant(replace(asked, kernels=(falls_back,)), store)
