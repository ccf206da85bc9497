"""Times sentinels on one board: a fresh process for each pass over them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.devices.detect import DetectedDevice
from tuner.devices.machine_load import MachineWatch
from tuner.errors import InputError
from tuner.night.code import Code, Watched
from tuner.results.doubts import OTHERS_GPU
from tuner.results.record import ProblemKey
from tuner.results.sentinel import LIBRARY, Player, Sentinel, Terms, joined_of
from tuner.study.setup import check_fits
from tuner.workers.bench import CompiledConfig
from tuner.workers.device_worker import Crew, DeviceWorker
from tuner.workers.sentinel_bench import Turns

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

    def over(self, found: DetectedDevice, code: Code, watched: Sequence[Watched]) -> list[Sentinel]:
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
        before = {name: value for name, value in machine.load().seen.items() if name == OTHERS_GPU}
        timed: list[list[Sentinel]] = []
        for _ in range(self.processes):
            with Crew([found]) as crew:
                worker = crew.devices[0]
                code.compile(watched, worker.info.architecture)
                timed.append([self._timed(worker, machine, code, each) for each in watched])
        joined = [joined_of(each) for each in zip(*timed, strict=True)]
        return [replace(each, seen={**before, **each.seen}) for each in joined]

    def _timed(self, worker: DeviceWorker, machine: MachineWatch, code: Code, watched: Watched) -> Sentinel:
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
            machine.load().seen, dict(worker.versions), time.monotonic() - begun_s,
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
