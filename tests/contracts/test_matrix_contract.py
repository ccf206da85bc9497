"""What lookups read of a store, whatever database is behind it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.postgres import Databases
from fixtures.records import BOARD, CPU, champion, measured, record, square

from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Role, Subject
from tuner.store import Store, matrix

ASKED = Subject("gemm", "float32", "cuda", "cold")


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path}/studies.db"
    if request.param == "postgresql":
        url = Databases(request.getfixturevalue("postgresql")).fresh()
    with Store.open(url) as opened:
        yield opened


def test_the_fastest_times_come_for_each_problem_and_device(store: Store) -> None:
    slow, quick = record(square(64), 2e-3), record(square(64), 1e-3, config={"BM": 32})
    pruned = record(square(64), measurement=Measurement(Outcome.PRUNED, "slow", (9e-3,)))
    failed = record(square(64), measurement=Measurement(Outcome.CRASHED, "signal 11"))
    elsewhere = [
        record(square(64), 1e-9, device=CPU), record(square(64), 1e-9, regime="hot"),
        record(replace(square(64), dtype="float64"), 1e-9), record(replace(square(64), operation="own"), 1e-9),
    ]  # fmt: skip
    other = record(square(128), 5e-3, device=replace(BOARD, name="NVIDIA L4", uuid="GPU-9"))
    store.add([slow, pruned, failed, *elsewhere, other, quick])
    found = matrix.fastest(store, ASKED, 1000)
    assert [[row.time_s for row in rows] for rows in found] == [[1e-3, 2e-3, 9e-3], [5e-3]]
    first = found[0][0]
    assert (first.problem, first.device, first.kernel, first.source_hash) == (
        square(64),
        BOARD,
        "tiled",
        "aaaa",
    )
    assert (first.config, first.role) == ('{"BM":32}', Role.TRIAL)
    named = matrix.fastest(store, ASKED._replace(device="NVIDIA L4"), 1000)
    assert [[row.problem for row in rows] for rows in named] == [[square(128)]]


def test_few_rows_of_each_problem_are_read(store: Store) -> None:
    store.add([record(square(64), 1e-3 * (1 + at)) for at in range(30)])
    assert [len(rows) for rows in matrix.fastest(store, ASKED, 12)] == [12]


def test_the_last_champion_of_each_problem_comes_with_its_speed_up(store: Store) -> None:
    library = record(square(64), 3e-3, role=Role.BASELINE, kernel="cuBLAS", config={}, source_hash="")
    before, after = record(square(64), 2e-3, role=Role.FINAL), record(square(64), 1e-3, role=Role.FINAL)
    alone = record(square(128), 4e-3, role=Role.FINAL)
    store.crown(champion(after, "2026-01-02T00:00:00.000000+00:00", baseline=library, speedup=3.0))
    store.crown(champion(before, "2026-01-01T00:00:00.000000+00:00"))
    store.crown(champion(alone, "2026-01-03T00:00:00.000000+00:00"))
    first, second = matrix.crowned(store, ASKED)
    assert (first.record.time_s, first.record.kernel, first.speedup) == (1e-3, "tiled", 3.0)
    assert (second.record.problem, second.speedup) == (square(128), 0.0)
    assert matrix.crowned(store, ASKED._replace(device="nothing")) == []


def test_the_stamp_changes_with_what_is_added(store: Store) -> None:
    stamps = [matrix.stamp(store)]
    found = record(square(64), measurement=measured(1e-3))
    for add in (store.add, lambda of: store.crown(champion(of))):
        add(found)
        stamps.append(matrix.stamp(store))
    assert len(set(stamps)) == 3
