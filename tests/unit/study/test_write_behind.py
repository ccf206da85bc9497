"""Records are stored in a thread of their own: in order, together where they wait, told of when they are."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from tuner.errors import StoreTrouble
from tuner.results.record import Record
from tuner.study.loop import WriteBehind


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
    write = WriteBehind(disk, inline)
    for _ in range(2):  # it goes on after a wait
        for number in range(50):
            write.put(record(number), lambda number=number: told.append(number in disk.kept))
        write.wait()
        assert not write.pending
    assert disk.kept == [*range(50), *range(50)]
    assert told == [True] * 100


def test_what_waits_is_stored_in_one_transaction_and_nobody_waits_for_it() -> None:
    disk, told = Disk(), []
    disk.free.clear()
    write = WriteBehind(disk, inline=False)
    for number in range(50):
        write.put(record(number), lambda number=number: told.append(number))
    assert write.pending
    assert told == []
    disk.free.set()
    write.wait()
    assert told == disk.kept == list(range(50))
    assert len(disk.calls) <= 3


@pytest.mark.parametrize("inline", [True, False])
def test_a_store_that_fails_is_told_to_whoever_writes(inline: bool) -> None:
    disk = Disk(room=0)
    write = WriteBehind(disk, inline)

    def measuring() -> None:
        write.put(record(1), lambda: disk.kept.append("told"))
        write.wait()
        write.check()

    with pytest.raises(StoreTrouble, match="the disk is full"):
        measuring()
    assert disk.kept == []
