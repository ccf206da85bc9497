"""Workers of one machine's GPUs do not compile on each other's cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixtures.fake_device import write_device
from hypothesis import given
from hypothesis import strategies as st

from tuner.devices.detect import find
from tuner.fleet.worker import LEAST_CORES, WorkerOptions, nanny_options, shares


@given(cores=st.sets(st.integers(0, 500), min_size=1, max_size=130), count=st.integers(1, 9))
def test_shares_are_equal_and_apart_unless_there_are_too_few_cores(cores: set[int], count: int) -> None:
    found = shares(sorted(cores), count)
    assert len(found) == count
    if len(cores) // count < LEAST_CORES:
        assert all(each == cores for each in found)
        return
    assert len({len(each) for each in found}) == 1
    assert set.union(*found) <= cores
    assert sum(map(len, found)) == len(set.union(*found)), "no core is in two shares"
    assert len(cores) - sum(map(len, found)) < count


def test_each_worker_process_gets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    boards = [find(write_device(tmp_path / f"{name}.json", info={"uuid": name})) for name in "ab"]
    made = nanny_options(boards, WorkerOptions(folder=tmp_path))
    assert [options["plugins"][0].cores for options in made] == [set(range(16)), set(range(16, 32))]
    caches = [options["env"]["TUNER_CACHE"] for options in made]
    assert caches == [str(tmp_path / name / "cache") for name in "ab"]
