"""Worker processes: asked, given a time limit, killed; and the messages between them, whole or refused."""

import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fixtures.fake_device import write_device

from tuner.errors import DeviceTrouble, InputError
from tuner.results.measurement import Outcome
from tuner.workers import process
from tuner.workers.process import LIMIT_BYTES, Channel, ChannelBroken, Worker, WorkerFailed

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
    return write_device(tmp_path / "device.json", faults=True)


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
