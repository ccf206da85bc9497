"""Where sentinels are timed: on this machine's boards, one after the other, or on those of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice
from tuner.errors import DeviceTrouble
from tuner.results.sentinel import Sentinel
from tuner.watch.code import Code, Watched
from tuner.watch.timing import Pass

#: For each pass the sentinels of a board, or why it could not time them.
Timed = list[list[Sentinel]] | DeviceTrouble


class Boards(Protocol):
    """Boards of one model that time sentinels."""

    @property
    def info(self) -> DeviceInfo:
        """Their model: the first of them."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """How messages and `timed` name them."""
        ...

    def timed(self, wanted: Mapping[str, Sequence[Watched]], passes: Sequence[Pass]) -> dict[str, Timed]:
        """Times problems on boards, and returns what came of it for each board.

        Args:
            wanted: Board -> its problems.
            passes: Each takes fresh processes.
        """
        ...


class Here:
    """Boards of this machine."""

    def __init__(self, found: Sequence[DetectedDevice]) -> None:
        """Opens nothing yet.

        Args:
            found: The boards, of one model.
        """
        self._found = {each.spec: each for each in found}
        self._code = {each.spec: Code(each.opening) for each in found}

    @property
    def info(self) -> DeviceInfo:
        """See the protocol."""
        return next(iter(self._found.values())).info

    @property
    def names(self) -> Sequence[str]:
        """See the protocol."""
        return list(self._found)

    def timed(self, wanted: Mapping[str, Sequence[Watched]], passes: Sequence[Pass]) -> dict[str, Timed]:
        """See the protocol; one board after the other, so that none disturbs another."""
        found: dict[str, Timed] = {}
        for name, problems in wanted.items():
            try:
                found[name] = [each.over(self._found[name], self._code[name], problems) for each in passes]
            except DeviceTrouble as error:
                found[name] = error
        return found
