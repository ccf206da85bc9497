"""Workers of one machine's GPUs do not compile on each other's cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixtures.fake_device import write_device

from tuner.devices.detect import find
from tuner.fleet.worker import WorkerOptions, nanny_options


def test_each_worker_process_gets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    boards = [find(write_device(tmp_path / f"{name}.json", info={"uuid": name})) for name in "ab"]
    made = nanny_options(boards, WorkerOptions(folder=tmp_path))
    assert [options["plugins"][0].cores for options in made] == [set(range(16)), set(range(16, 32))]
    caches = [options["env"]["TUNER_CACHE"] for options in made]
    assert caches == [str(tmp_path / name / "cache") for name in "ab"]
