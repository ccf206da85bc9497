"""A worker's study process that has nothing to do gives its device up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import write_device

from tuner.fleet import child as child_module
from tuner.fleet.child import Child


@pytest.fixture
def handlers() -> Iterator[None]:
    """A study process has signal handlers of its own; those of the tests come back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


class Stage:
    """Stands for an open device."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("idle_s", "closes"), [(0.05, True), (60.0, False)])
def test_its_device_is_closed_once_nobody_asks_for_anything(
    idle_s: float, closes: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "IDLE_S", idle_s)
    ours, theirs = Pipe()
    served = Child(theirs, write_device(here / "device.json"))
    stage: Any = Stage()
    served.studies.stage = stage
    found: list[bool] = []

    def ask_for_nothing() -> None:
        found.append(stage.closed.wait(20.0 if closes else 0.5))
        ours.close()

    asking = threading.Thread(target=ask_for_nothing)
    asking.start()
    served.serve()
    asking.join()
    theirs.close()
    assert found == [closes]
    assert stage.closed.is_set(), "at the end it is closed in any case"
