"""The device worker of a study and other processes: replaced when they fail, from one problem to the next."""

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixtures.fake_device import BEST, BEST_S, TOY, fault_configs, request, rule, write_device
from fixtures.own_workers import own_workers
from tuner.devices.fake.device import FakeCompiler

from tuner.declare.kernel import render
from tuner.declare.space import Config
from tuner.devices.detect import find
from tuner.errors import DeviceTrouble, InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.workers import device_worker, process
from tuner.workers.bench import CompiledConfig, ShapeCase
from tuner.workers.device_worker import Crew, DeviceWorker
from tuner.workers.process import LIMIT_BYTES, Channel, ChannelBroken, Worker, WorkerFailed

Make = Callable[..., DeviceWorker]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Opens and prepares a fake device with every fault."""
    opened: list[DeviceWorker] = []

    def made(**more: Any) -> DeviceWorker:
        spec = write_device(tmp_path / "device.json", faults=True, baseline_s=2 * BEST_S, **more)
        opened.append(DeviceWorker(find(spec)))
        opened[-1].open()
        opened[-1].prepare(named(spec), "cold")
        return opened[-1]

    yield made
    for worker in opened:
        worker.close()


def named(spec: str, n: int = 1000) -> dict[str, Any]:
    """The toy of a size, as a message names it."""
    return {**request(spec, n=n).problem.to_json(), "origin": str(TOY)}


def compiled_config(tmp_path: Path, config: dict[str, Any]) -> CompiledConfig:
    asked = request(f"fake:{tmp_path}/device.json")
    rendered = render(asked.kernels[0], asked.problem, Config(config))
    binary = FakeCompiler(f"{tmp_path}/device.json").compile(rendered, "", asked.problem)
    return CompiledConfig(rendered, binary.code, binary.report)


def measured(worker: DeviceWorker, compiled_config: CompiledConfig) -> Measurement:
    worker.begin(compiled_config, None)
    assert worker.channel.busy
    while not worker.arrived():
        time.sleep(0.01)
    return worker.finish()


def test_a_worker_killed_between_two_configs_costs_nothing(make: Make, tmp_path: Path) -> None:
    worker = make()
    process = psutil.Process(worker.channel.pid)
    process.kill()
    process.wait()
    assert measured(worker, compiled_config(tmp_path, BEST)).outcome is Outcome.MEASURED
    assert worker.restarts == 1
    worker.channel.kill()
    with pytest.raises(DeviceTrouble, match=r"Fake board cannot measure baseline: .*; run `tuner doctor`"):
        worker.baseline()


def test_a_worker_whose_clock_contradicts_the_studys_is_replaced_and_its_config_wrong(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make()
    monkeypatch.setattr(process, "CLOCK_S", -3600.0)  # every clock is too far off
    found = measured(worker, compiled_config(tmp_path, BEST))
    assert (found.outcome, worker.restarts) == (Outcome.WRONG_RESULT, 2)
    assert found.reason.startswith("its clock says ")
    assert found.samples_s == ()


def test_finals_and_verification_go_through_the_worker(make: Make, tmp_path: Path) -> None:
    worker = make()
    good = compiled_config(tmp_path, BEST)
    wrong = compiled_config(tmp_path, fault_configs()["wrong_result"])
    found = worker.finals([good, wrong], 0.0)
    assert [each.outcome.value for each in found] == ["MEASURED", "WRONG_RESULT", "MEASURED"]
    cases = [ShapeCase(named(f"fake:{tmp_path}/device.json", 7), good.rendered.launch)]
    assert worker.verify(good, cases) == ""
    assert worker.verify(wrong, cases).startswith("at toy 7 float32 plain: largest error")
    crash = compiled_config(tmp_path, fault_configs()["crash"])
    assert "died with signal SIGSEGV" in worker.verify(crash, cases)
    assert worker.verify(good, cases) == ""


@pytest.mark.parametrize(
    ("fault", "reason"), [("crash", "signal SIGSEGV"), ("unwell", "illegal memory access")]
)
def test_finals_outlast_a_finalist_that_fails(make: Make, tmp_path: Path, fault: str, reason: str) -> None:
    other = {"BLOCK": 128, "ITEMS": 1, "ORDER": "striped"}
    late = rule(other, latency_s=0.9 * BEST_S, fault=fault, after=20)
    worker = make(rules=[rule(BEST, latency_s=BEST_S), late])
    good, bad = compiled_config(tmp_path, BEST), compiled_config(tmp_path, other)
    assert measured(worker, bad).outcome is Outcome.MEASURED
    found = worker.finals([bad, good], 1.0)
    assert [each.outcome.value for each in found] == ["CRASHED", "MEASURED", "MEASURED"]
    assert reason in found[0].reason
    assert [each.time_s for each in found[1:]] == [
        pytest.approx(BEST_S, rel=0.01), pytest.approx(2 * BEST_S, rel=0.01),
    ]  # fmt: skip


def test_a_slow_first_run_is_stopped(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make()
    monkeypatch.setattr(device_worker, "FIRST_LIMIT_FLOOR_S", 0.2)
    worker.begin(compiled_config(tmp_path, fault_configs()["hang"]), BEST_S)
    found = worker.finish()
    assert (found.outcome, worker.restarts) == (Outcome.TIMED_OUT, 1)
    assert found.reason == "its first run did not end in time"
    assert measured(worker, compiled_config(tmp_path, BEST)).outcome is Outcome.MEASURED


def test_time_of_a_stopped_worker_is_none(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_worker, "LIMIT_FLOOR_S", 1.0)
    monkeypatch.setattr(device_worker, "LIMIT_FACTOR", 1.0)
    # With a best time, the first run has a limit of its own, which the worker's own timer keeps.
    monkeypatch.setattr(device_worker, "FIRST_LIMIT_FLOOR_S", 0.9)
    worker = make(rules=[rule(BEST, latency_s=BEST_S, first_s=0.2)])
    worker.begin(compiled_config(tmp_path, BEST), BEST_S)
    time.sleep(0.1)
    pid = worker.channel.pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(2.0, os.kill, (pid, signal.SIGCONT)).start()
    while not worker.arrived():
        time.sleep(0.01)
    found = worker.finish()
    assert found.outcome is Outcome.MEASURED
    assert found.time_s == pytest.approx(BEST_S, rel=0.01)
    assert worker.stopped_s > 0


# --- processes ----------------------------------------


Start = Callable[[str, str], Worker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts workers that do not outlive the test."""
    workers: list[Worker] = []

    def started(role: str, spec: str) -> Worker:
        workers.append(Worker(role, spec, {"TUNER_TEST": "seen"}))
        return workers[-1]

    yield started
    for worker in workers:
        worker.close()


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return write_device(tmp_path / "device.json", faults=True, baseline_s=2 * BEST_S)


def test_a_device_worker_answers_until_it_is_closed(start: Start, spec: str) -> None:
    worker = start("device", spec)
    hello = worker.ask({"do": "hello"})
    assert hello["info"]["name"] == "Fake board"
    assert hello["free_bytes"] == 1 << 34
    assert worker.ask({"do": "canary"})["unwell"] == ""
    assert not worker.busy
    # What no study asks comes back as trouble, and the worker lives on.
    with pytest.raises(DeviceTrouble, match="prepare comes first"):
        worker.ask({"do": "call", "method": "measure_baseline", "arguments": {}})
    named = {"operation": "nothing", "shape": {}, "dtype": "", "layout": "", "origin": ""}
    with pytest.raises(InputError, match="unknown operation 'nothing'"):
        worker.ask({"do": "prepare", "problem": named})
    child = psutil.Process(worker.pid)
    assert child.environ()["TUNER_TEST"] == "seen"
    assert os.getpgid(worker.pid) == worker.pid != os.getpgid(0)
    # Ctrl-C is for the study only.
    os.kill(worker.pid, signal.SIGINT)
    assert worker.ask({"do": "canary"})["unwell"] == ""
    os.kill(worker.pid, signal.SIGTERM)
    with pytest.raises(WorkerFailed, match="the worker died with signal SIGTERM") as caught:
        worker.ask({"do": "hello"})
    assert caught.value.outcome is Outcome.CRASHED
    worker.close()
    assert not child.is_running()


def test_a_worker_that_is_late_is_killed(start: Start, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOPPED_LIMIT_S", 0.0)
    worker = start("compile", spec)
    worker.ask({"do": "hello"})
    os.kill(worker.pid, signal.SIGSTOP)
    child = psutil.Process(worker.pid)
    assert not worker.overdue()
    with pytest.raises(WorkerFailed, match="did not answer in time") as caught:
        worker.ask({"do": "hello"}, limit_s=0.2)
    assert caught.value.outcome is Outcome.TIMED_OUT
    assert not child.is_running()


def test_what_a_dying_worker_wrote_is_part_of_the_reason(start: Start, spec: str) -> None:
    worker = start("compile", spec)
    with pytest.raises(WorkerFailed, match=r"(?s)the worker died with exit code 1: .*KeyError: 'do'"):
        worker.ask({"no": "request"})


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """One end as a channel that waits a second, the other as a bare socket."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours, 1)
    yield channel, theirs
    channel.close()
    theirs.close()


def framed(text: bytes) -> bytes:
    return struct.pack("!i", len(text)) + text


@pytest.mark.parametrize(
    "rubbish",
    [b"Segmentation fault (core dumped)\n", struct.pack("!i", LIMIT_BYTES + 1), framed(b"nope"), framed(b"[]"),
     framed(b"\xff\xfe")],
    ids=["text", "too long", "no JSON", "no object", "no UTF-8"],
)  # fmt: skip
def test_rubbish_is_refused(pair: tuple[Channel, socket.socket], rubbish: bytes) -> None:
    channel, other = pair
    other.sendall(rubbish)
    with pytest.raises(ChannelBroken, match="rubbish") as caught:
        channel.receive(5)
    assert caught.value.rubbish


def test_a_stop_in_the_middle_of_a_message_is_told(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    with pytest.raises(ChannelBroken, match="no answer"):
        channel.receive(0.01)
    other.sendall(struct.pack("!i", 100) + b"{")
    with pytest.raises(ChannelBroken, match="no answer"):
        channel.receive(5)
    with pytest.raises(ChannelBroken, match="cannot send"):
        channel.send({"long": "x" * (1 << 24)})


def test_an_end_in_the_middle_of_a_message_is_told(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    other.sendall(struct.pack("!i", 100) + b"{")
    other.close()
    with pytest.raises(ChannelBroken, match="closed its channel") as caught:
        channel.receive(5)
    assert not caught.value.rubbish


# --- from one problem to the next ----------------------------------------


@pytest.fixture
def crew(spec: str) -> Iterator[Crew]:
    with Crew([find(spec)], most_compilers=2) as opened:
        yield opened


def compiled(crew: Crew, spec: str, config: dict[str, Any], n: int = 1000) -> Any:
    asked = request(spec, n=n)
    text = render(asked.kernels[0], asked.problem, Config(config))
    return crew.pool(named(spec, n)).compile_all({0: text})[0]


def outcome(crew: Crew, spec: str, config: dict[str, Any], n: int = 1000) -> Outcome:
    crew.devices[0].prepare(named(spec, n), "cold")
    return measured(crew.devices[0], compiled(crew, spec, config, n)).outcome


def test_the_same_processes_work_on_one_problem_after_the_other(crew: Crew, spec: str) -> None:
    assert outcome(crew, spec, BEST) is Outcome.MEASURED
    before = own_workers()
    assert sorted(before.values()) == ["compile", "device"]
    crew.rest()
    crew.open()
    assert outcome(crew, spec, BEST, n=3000) is Outcome.MEASURED
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
    assert outcome(crew, spec, BEST) is Outcome.MEASURED


def test_at_the_end_no_process_is_left_and_it_can_be_opened_again(spec: str, tmp_path: Path) -> None:
    crew = Crew([find(spec)], most_compilers=1)
    assert own_workers() == {}
    crew.open()
    assert outcome(crew, spec, BEST) is Outcome.MEASURED
    assert len(own_workers()) == 2
    crew.close()
    crew.close()
    assert own_workers() == {}
    with crew:
        assert outcome(crew, spec, BEST) is Outcome.MEASURED
    assert own_workers() == {}
    (tmp_path / "device.json").unlink()
    with pytest.raises(DeviceTrouble, match="cannot read"):
        crew.open()
    assert own_workers() == {}
