"""Records are stored in a thread of their own: in order, together where they wait, told of when they are."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from tuner.errors import StoreTrouble
from tuner.results.record import Record
from tuner.study.session import WriteBehind


class Disk:
    """Stands for a store: keeps what it is given, waits while it is held, may be full."""

    def __init__(self, room: int = 1000) -> None:
        self.kept: list[Any] = []
        self.calls: list[int] = []
        self.free, self.room = threading.Event(), room
        self.free.set()

    def __call__(self, records: list[Record]) -> None:
        assert self.free.wait(10)
        if len(self.kept) + len(records) > self.room:
            raise StoreTrouble("the disk is full")
        self.kept += records
        self.calls.append(len(records))


def record(number: int) -> Record:
    return cast(Record, number)


@pytest.mark.parametrize("inline", [True, False])
def test_all_is_stored_in_order_before_it_is_told(inline: bool) -> None:
    disk, told = Disk(), []
    with WriteBehind(disk, inline) as write:
        for number in range(100):
            write.put(record(number), lambda number=number: told.append(number in disk.kept))
    assert disk.kept == list(range(100))
    assert told == [True] * 100
    assert write.pending == 0


def test_what_waits_is_stored_in_one_transaction_and_nobody_waits_for_it() -> None:
    disk, told = Disk(), []
    disk.free.clear()
    with WriteBehind(disk, inline=False) as write:
        for number in range(50):
            write.put(record(number), lambda number=number: told.append(number))
        assert write.pending == 50
        assert told == []
        disk.free.set()
    assert told == disk.kept == list(range(50))
    assert len(disk.calls) <= 3


def test_it_may_be_entered_again() -> None:
    disk = Disk()
    write = WriteBehind(disk, inline=False)
    for number in range(2):
        with write:
            write.put(record(number), lambda: None)
        assert len(disk.kept) == number + 1


@pytest.mark.parametrize("inline", [True, False])
def test_a_store_that_fails_is_told_to_whoever_writes(inline: bool) -> None:
    disk = Disk(room=0)

    def measuring() -> None:
        with WriteBehind(disk, inline) as write:
            write.put(record(1), lambda: disk.kept.append("told"))

    with pytest.raises(StoreTrouble, match="the disk is full"):
        measuring()
    assert disk.kept == []


def test_what_ends_the_measuring_is_not_hidden_and_all_is_stored() -> None:
    disk = Disk()

    def measuring() -> None:
        with WriteBehind(disk, inline=False) as write:
            write.put(record(1), lambda: None)
            raise KeyError("device")

    with pytest.raises(KeyError, match="device"):
        measuring()
    assert disk.kept == [1]
