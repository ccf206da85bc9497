"""Which problems a night watches, and who takes part in each."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import DetectedDevice
from tuner.devices.machine_load import MachineWatch
from tuner.errors import DeviceTrouble, InputError
from tuner.night.plan import PlanItem
from tuner.night.stored import Player, Sentinel, joined_of, savings
from tuner.results.measurement import OTHERS_GPU, Measurement
from tuner.results.record import Champion, ProblemKey
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY
from tuner.store import Store
from tuner.study.crowns import Reign, reigns
from tuner.study.session import Session, check_fits
from tuner.workers.bench import CompiledConfig, Turns
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

    def rendered(self, problem: Problem) -> Rendered:
        """Its source for a problem."""
        return render(self.kernel, problem, self.config)


@dataclass(frozen=True)
class Watched:
    """A problem to be timed as a sentinel.

    Attributes:
        problem: The problem.
        regime: How time is taken.
        contenders: The configs, the champion first.
        reign: Its champions, where they are to be judged.
    """

    problem: Problem
    regime: str
    contenders: tuple[Contender, ...]
    reign: Reign | None = None


#: Hash of a source -> its machine code, or why there is none: compiled once for any number of passes.
Code = dict[str, CompiledConfig | Measurement]


def _compile(code: Code, crew: Crew, watched: Iterable[Watched]) -> None:
    """Compiles what is not compiled yet, and waits for it.

    Raises:
        DeviceTrouble: The compiler is not there.
    """
    wanted = {
        rendered.hash: (rendered, Session.named(problem.problem))
        for problem in watched
        for rendered in (contender.rendered(problem.problem) for contender in problem.contenders)
        if rendered.hash not in code
    }
    if wanted:
        hashes, pool = list(wanted), crew.pool(next(iter(wanted.values()))[1])
        for ticket, (rendered, problem) in enumerate(wanted.values()):
            pool.submit(ticket, rendered, problem)
        while pool.pending:
            code |= {hashes[ticket]: result for ticket, result in pool.ready().items()}
            time.sleep(0.005)


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
        budget_s: Wall time of a sentinel's rounds, in seconds; the processes share it.
        processes: Fresh processes that each sentinel's rounds come from.
    """

    night: str
    process: int
    budget_s: float
    processes: int = PROCESSES

    def over(self, board: DetectedDevice, code: Code, watched: Sequence[Watched]) -> list[Sentinel]:
        """Times sentinels in fresh processes.

        Args:
            board: The board.
            code: Takes compiled code.
            watched: The problems.

        Returns:
            A sentinel for each problem; one that does not fit into memory has no rounds.

        Raises:
            DeviceTrouble: The board cannot be opened, or stays unwell.
        """
        machine = MachineWatch([board])
        # How busy others keep a board can be told only before this process uses it, too.
        before = {name: value for name, value in machine.load().items() if name == OTHERS_GPU}
        timed: list[list[Sentinel]] = []
        for _ in range(self.processes):
            with Crew([board], most_compilers=sum(len(problem.contenders) for problem in watched)) as crew:
                worker = crew.devices[0]
                _compile(code, crew, watched)
                timed.append([self._timed(worker, machine, code, problem) for problem in watched])
        joined = map(joined_of, zip(*timed, strict=True))
        return [replace(sentinel, seen={**before, **sentinel.seen}) for sentinel in joined]

    def _timed(self, worker: DeviceWorker, machine: MachineWatch, code: Code, watched: Watched) -> Sentinel:
        begun_s = time.monotonic()
        machine.restart()
        compiled, wrong = dict[str, CompiledConfig](), dict[str, str]()
        for contender in watched.contenders:
            rendered = contender.rendered(watched.problem)
            result = code[rendered.hash]
            if isinstance(result, CompiledConfig):
                compiled[contender.name] = replace(result, rendered=rendered)
            else:
                wrong[contender.name] = result.reason
        turns, champion = Turns(), watched.contenders[0].name
        if champion in compiled:
            try:
                check_fits(watched.problem, worker.free_bytes, worker.info)
                worker.prepare(Session.named(watched.problem), watched.regime)
                turns = worker.sentinel(compiled, self.budget_s / self.processes)
            except InputError as error:
                wrong[champion] = str(error)
        turns = replace(turns, wrong={**wrong, **turns.wrong})
        return Sentinel(
            ProblemKey.of(watched.problem), worker.info, watched.regime, self.night, self.process,
            tuple(_players(watched, compiled, turns)), turns.circumstances,
            machine.load(), dict(worker.versions), time.monotonic() - begun_s,
        )  # fmt: skip


def _players(watched: Watched, compiled: Mapping[str, CompiledConfig], turns: Turns) -> Iterator[Player]:
    for contender in watched.contenders:
        name, kernel = contender.name, contender.kernel
        report = compiled[name].compiled if name in compiled else None
        yield Player(
            name, kernel.name, dict(contender.config), tuple(turns.rounds_s.get(name, ())),
            report.binary_hash if report else "", report.compiler if report else "", kernel.source_hash,
            turns.wrong.get(name, ""), bits=turns.bits if name == CHAMPION else "",
        )  # fmt: skip
    if LIBRARY in turns.rounds_s:
        baseline = watched.problem.operation.baselines[watched.contenders[0].kernel.kind]
        rounds_s, name = tuple(turns.rounds_s[LIBRARY]), baseline.named(watched.problem)
        yield Player(LIBRARY, name, {}, rounds_s, rms_rel=turns.library_rms_rel)


def choose(
    store: Store, device: DeviceInfo, candidates: Iterable[PlanItem], most: int
) -> tuple[list[Watched], list[str]]:
    """Chooses what is used most, by what champions save, then in the order given.

    Args:
        store: Where champions are, and what programs ask for.
        device: The board.
        candidates: Problems, of a plan for instance.
        most: At most so many.

    Returns:
        What to time, and why others cannot be.
    """
    known = {
        (reign.place.problem, reign.place.regime): reign
        for reign in reigns(store, device=device.name)
        if reign.place.kind == device.kind
    }
    uses, able, left = savings(store, device), list[Watched](), list[str]()
    for candidate in candidates:
        reign = known.get((ProblemKey.of(candidate.problem), candidate.regime))
        problem = watched_of(candidate, reign, device.kind) if reign else None
        if problem is None:
            left.append(f"{candidate.problem}: it has no champion of the kernels as declared now")
        else:
            able.append(problem)
    able.sort(key=lambda problem: -uses.get(ProblemKey.of(problem.problem), 0.0))
    left += [f"{problem.problem}: {most} others are used more" for problem in able[most:]]
    return able[:most], left


def watched_of(candidate: PlanItem, reign: Reign, target: str) -> Watched | None:
    """Champion and the one before it; None if the champion cannot be rendered as the kernels are now."""
    champion = _contender(candidate, CHAMPION, reign.champion, target)
    if champion is None:
        return None
    before = _contender(candidate, BEFORE, reign.beaten, target)
    return Watched(candidate.problem, candidate.regime, (champion, *filter(None, [before])), reign)


def _contender(candidate: PlanItem, name: str, champion: Champion | None, target: str) -> Contender | None:
    if champion is None:
        return None
    record = champion.record
    for kernel in candidate.catalogue.of(candidate.problem.operation.name, target):
        names = [parameter.name for parameter in kernel.parameters]
        if kernel.name == record.kernel and sorted(names) == sorted(record.config):
            return Contender(name, kernel, Config({key: record.config[key] for key in names}))
    return None


#: For each pass the sentinels of a board, or why it could not time them.
Timed = list[list[Sentinel]] | DeviceTrouble


@dataclass(frozen=True)
class Boards:
    """Boards of one model that time sentinels.

    Attributes:
        info: Their model: the first of them.
        names: How messages and `timed` name them.
        timed: Takes the problems of boards by their names, and passes, each in fresh processes; returns what
            came of it for each board.
    """

    info: DeviceInfo
    names: Collection[str]
    timed: Callable[[Mapping[str, Sequence[Watched]], Sequence[Pass]], dict[str, Timed]]


def local_boards(devices: Sequence[DetectedDevice]) -> Boards:
    """Boards of this machine, one after the other, so that none disturbs another."""
    boards: dict[str, tuple[DetectedDevice, Code]] = {board.spec: (board, {}) for board in devices}

    def timed(wanted: Mapping[str, Sequence[Watched]], passes: Sequence[Pass]) -> dict[str, Timed]:
        answers: dict[str, Timed] = {}
        for name, problems in wanted.items():
            try:
                answers[name] = [one.over(*boards[name], problems) for one in passes]
            except DeviceTrouble as error:
                answers[name] = error
        return answers

    return Boards(devices[0].info, boards.keys(), timed)
