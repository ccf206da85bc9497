"""A night's work in this process: the device stays open from one study to the next."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from fixtures.fake_device import BEST, BEST_S, TOY, write_device
from fixtures.own_workers import own_workers

from tuner.devices.detect import find
from tuner.errors import DeviceTrouble
from tuner.night.night import Stage
from tuner.night.plan import read_plan
from tuner.night.standing import kernels_of
from tuner.night.work import Done, Work
from tuner.store import Store


@pytest.fixture
def works(here: Path) -> list[Work]:
    for name in ("toy.py", "toy.cu", "toy.numba.py"):
        shutil.copy(TOY.with_name(name), here)
    (here / "plan.toml").write_text('[[problems]]\nfile = "toy.py"\nn = [100, 2000000000, 300]\n')
    return [
        Work(str(number), item, kernels_of(item, "cuda"), 0, (30.0,), "", 120.0, 0.5, None, 1, "random")
        for number, item in enumerate(read_plan(here / "plan.toml").items)
    ]


@pytest.fixture
def stage(here: Path) -> Iterator[Stage]:
    spec = write_device(here / "device.json", baseline_s=2 * BEST_S)
    with Store.open(f"sqlite:///{here}/studies.db") as store:
        found = Stage(store, (find(spec),), lambda item: nullcontext(lambda progress: None))
        yield found
        found.close()


def device_process() -> int:
    (found,) = (pid for pid, role in own_workers().items() if role == "device")
    return found


def tuned(stage: Stage, work: Work) -> Done:
    """A slice and the finals, each handed out on its own."""
    stage.run(work)
    return stage.run(Work(**{**vars(work), "turn": 1, "parts": (), "why": "done"}))


def test_problems_that_follow_share_the_open_device(stage: Stage, works: list[Work]) -> None:
    small, too_large, other = works
    first = tuned(stage, small)
    assert first.finished is not None
    assert first.finished.champion is not None
    assert first.finished.champion.record.config == BEST
    opened = device_process()
    assert "must fit into free memory" in stage.run(too_large).failed
    second = tuned(stage, other)
    assert second.finished is not None
    assert second.finished.champion is not None
    assert device_process() == opened
    stage.close()
    assert own_workers() == {}


def test_a_closed_stage_opens_the_device_again(stage: Stage, works: list[Work], here: Path) -> None:
    stage.close()
    assert tuned(stage, works[0]).finished is not None
    stage.close()
    (here / "device.json").unlink()
    with pytest.raises(DeviceTrouble, match="a fake device is a JSON file"):
        stage.run(works[2])
    write_device(here / "device.json", baseline_s=2 * BEST_S)
    assert tuned(stage, works[2]).finished is not None
