"""Tries what can be swapped where a problem changed, one thing at a time: the cause is seen, not guessed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tuner.declare.kernel import Rendered, render
from tuner.devices.cubin_cache import CubinCache
from tuner.devices.detect import DetectedDevice
from tuner.devices.nvrtc import read_report
from tuner.errors import NothingFound
from tuner.measuring.bench import CompiledConfig
from tuner.results.record import ProblemKey, new_id
from tuner.results.sentinel import CHAMPION, LIBRARY, Sentinel, Terms
from tuner.store import Store, watched
from tuner.study.session import open_workers
from tuner.watch.choosing import Candidate, watched_of
from tuner.watch.code import Code, Contender, Watched
from tuner.watch.crowns import reign
from tuner.watch.timing import Pass

#: Seconds of rounds of each swap.
SECONDS = 1.0


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
    store: Store, found: DetectedDevice, others: Sequence[DetectedDevice], candidate: Candidate
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
    place = reign(store, ProblemKey.of(candidate.problem), found.info.name, candidate.regime)
    what = watched_of(candidate, place, found.target)
    if what is None:
        raise NothingFound(f"{candidate.problem} has no champion that can be compiled as the kernels are now")
    champion = what.contenders[0]
    alone = replace(what, contenders=(champion,))
    now = _timed(found, alone, None)
    swaps = [_now(now)]
    history = [
        each
        for each in watched.sentinels(store, ProblemKey.of(candidate.problem), candidate.regime)
        if each.process == 1 and each.device.uuid == now.device.uuid
    ]
    swaps.append(_old_code(found, alone, champion, history, now))
    swaps.append(_by_nvcc(found, alone, champion, now))
    swaps += [_elsewhere(other, alone, now) for other in others]
    if not others:
        swaps.append(Swap("another board", "none was named; --other cuda:N tries it"))
    swaps.append(_library(history, now))
    return swaps


def _timed(found: DetectedDevice, what: Watched, code: tuple[Contender, CompiledConfig] | None) -> Sentinel:
    """Times a problem in fresh processes, with other machine code in one's place if it is given."""
    with open_workers([found]) as (worker,):
        compiled = Code(found.opening, worker.info.architecture)
    compiled.compile([what])
    if code is not None:
        compiled.put(what, *code)
    return Pass(new_id(), 1, Terms(SECONDS)).over(found, compiled, [what])[0]


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


def _old_code(
    found: DetectedDevice, what: Watched, champion: Contender, history: Sequence[Sentinel], now: Sentinel
) -> Swap:
    """The machine code that an earlier night ran, if the cache still has it."""
    name = "the machine code of before"
    present = now.players[0]
    earlier = [
        player
        for each in reversed(history)
        if (player := each.player(CHAMPION)) is not None and player.binary_hash != present.binary_hash
        if (player.kernel, dict(player.config)) == (present.kernel, dict(present.config))
    ]
    if not earlier:
        return Swap(name, "every earlier night ran the same machine code: the compiler is not the cause")
    rendered = render(champion.kernel, what.problem, champion.config)
    binary = CubinCache().get(rendered, now.device.architecture, earlier[0].compiler)
    if binary is None:
        return Swap(name, f"it was made by {earlier[0].compiler}, and is no longer in the cache")
    swapped = _timed(found, what, (champion, CompiledConfig(rendered, binary.code, binary.report)))
    return _beside(name, swapped, now, "faster: the compiler is the cause", "not faster: not the compiler")


def _by_nvcc(found: DetectedDevice, what: Watched, champion: Contender, now: Sentinel) -> Swap:
    """Machine code by the CUDA toolkit's own compiler, if it is installed."""
    name = "another compiler"
    if found.target != "cuda" or found.spec.startswith("fake:") or shutil.which("nvcc") is None:
        return Swap(name, "none is installed; nvcc would be used")
    rendered = render(champion.kernel, what.problem, champion.config)
    compiled = by_nvcc(rendered, now.device.architecture)
    if isinstance(compiled, str):
        return Swap(name, f"nvcc refuses the source: {compiled.strip().splitlines()[-1] if compiled else ''}")
    swapped = _timed(found, what, (champion, compiled))
    return _beside(name, swapped, now, "nvcc's is faster: the compiler is the cause", "nvcc's is no faster")


def by_nvcc(rendered: Rendered, architecture: str) -> CompiledConfig | str:
    """Machine code by nvcc, or what it says if it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        source.write_text(rendered.text, encoding="utf-8")
        asked = ["nvcc", "-cubin", f"-arch={architecture}", "-std=c++17", "-Xptxas=-v", "-o", str(cubin)]
        done = subprocess.run([*asked, str(source)], capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr or f"exit code {done.returncode}"
        code = cubin.read_bytes()
        report = replace(read_report(done.stderr, code, rendered.entry), compiler="nvcc")
        return CompiledConfig(rendered, code, report)


def _elsewhere(other: DetectedDevice, what: Watched, now: Sentinel) -> Swap:
    name = f"another board: {other.spec}"
    swapped = _timed(other, what, None)
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
