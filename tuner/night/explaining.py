"""Tries what can be swapped where a problem changed, one thing at a time: the cause is seen, not guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tuner.devices.detect import DetectedDevice
from tuner.errors import NothingFound
from tuner.night.plan_items import PlanItem
from tuner.night.sentinels import Pass, SentinelCode, Watched, by_nvcc, of_before, watched_of
from tuner.results.record import ProblemKey, new_id
from tuner.results.sentinel import LIBRARY, Sentinel, Terms
from tuner.store import Store, watched
from tuner.study.crowns import reign
from tuner.workers.bench import CompiledConfig

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
    code = SentinelCode(board.opening)
    if instead is not None:
        code.put(watched, watched.contenders[0], instead)
    return Pass(new_id(), 1, Terms(SECONDS)).over(board, code, [watched])[0]


@dataclass(frozen=True)
class Swap:
    """One thing that was swapped, or could not be.

    Attributes:
        name: What was swapped.
        told: What it tells, or why it could not be tried.
        time_s: The champion's time with it, in seconds.
        change: Share by which that differs from now; below 0 the swap is faster.
        library: Share by which the library's time differs from now.
    """

    name: str
    told: str
    time_s: float | None = None
    change: float | None = None
    library: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON object."""
        return asdict(self)


def explain(
    store: Store, found: DetectedDevice, others: Sequence[DetectedDevice], candidate: PlanItem
) -> list[Swap]:
    """Times the champion as it is now, and with one thing swapped at a time.

    Args:
        store: The database.
        found: The board.
        others: Other boards of the model.
        candidate: The problem.

    Raises:
        NothingFound: It has no champion here.
        DeviceTrouble: The board cannot be used.
    """
    key = ProblemKey.of(candidate.problem)
    what = watched_of(candidate, reign(store, key, found.info.name, candidate.regime), found.target)
    if what is None:
        raise NothingFound(f"{candidate.problem} has no champion that can be compiled as the kernels are now")
    alone = replace(what, contenders=what.contenders[:1])
    now = timed(found, alone)
    history = [
        each
        for each in watched.sentinels(store, key, candidate.regime)
        if each.process == 1 and each.device.uuid == now.device.uuid
    ]
    swaps = [_now(now), _of_before(found, alone, history, now), _by_nvcc(found, alone, now)]
    swaps += [_elsewhere(other, alone, now) for other in others]
    if not others:
        swaps.append(Swap("another board", "none was named; --other cuda:N tries it"))
    return [*swaps, _library(history, now)]


def _of_before(found: DetectedDevice, what: Watched, history: Sequence[Sentinel], now: Sentinel) -> Swap:
    name, code = "the machine code of before", of_before(what, history, now)
    if isinstance(code, str):
        return Swap(name, code)
    said = "faster: the compiler is the cause", "not faster: the compiler is not the cause"
    return _beside(name, timed(found, what, code), now, *said)


def _by_nvcc(found: DetectedDevice, what: Watched, now: Sentinel) -> Swap:
    name = "another compiler"
    fake = found.spec.startswith("fake:")
    code = "none is installed for it" if fake else by_nvcc(what, now.device.architecture)
    if isinstance(code, str):
        return Swap(name, code)
    said = "nvcc's is faster: the compiler is the cause", "nvcc's is no faster"
    return _beside(name, timed(found, what, code), now, *said)


def _now(now: Sentinel) -> Swap:
    champion = now.players[0]
    return Swap("nothing: as it is now", champion.wrong or "what the others are compared with", champion.time_s)


def _beside(name: str, swapped: Sentinel, now: Sentinel, faster: str, same: str) -> Swap:
    """A swap by its times over the library's, so that clocks do not matter."""
    ours, theirs = now.players[0], swapped.players[0]
    if not (ours.time_s and theirs.time_s):
        return Swap(name, theirs.wrong or ours.wrong or "it was not timed")
    library, other = now.player(LIBRARY), swapped.player(LIBRARY)
    beside = other.time_s / library.time_s if library and other and library.time_s and other.time_s else 1.0
    change = theirs.time_s / ours.time_s / beside - 1.0
    told = faster if change < -now.bound else same
    return Swap(name, told, theirs.time_s, change, beside - 1.0)


def _elsewhere(other: DetectedDevice, what: Watched, now: Sentinel) -> Swap:
    name = f"another board: {other.spec}"
    swapped = timed(other, what)
    ours, theirs = now.players[0], swapped.players[0]
    if not (ours.time_s and theirs.time_s):
        return Swap(name, theirs.wrong or ours.wrong or "it was not timed")
    change = theirs.time_s / ours.time_s - 1.0
    told = "faster there: this board or its clocks are the cause" if change < -now.bound else "no faster there"
    return Swap(name, told, theirs.time_s, change)


def _library(history: Sequence[Sentinel], now: Sentinel) -> Swap:
    """The older library: its stored times, since another version cannot be loaded beside this one."""
    name = "the library of before"
    version = now.versions.get("library", "")
    older = [each for each in history if each.versions.get("library", "") != version and each.player(LIBRARY)]
    library = now.player(LIBRARY)
    if not older or library is None or not library.time_s:
        return Swap(name, f"every earlier night had {version or 'no library'}")
    then = older[-1].player(LIBRARY)
    assert then is not None, "it was asked for"
    change = (then.time_s or library.time_s) / library.time_s - 1.0
    told = f"{older[-1].versions.get('library')}, by its stored times: the library was {change:+.2%} of now"
    return Swap(name, told, None, None, change)
