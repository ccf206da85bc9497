"""Worker processes that go on from one problem to the next."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixtures.fake_device import BEST, BEST_S, TOY, fault_configs, request, write_device
from fixtures.own_workers import own_workers

from tuner.declare.kernel import render
from tuner.declare.space import Config
from tuner.devices.detect import find
from tuner.errors import DeviceTrouble
from tuner.results.measurement import Outcome
from tuner.workers.device_worker import Crew


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return write_device(tmp_path / "device.json", faults=True, baseline_s=2 * BEST_S)


@pytest.fixture
def crew(spec: str) -> Iterator[Crew]:
    with Crew([find(spec)], most_compilers=2) as opened:
        yield opened


def named(spec: str, n: int = 1000) -> dict[str, Any]:
    return {**request(spec, n=n).problem.to_json(), "origin": str(TOY)}


def compiled(crew: Crew, spec: str, config: dict[str, Any], n: int = 1000) -> Any:
    asked = request(spec, n=n)
    text = render(asked.kernels[0], asked.problem, Config(config))
    return crew.pool(named(spec, n)).compile_all({0: text})[0]


def measured(crew: Crew, spec: str, config: dict[str, Any], n: int = 1000) -> Outcome:
    worker = crew.devices[0]
    worker.prepare(named(spec, n), "cold")
    worker.begin(compiled(crew, spec, config, n), None)
    while not worker.arrived():
        time.sleep(0.01)
    return worker.finish().outcome


def test_the_same_processes_work_on_one_problem_after_the_other(crew: Crew, spec: str) -> None:
    assert measured(crew, spec, BEST) is Outcome.MEASURED
    before = own_workers()
    assert sorted(before.values()) == ["compile", "device"]
    crew.rest()
    crew.open()
    assert measured(crew, spec, BEST, n=3000) is Outcome.MEASURED
    assert own_workers() == before


def test_what_was_asked_for_one_problem_does_not_come_at_the_next(crew: Crew, spec: str) -> None:
    asked = request(spec)
    text = render(asked.kernels[0], asked.problem, Config(BEST))
    pool = crew.pool(named(spec))
    for ticket in range(6):
        pool.submit(ticket, text)
    crew.rest()
    assert pool.pending == 0
    assert list(pool.results({77: text})) == [77]
    assert pool.ready() == {}


@pytest.mark.parametrize("how", ["busy", "died before", "died while it rests"])
def test_a_device_that_does_not_rest_is_opened_anew(crew: Crew, spec: str, how: str) -> None:
    worker = crew.devices[0]
    before = psutil.Process(worker.channel.pid)
    if how == "busy":
        worker.prepare(named(spec), "cold")
        worker.begin(compiled(crew, spec, fault_configs()["hang"]), None, limit_s=100.0)
    elif how == "died before":
        before.kill()
    crew.rest()
    if how == "died while it rests":
        before.kill()
    crew.open()
    assert not before.is_running()
    assert measured(crew, spec, BEST) is Outcome.MEASURED


def test_at_the_end_no_process_is_left_and_it_can_be_opened_again(spec: str, tmp_path: Path) -> None:
    crew = Crew([find(spec)], most_compilers=1)
    assert own_workers() == {}
    crew.open()
    assert measured(crew, spec, BEST) is Outcome.MEASURED
    assert len(own_workers()) == 2
    crew.close()
    crew.close()
    assert own_workers() == {}
    with crew:
        assert measured(crew, spec, BEST) is Outcome.MEASURED
    assert own_workers() == {}
    (tmp_path / "device.json").unlink()
    with pytest.raises(DeviceTrouble, match="cannot read"):
        crew.open()
    assert own_workers() == {}
