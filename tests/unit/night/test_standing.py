"""What makes a champion stale, and which stale ones come first."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.fake_device import TOY, write_device
from fixtures.records import champion, measured, record

from tuner.declare import catalogue
from tuner.devices.detect import find
from tuner.night.plan import PlanItem
from tuner.night.work import Standing
from tuner.results.record import Champion, ProblemKey, Wanted
from tuner.store import Store, watched


@pytest.fixture
def item(here: Path) -> PlanItem:
    for name in ("toy.py", "toy.cu", "toy.numba.py"):
        shutil.copy(TOY.with_name(name), here)
    write_device(here / "device.json")
    declared = catalogue.from_file(Path("toy.py"))
    return PlanItem(declared.operation("toy").problem({"n": 1000}), declared)


def crowned(item: PlanItem, **versions: str) -> Champion:
    kernel = item.catalogue.of("toy", "cuda")[0]
    return champion(
        record(
            ProblemKey.of(item.problem), 1e-3, find("fake:device.json").info, kernel=kernel.name,
            config={"BLOCK": 32, "ITEMS": 1, "ORDER": "blocked"}, source_hash=kernel.source_hash,
            versions={"compiler": "fake 1", "library": "fakeBLAS 1", **versions}, measurement=measured(1e-3),
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({}, ""),
        ({"library": "fakeBLAS 2"}, "the library was fakeBLAS 1 when it was measured and is fakeBLAS 2"),
        ({"compiler": "fake 2"}, "the compiler was fake 1"),
        ({"driver": "2.0"}, "the driver was 1.0"),
    ],
)
def test_a_new_driver_compiler_or_library_makes_a_champion_stale(
    item: PlanItem, here: Path, now: dict[str, str], told: str
) -> None:
    versions = {"compiler": "fake 1", "library": "fakeBLAS 1", "driver": "1.0", **now}
    with Store.open(f"sqlite:///{here}/s.db") as store:
        standing = Standing(store, find("fake:device.json").info, versions)
        assert standing.why_stale(item, crowned(item)).startswith(told)
        assert bool(standing.why_stale(item, crowned(item))) == bool(told)
        assert standing.why_stale(item, None) == ""


def test_what_programs_asked_for_comes_first(item: PlanItem, here: Path) -> None:
    info = find("fake:device.json").info
    other = replace(item, problem=item.problem.operation.problem({"n": 2000}))
    key = ProblemKey.of(other.problem)
    with Store.open(f"sqlite:///{here}/s.db") as store:
        watched.add_demand(store, [Wanted(key, info.kind, info.name, "default", 5, 12.5)])
        standing = Standing(store, info)
        assert standing.savings == {key: 12.5}
