"""Demand and models in the database, on SQLite and PostgreSQL."""

import pytest

from tuner.results.record import ProblemKey, Wanted
from tuner.store import Store, watched


def asked(
    n: int, calls: int = 1, saves_s: float = 1.0, device: str = "Board", precision: str = "ieee"
) -> Wanted:
    problem = ProblemKey("gemm", (("m", n), ("n", n), ("k", n)), "float32", "nn", precision)
    return Wanted(problem, "cuda", device, "predicted", calls, saves_s)


def test_counts_of_a_problem_on_a_device_add_up(either_store: Store) -> None:
    watched.add_demand(either_store, [asked(1, 3, 0.5), asked(2, 1, 9.0)])
    more = [asked(1, 4, 0.25), asked(1, 1, 1.0, "Other"), asked(1, 1, 2.0, precision="emulated")]
    watched.add_demand(either_store, more)
    found = watched.demand(either_store)
    assert [(each.problem.dims["m"], each.problem.precision, each.device) for each in found] == [
        (2, "ieee", "Board"), (1, "emulated", "Board"), (1, "ieee", "Other"), (1, "ieee", "Board"),
    ]  # fmt: skip
    assert [(each.calls, each.saves_s) for each in found] == [(1, 9.0), (1, 2.0), (1, 1.0), (7, 0.75)]
    assert all(each.first_at <= each.last_at for each in found)


def test_it_is_read_and_forgotten_by_device_and_operation(either_store: Store) -> None:
    watched.add_demand(either_store, [asked(1), asked(2, device="Other")])
    (only,) = watched.demand(either_store, device="Other", operation="gemm")
    assert only.problem.dims["m"] == 2
    assert watched.demand(either_store, operation="gemv") == []
    assert watched.forget_demand(either_store, [only]) == 1
    assert [each.device for each in watched.demand(either_store)] == ["Board"]


def test_a_full_list_loses_what_saves_the_least(monkeypatch: pytest.MonkeyPatch, either_store: Store) -> None:
    monkeypatch.setattr(watched, "MOST_ROWS", 5)
    watched.add_demand(either_store, [asked(n, saves_s=float(n)) for n in range(1, 9)])
    assert [each.problem.dims["m"] for each in watched.demand(either_store)] == [8, 7, 6, 5, 4]


def test_the_latest_model_of_a_device_is_kept(either_store: Store) -> None:
    for text in (b"one", b"two"):
        watched.add_model(either_store, "gemm", "Board", "cold", text)
    watched.add_model(either_store, "gemm", "Other board", "cold", b"three")
    watched.add_model(either_store, "gemm", "Board", "hot", b"four")
    found = watched.models(either_store, "gemm", "cold")
    texts = {device: text for device, (_, text) in found.items()}
    assert texts == {"Board": b"two", "Other board": b"three"}
    assert watched.models(either_store, "gemv", "cold") == {}
