"""Worker processes: asked, given a time limit, killed; and the messages between them, whole or refused."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fixtures.fake_device import write_device
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import DeviceTrouble, InputError
from tuner.workers import process
from tuner.workers.process import LIMIT_BYTES, MAGIC, Channel, ChannelBroken, Worker, WorkerFailed

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
        worker.ask({"do": "baseline"})
    named = {"operation": "nothing", "shape": {}, "dtype": "", "layout": "", "origin": ""}
    with pytest.raises(InputError, match="unknown operation 'nothing'"):
        worker.ask({"do": "prepare", "problem": named})
    assert worker.ask({"do": "canary"})["unwell"] == ""
    child = psutil.Process(worker.pid)
    assert child.environ()["TUNER_TEST"] == "seen"
    assert os.getsid(worker.pid) == worker.pid != os.getsid(0)
    # Ctrl-C is for the study only.
    os.kill(worker.pid, signal.SIGINT)
    assert worker.ask({"do": "canary"})["unwell"] == ""
    os.kill(worker.pid, signal.SIGTERM)
    with pytest.raises(WorkerFailed, match="the worker died with signal SIGTERM") as caught:
        worker.ask({"do": "hello"})
    assert not caught.value.timed_out
    worker.close()
    assert not child.is_running()


def test_a_worker_that_takes_too_long_is_killed_in_time(
    start: Start, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STOPPED_LIMIT_S", 0.0)
    worker = start("compile", spec)
    worker.ask({"do": "hello"})
    os.kill(worker.pid, signal.SIGSTOP)
    child = psutil.Process(worker.pid)
    assert not worker.overdue()
    with pytest.raises(WorkerFailed, match="did not answer in time") as caught:
        worker.ask({"do": "hello"}, limit_s=0.2)
    assert caught.value.timed_out
    assert not child.is_running()


def test_time_in_which_a_worker_is_stopped_is_given_back(start: Start, spec: str) -> None:
    worker = start("compile", spec)
    worker.ask({"do": "hello"})
    os.kill(worker.pid, signal.SIGSTOP)
    threading.Timer(1.5, os.kill, (worker.pid, signal.SIGCONT)).start()
    assert worker.ask({"do": "hello"}, limit_s=0.5)["ready"]
    assert worker.stopped_s > 0


def test_a_clock_that_contradicts_the_wait_is_told(start: Start, spec: str) -> None:
    worker = start("compile", spec)
    worker.ask({"do": "hello"})
    answer = worker.ask({"do": "hello"})  # which does not wait for its start
    assert worker.clock_trouble(answer) == ""
    assert worker.clock_trouble({}) == ""
    assert worker.clock_trouble({"clock_s": 3600.0}).startswith(
        "its clock says 3.6e+03 s, and the study waited "
    )
    assert "its clock says -1 s" in worker.clock_trouble({"clock_s": -1.0})
    assert "its clock says nan s" in worker.clock_trouble({"clock_s": float("nan")})


def test_what_a_dying_worker_wrote_is_part_of_the_reason(start: Start, spec: str) -> None:
    worker = start("compile", spec)
    with pytest.raises(WorkerFailed, match=r"(?s)the worker died with exit code 1: .*KeyError: 'do'"):
        worker.ask({"no": "request"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """One end as a channel, the other as a bare socket."""
    ours, theirs = socket.socketpair()
    yield Channel(ours), theirs
    ours.close()
    theirs.close()


@given(st.dictionaries(st.text(), json_values, max_size=5), st.binary(max_size=2000))
def test_what_is_sent_arrives(message: dict[str, object], code: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours).send(message | {"code": code}, limit_s=5)
        assert Channel(theirs).receive(limit_s=5) == message | {"code": code}


@pytest.mark.parametrize(
    "rubbish",
    [
        b"Segmentation fault (core dumped)\n",
        struct.pack("!4sII", MAGIC, LIMIT_BYTES, LIMIT_BYTES),
        struct.pack("!4sII", MAGIC, 4, 0) + b"nope",
        struct.pack("!4sII", MAGIC, 2, 0) + b"[]",
        struct.pack("!4sII", MAGIC, 2, 0) + b"\xff\xfe",
    ],
    ids=["text", "too long", "no JSON", "no object", "no UTF-8"],
)
def test_rubbish_is_refused(pair: tuple[Channel, socket.socket], rubbish: bytes) -> None:
    channel, other = pair
    other.sendall(rubbish)
    with pytest.raises(ChannelBroken, match="rubbish") as caught:
        channel.receive(5)
    assert caught.value.rubbish


@pytest.mark.parametrize("sent", [b"", MAGIC, struct.pack("!4sII", MAGIC, 100, 0) + b"{"])
def test_an_end_in_the_middle_of_a_frame_is_told(pair: tuple[Channel, socket.socket], sent: bytes) -> None:
    channel, other = pair
    other.sendall(sent)
    other.close()
    with pytest.raises(ChannelBroken, match="closed its channel") as caught:
        channel.receive(5)
    assert not caught.value.rubbish


def test_a_frame_or_a_reader_that_stops_half_way_is_not_waited_for(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    other.sendall(struct.pack("!4sII", MAGIC, 100, 0) + b"{")
    with pytest.raises(ChannelBroken, match="no answer"):
        channel.receive(0.05)
    with pytest.raises(ChannelBroken, match="cannot send"):
        channel.send({"code": bytes(1 << 24)}, limit_s=0.05)
