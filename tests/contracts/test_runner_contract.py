"""What each runner of a night promises: this process, and workers of a cluster. Real studies, fake devices."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import dask
import pytest
from fixtures.fake_device import BEST, BEST_S, LEGAL, copy_toy, write_device

from tuner.devices.detect import find
from tuner.fleet.clusters import connected
from tuner.fleet.runner import ClaimLedger, ClusterRunner
from tuner.night.command import Printer
from tuner.night.night import LocalRunner
from tuner.night.plan import read_plan
from tuner.night.work import Assignment, Done, Place, Runner, kernels_of
from tuner.results.record import Role
from tuner.store import Store

BOTH = ("here", "cluster")


@pytest.fixture(scope="module", params=BOTH)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Runner, Assignment, Store]]:
    """A runner with one place, work on the toy, and the database."""
    folder = tmp_path_factory.mktemp("runner")
    copy_toy(folder)
    spec = write_device(folder / "device.json", baseline_s=2 * BEST_S)
    (folder / "plan.toml").write_text('[[problems]]\nfile = "toy.py"\nn = [100, 2000000000]\n')
    found, plan = find(spec), read_plan(folder / "plan.toml")
    item = plan.items[0]
    work = Assignment("0", item, kernels_of(item, "cuda"), 0, (30.0,), 120.0, 2.0, None, 1, "random")
    work = replace(work, item=replace(item, trials=20))
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(f"sqlite:///{folder}/studies.db"))
        if request.param == "here":
            here = LocalRunner(store, (found,), Printer(True).view)
            stack.callback(here.stop, "the test is over")
            yield here, work, store
            return
        # The client refreshes what it knows all the time, without workers: none may count as lost for it.
        stack.enter_context(dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}))
        client = stack.enter_context(connected("local", (found,), folder=folder / "workers"))
        ledger = ClaimLedger(store, f"sqlite:///{folder}/studies.db")
        runner = ClusterRunner(client, ledger, [str(item.file)])
        stack.callback(runner.stop, "the test is over")
        yield runner, work, store


def free(runner: Runner) -> Place:
    """The place, once it waits for work."""
    until_s = time.monotonic() + 60
    while not runner.free() and time.monotonic() < until_s:
        list(runner.wait(0.2))
    (place,) = runner.free()
    return place


def ran(runner: Runner, work: Assignment) -> Done:
    """What came of a piece of work."""
    place = free(runner)
    runner.start(place, work)
    assert list(runner.free()) == [], "a place has one piece of work"
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        for where, what, done in runner.wait(0.5):
            assert (where, what) == (place, work)
            return done
    raise AssertionError("the work did not end")


def test_a_study_goes_on_from_slice_to_slice_to_its_finals(made: tuple[Runner, Assignment, Store]) -> None:
    runner, work, store = made
    first = ran(runner, work)
    assert first.opening_s is not None
    assert first.library is not None
    (part,) = first.parts
    assert (part.trials, part.why) == (20, "all trials are done")
    assert first.trials["total"] == 20
    assert first.spent_s > 0
    assert (first.champion, first.failed) == (None, "")
    # Its trials are over, so more of them need a study that is opened anew.
    more = replace(work, item=replace(work.item, trials=None), turn=7, library=first.library)
    second = ran(runner, more)
    assert second.opening_s is not None, "somebody else may have worked on it in between"
    assert second.parts[-1].why == "space covered"
    assert second.trials["total"] == LEGAL
    third = ran(runner, replace(more, turn=8, parts=()))
    assert third.opening_s is None, "the study was open"
    assert third.champion.record.config == BEST
    (champion,) = store.champions()
    assert champion.id == third.champion.id
    trials = store.records(role=Role.TRIAL)
    assert len({tuple(each.config.items()) for each in trials}) == len(trials) == LEGAL
    assert {each.device.uuid for each in store.records()} == {free(runner).info.uuid}
    assert len(store.records(role=Role.BASELINE)) >= 2
    assert list(runner.gone()) == []


def test_a_problem_that_cannot_be_tuned_blames_no_place(made: tuple[Runner, Assignment, Store]) -> None:
    runner, work, _ = made
    impossible = read_plan(Path(str(work.item.file)).with_name("plan.toml")).items[1]
    done = ran(runner, replace(work, name="1", item=impossible))
    assert "must fit into free memory" in done.failed
    assert done.lost == ""
    assert free(runner)
