"""Which problems a night watches, and who takes part in each."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.language import source_language
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.cuda.nvrtc import CubinCache, read_report
from tuner.devices.detect import DetectedDevice
from tuner.devices.machine_load import MachineWatch
from tuner.errors import DeviceTrouble, InputError
from tuner.night.plan_items import PlanItem
from tuner.results.measurement import OTHERS_GPU, Measurement
from tuner.results.record import Champion, ProblemKey
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY, Player, Sentinel, Terms, joined_of
from tuner.store import Store
from tuner.study.crowns import Reign, reigns
from tuner.study.session import check_fits
from tuner.workers.bench import CompiledConfig, Turns
from tuner.workers.compile_pool import CompilePool, workers_for
from tuner.workers.device_worker import Crew, DeviceWorker


@dataclass(frozen=True)
class Contender:
    """A config that takes part in a sentinel.

    Attributes:
        name: One of `tuner.results.sentinel.PLAYERS`.
        kernel: Kernel, as declared now.
        config: A legal config of it.
    """

    name: str
    kernel: Kernel
    config: Config


@dataclass(frozen=True)
class Watched:
    """A problem to be timed as a sentinel.

    Attributes:
        problem: The problem.
        regime: How time is taken.
        contenders: The configs, the champion first.
    """

    problem: Problem
    regime: str
    contenders: tuple[Contender, ...]

    @property
    def named(self) -> dict[str, object]:
        """The problem as workers are told it."""
        return {**self.problem.to_json(), "origin": str(self.problem.operation.origin or "")}


class SentinelCode:
    """Machine code of all that takes part, compiled once for any number of passes."""

    def __init__(self, opening: str, architecture: str = "") -> None:
        """Compiles nothing yet.

        Args:
            opening: Spec of the compile workers; see `tuner.devices.detect.DetectedDevice.opening`.
            architecture: To compile for; empty for that of the first board that is opened.
        """
        self._opening, self._architecture = opening, architecture
        self._found: dict[str, CompiledConfig | Measurement] = {}

    def compile(self, watched: Iterable[Watched], architecture: str = "") -> None:
        """Compiles what is not compiled yet, and waits for it.

        Args:
            watched: What takes part.
            architecture: Of the open board, which only its process knows.

        Raises:
            DeviceTrouble: The compiler is not there.
        """
        wanted: dict[str, tuple[Rendered, Mapping[str, object]]] = {}
        for each in watched:
            for contender in each.contenders:
                rendered = render(contender.kernel, each.problem, contender.config)
                if rendered.hash not in self._found:
                    wanted[rendered.hash] = rendered, each.named
        if not wanted:
            return
        self._architecture = self._architecture or architecture
        size = min(len(wanted), workers_for(len(os.sched_getaffinity(0)), 1))
        pool = CompilePool(self._opening, self._architecture, next(iter(wanted.values()))[1], size)
        try:
            for ticket, (rendered, named) in enumerate(wanted.values()):
                pool.submit(ticket, rendered, named)
            hashes = list(wanted)
            while pool.pending:
                for compiled in pool.ready():
                    found = compiled.compiled_config or compiled.failure
                    assert found is not None
                    self._found[hashes[compiled.ticket]] = found
                time.sleep(0.005)
        finally:
            pool.close()

    def put(self, watched: Watched, contender: Contender, compiled: CompiledConfig) -> None:
        """Takes machine code that was made otherwise, for instance by another compiler."""
        self._found[render(contender.kernel, watched.problem, contender.config).hash] = compiled

    def of(self, watched: Watched, contender: Contender) -> CompiledConfig | Measurement:
        """The machine code for a problem's launch, or why there is none."""
        rendered = render(contender.kernel, watched.problem, contender.config)
        found = self._found[rendered.hash]
        return replace(found, rendered=rendered) if isinstance(found, CompiledConfig) else found


def of_before(watched: Watched, history: Sequence[Sentinel], now: Sentinel) -> CompiledConfig | str:
    """The machine code that an earlier night ran, from the cache; or why there is none.

    Args:
        watched: The problem with its champion.
        history: Earlier nights on the board.
        now: The present night.
    """
    present, champion = now.players[0], watched.contenders[0]
    earlier = [
        player
        for each in reversed(history)
        if (player := each.player(CHAMPION)) is not None and player.binary_hash != present.binary_hash
        if (player.kernel, dict(player.config)) == (present.kernel, dict(present.config))
    ]
    if not earlier:
        return "every earlier night ran the same machine code: the compiler is not the cause"
    rendered = render(champion.kernel, watched.problem, champion.config)
    binary = CubinCache().get(rendered, now.device.architecture, earlier[0].compiler)
    if binary is None:
        return f"it was made by {earlier[0].compiler}, and is no longer in the cache"
    return CompiledConfig(rendered, binary.code, binary.report)


def by_nvcc(watched: Watched, architecture: str) -> CompiledConfig | str:
    """Machine code by the CUDA toolkit's own compiler; or why there is none."""
    champion = watched.contenders[0]
    if not source_language(champion.kernel.target).has_launch or shutil.which("nvcc") is None:
        return "none is installed; nvcc would be used"
    rendered = render(champion.kernel, watched.problem, champion.config)
    with tempfile.TemporaryDirectory() as folder:
        return _compiled(rendered, architecture, Path(folder))


def _compiled(rendered: Rendered, architecture: str, folder: Path) -> CompiledConfig | str:
    source, cubin = folder / "kernel.cu", folder / "kernel.cubin"
    source.write_text(rendered.text, encoding="utf-8")
    asked = ["nvcc", "-cubin", f"-arch={architecture}", "-std=c++17", "-Xptxas=-v", "-o", str(cubin)]
    done = subprocess.run([*asked, str(source)], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"nvcc refuses the source: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}"
    code = cubin.read_bytes()
    report = replace(read_report(done.stderr, code, rendered.entry), compiler="nvcc")
    return CompiledConfig(rendered, code, report)


#: Fresh processes that a sentinel's rounds come from: where arrays and code lie differs from one to the next.
PROCESSES = 2
#: `Pass.process` of those that confirm new champions.
CONFIRMING = 0


@dataclass(frozen=True)
class Pass:
    """One pass over sentinels, in processes of its own.

    Attributes:
        night: Id of the night.
        process: 1 for the night's own pass, 2 and on for its repeats, 0 for new champions.
        terms: When a sentinel stops; the processes share the budget.
        processes: Fresh processes that each sentinel's rounds come from.
    """

    night: str
    process: int
    terms: Terms
    processes: int = PROCESSES

    def over(self, found: DetectedDevice, code: SentinelCode, watched: Sequence[Watched]) -> list[Sentinel]:
        """Times sentinels in fresh processes.

        Args:
            found: The board.
            code: Keeps compiled code.
            watched: The problems.

        Returns:
            A sentinel for each problem; one that does not fit into memory has no rounds.

        Raises:
            DeviceTrouble: The board cannot be opened, or stays unwell.
        """
        machine = MachineWatch([found])
        # How busy others keep a board can be told only before this process uses it, too.
        before = {name: value for name, value in machine.load().circumstances.items() if name == OTHERS_GPU}
        timed: list[list[Sentinel]] = []
        for _ in range(self.processes):
            with Crew([found]) as crew:
                worker = crew.devices[0]
                code.compile(watched, worker.info.architecture)
                timed.append([self._timed(worker, machine, code, each) for each in watched])
        joined = [joined_of(each) for each in zip(*timed, strict=True)]
        return [replace(each, seen={**before, **each.seen}) for each in joined]

    def _timed(
        self, worker: DeviceWorker, machine: MachineWatch, code: SentinelCode, watched: Watched
    ) -> Sentinel:
        begun_s = time.monotonic()
        machine.restart()
        named: list[tuple[str, CompiledConfig]] = []
        turns = Turns()
        for contender in watched.contenders:
            compiled = code.of(watched, contender)
            if isinstance(compiled, CompiledConfig):
                named.append((contender.name, compiled))
            else:
                turns.wrong[contender.name] = compiled.reason
        if watched.contenders[0].name not in turns.wrong:
            try:
                check_fits(watched.problem, worker.free_bytes, worker.info)
                worker.prepare(watched.named, watched.regime)
                timed = worker.sentinel(
                    named, replace(self.terms, budget_s=self.terms.budget_s / self.processes)
                )
                turns = replace(timed, wrong={**turns.wrong, **timed.wrong})
            except InputError as error:
                turns.wrong[watched.contenders[0].name] = str(error)
        return Sentinel(
            ProblemKey.of(watched.problem), worker.info, watched.regime, self.night, self.process,
            tuple(_players(watched, dict(named), turns)), self.terms.bound, turns.circumstances,
            machine.load().circumstances, dict(worker.versions), time.monotonic() - begun_s,
        )  # fmt: skip


def _players(watched: Watched, code: Mapping[str, CompiledConfig], turns: Turns) -> list[Player]:
    players = []
    for each in watched.contenders:
        compiled = code[each.name].compiled if each.name in code else None
        players.append(
            Player(
                each.name, each.kernel.name, dict(each.config), tuple(turns.rounds_s.get(each.name, ())),
                compiled.binary_hash if compiled else "", compiled.compiler if compiled else "",
                each.kernel.source_hash, turns.wrong.get(each.name, ""),
            )
        )  # fmt: skip
    if LIBRARY in turns.rounds_s:
        kind = watched.contenders[0].kernel.target
        name = watched.problem.operation.baselines[kind].named(watched.problem)
        players.append(Player(LIBRARY, name, {}, tuple(turns.rounds_s[LIBRARY])))
    return players


def choose(
    store: Store, device: DeviceInfo, candidates: Iterable[PlanItem], uses: Mapping[ProblemKey, float],
    most: int,
) -> tuple[list[Watched], list[str]]:  # fmt: skip
    """Chooses what is used most, by share of time, then in the order given.

    Args:
        store: Where champions are.
        device: The board.
        candidates: Problems, of a plan for instance.
        uses: Problem -> how often it was asked for; those without an entry come last.
        most: At most so many.

    Returns:
        What to time, and why others cannot be.
    """
    known = {
        (each.place.problem, each.place.regime): each
        for each in reigns(store, device=device.name)
        if each.place.kind == device.kind
    }
    found: list[tuple[float, Watched]] = []
    left: list[str] = []
    for candidate in candidates:
        reign = known.get((ProblemKey.of(candidate.problem), candidate.regime))
        watched = None if reign is None else watched_of(candidate, reign, device.kind)
        if reign is None or reign.champion is None:
            left.append(f"{candidate.problem}: it has no champion yet")
        elif watched is None:
            left.append(f"{candidate.problem}: its champion's kernel is not declared like that any more")
        else:
            time_s = reign.champion.record.measurement.time_s or 0.0
            found.append((-uses.get(ProblemKey.of(candidate.problem), 0.0) * time_s, watched))
    found.sort(key=lambda each: each[0])
    left += [f"{each.problem}: {most} others are used more" for _, each in found[most:]]
    return [each for _, each in found[:most]], left


def watched_of(candidate: PlanItem, reign: Reign, target: str) -> Watched | None:
    """Champion and the one before it; None if the champion cannot be rendered as the kernels are now."""
    if reign.champion is None:
        return None
    champion = _contender(candidate, CHAMPION, reign.champion, target)
    before = _contender(candidate, BEFORE, reign.beaten, target) if reign.beaten else None
    if champion is None:
        return None
    return Watched(candidate.problem, candidate.regime, (champion, *([before] if before else [])))


def _contender(candidate: PlanItem, name: str, champion: Champion, target: str) -> Contender | None:
    record = champion.record
    kernels: dict[str, Kernel] = {
        each.name: each for each in candidate.catalogue.of(candidate.problem.operation.name, target)
    }
    kernel = kernels.get(record.kernel)
    if kernel is None:
        return None
    names = [parameter.name for parameter in kernel.parameters]
    if sorted(names) != sorted(record.config):
        return None
    return Contender(name, kernel, Config({each: record.config[each] for each in names}))


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


class LocalBoards:
    """Boards of this machine."""

    def __init__(self, found: Sequence[DetectedDevice]) -> None:
        """Opens nothing yet.

        Args:
            found: The boards, of one model.
        """
        self._found = {each.spec: each for each in found}
        self._code = {each.spec: SentinelCode(each.opening) for each in found}

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
