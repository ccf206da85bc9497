"""Times one problem now, outside of a night."""

from __future__ import annotations

from tuner.devices.detect import DetectedDevice
from tuner.measuring.bench import CompiledConfig
from tuner.results.record import new_id
from tuner.results.sentinel import Sentinel, Terms
from tuner.watch.code import Code, Watched
from tuner.watch.timing import Pass

#: Seconds of rounds.
SECONDS = 1.0


def timed(board: DetectedDevice, watched: Watched, instead: CompiledConfig | None = None) -> Sentinel:
    """Times a problem in fresh processes.

    Args:
        board: Where.
        watched: The problem.
        instead: Machine code in the place of the champion's own.

    Raises:
        DeviceTrouble: The board cannot be used.
    """
    code = Code(board.opening)
    if instead is not None:
        code.put(watched, watched.contenders[0], instead)
    return Pass(new_id(), 1, Terms(SECONDS)).over(board, code, [watched])[0]
