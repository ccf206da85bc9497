"""Times configs: of a search, of finals and sentinels in turns, of a survey. Failures become outcomes."""

import functools
import math
import random
import signal
import statistics
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tuner.declare import catalogue
from tuner.declare.catalogue import Catalogue
from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.declare.problem import IEEE, Problem
from tuner.devices.detect import kind_of
from tuner.devices.protocol import Device, ImpossibleTime, LaunchFailed, Run
from tuner.results.measurement import (
    KINDS_OF_INPUTS,
    NOT_THE_SAME,
    VARIES,
    CompileReport,
    Error,
    Measurement,
    Outcome,
    memory_reason,
)
from tuner.results.objectives import ErrorLimit
from tuner.results.sentinel import CHAMPION, LIBRARY, decided
from tuner.workers import sampling
from tuner.workers.further_checks import KINDS, broken_promise, class_of_bits, class_of_rows
from tuner.workers.workload import NAN, POISONS, Draw, Workload

Name = TypeVar("Name", str, int)
#: Reason if a wrong result may not be the config's fault.
SPOILT = "the reference data was overwritten, by this config or an earlier one"


@dataclass(frozen=True)
class CompiledConfig:
    """A compiled config.

    Attributes:
        rendered: Its source and launch.
        code: Its machine code.
        compiled: The compiler's report.
        compile_s: Seconds that compiling took.
    """

    rendered: Rendered
    code: bytes
    compiled: CompileReport
    compile_s: float = 0.0


@dataclass(frozen=True)
class ShapeCase:
    """Another shape at which a compiled config is checked.

    Attributes:
        problem: Names the problem, see `problem_from`.
        launch: The launch for it.
    """

    problem: Mapping[str, Any]
    launch: Launch | None


@functools.cache
def _catalogue(origin: str) -> Catalogue:
    """What a file declares, or the package; read once, for reading it takes longer than many configs."""
    return catalogue.from_file(Path(origin)) if origin else catalogue.builtin()


def problem_from(data: Mapping[str, Any]) -> Problem:
    """Returns the problem that a message names; `origin` is the file of a user's own operation, or empty."""
    return (
        _catalogue(data.get("origin", ""))
        .operation(data["operation"])
        .problem(data["shape"], data["dtype"], data["layout"], data["precision"], data.get("epilogue", ""))
    )


def fresh_seed() -> int:
    """Returns a new seed: each worker draws its own inputs, so no config can be correct by knowing them."""
    return random.SystemRandom().randrange(2**32)


@dataclass
class Turns:
    """What a sentinel's rounds gave.

    Attributes:
        rounds_s: Name -> times in seconds, two for each block.
        wrong: Name -> what is wrong with it.
        circumstances: Name of a reading -> its value at the end of each block.
        library_rms_rel: The library's rms error; None without a library.
        bits: The champion's class of bits; empty if it failed.
    """

    rounds_s: dict[str, list[float]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    circumstances: dict[str, list[float]] = field(default_factory=dict)
    library_rms_rel: float | None = None
    bits: str = ""


#: Share of a sentinel's budget in which all run untimed, so that clocks have risen; seconds at the most.
WARM_UP, WARM_UP_LIMIT_S = 0.1, 0.1
#: Blocks of a sentinel, however long they take, and at the most.
SENTINEL_BLOCKS = 3, 100_000
#: Readings of the board that are kept for each block.
READ = ("sm_clock_hz", "temperature_c", "power_w", "throttle_reasons")
#: Seconds that a survey's first run may take, and times of the best: to replace the worker takes seconds, too.
FIRST_FLOOR_S, FIRST_FACTOR = 4.0, 20.0
#: A survey's samples of the library, with which all configs are compared: what fits into these seconds, and at
#: most so many.
LIBRARY_S, LIBRARY_SAMPLES = 0.01, 9
#: Finalists that are checked and timed, however long that takes; share of the finals' time in which others are.
#: Share of what the checks leave that the states of a program may take.
LEAST_FINALISTS, CHECKS_SHARE, STATES_SHARE = 2, 0.4, 0.6
NO_TIME = "the finals had no time to check it"


class _Refused(Exception):
    """A config that is not timed.

    Attributes:
        outcome: How it ended.
        circumstances: What is kept of it beside the reason.
    """

    def __init__(self, outcome: Outcome, reason: str, circumstances: Mapping[str, float] | None = None) -> None:
        super().__init__(reason)
        self.outcome, self.circumstances = outcome, circumstances or {}


#: What ends the work on a config.
FAILURES = (LaunchFailed, MemoryError, _Refused)


def _not_loaded() -> None:
    raise RuntimeError("it is loaded first")


@dataclass
class _Player(sampling.CheckedSamples):
    """A config or the library: loaded, verified, ready to be timed.

    Attributes:
        config: The config; None for the library.
        stages_s: Seconds spent in each stage.
        error: Its error when it was verified.
        kinds: Kinds of inputs at which it kept the promise of a precision; 0 if that was not tested.
        states: See `tuner.devices.protocol.Device.in_programs`.
        bits: Its class of bits, if that was measured.
    """

    config: CompiledConfig | None = None
    stages_s: dict[str, float] = field(default_factory=dict)
    error: Error | None = None
    kinds: int = 0
    states: Mapping[str, float] = field(default_factory=dict)
    bits: str = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Notes how long a stage takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stages_s[name] = time.perf_counter() - start

    def measurement(
        self, outcome: Outcome, reason: str = "", samples_s: Sequence[float] = (),
        circumstances: Mapping[str, float] = MappingProxyType({}),
    ) -> Measurement:  # fmt: skip
        """What came of it."""
        compiled = self.config.compiled if self.config is not None else None
        stages_s, samples_s = dict(self.stages_s), tuple(samples_s)
        circumstances = dict(circumstances)
        return Measurement(outcome, reason, samples_s, self.error, compiled, stages_s, circumstances, self.bits)


@dataclass
class Bench:
    """Measures configs one after another, for one problem on one device in one regime.

    Attributes:
        device: Where.
        workload: Arrays and references.
        regime: How times are taken.
        energy: True to measure the energy of a run, too, if the device reports its power: ``energy_j`` of the
            circumstances is ``power_w`` of back-to-back runs times the median time.
        unwell: True after a failure that may have poisoned the device's context.
        limit: Largest error that a config may have; see `limit_error`.
        best_s: In a survey, the best time so far in seconds, the library's too; None while there is none.
        run_s: Seconds of the last run that was verified, including waiting for the device.
        screen_s: Seconds by the clock in which a config is timed in a search.
        may_vary: True to time configs, too, whose bits differ between two runs.
    """

    device: Device
    workload: Workload
    regime: str
    energy: bool = False
    unwell: bool = field(default=False, init=False)
    limit: ErrorLimit | None = field(default=None, init=False)
    best_s: float | None = field(default=None, init=False)
    run_s: float = field(default=0.0, init=False)
    screen_s: float = sampling.SCREEN_WALL_S
    may_vary: bool = False

    def _player(self, config: CompiledConfig | None, run: Run = _not_loaded, allowance: float = 1.0) -> _Player:
        """A config that is not loaded yet; or a run of the library's."""
        allowance = config.rendered.allowance if config else allowance
        stages_s = {"compile": config.compile_s} if config else {}
        return _Player(
            self.device, run, self.regime, self.workload, allowance, config=config, stages_s=stages_s
        )

    def limit_error(self, factor: float) -> None:
        """Sets a limit: configs whose error exceeds this multiple of the library's are INACCURATE."""
        run = self.device.library(self.workload)
        error = self.verify_run(run)[0] if run is not None else None
        self.limit = ErrorLimit.beside(factor, error, self.workload.problem)

    def measure(
        self, compiled_config: CompiledConfig, incumbent_s: float | None,
        first_limit_s: float | None = None, brief: bool = False,
    ) -> Measurement:  # fmt: skip
        """Loads, verifies and times a config.

        Args:
            compiled_config: The config to measure.
            incumbent_s: Best median so far, in seconds; configs that cannot beat it are pruned.
            first_limit_s: Seconds that its first run may take; beyond them this process ends.
            brief: True for a survey: few samples, and no readings of the board.
        """
        player = self._player(compiled_config)
        try:
            self._admit(player, first_limit_s or 0.0)
            lost = sampling.lost_at_first(self.run_s, incumbent_s, brief)
            screened = lost or self._screened(player, incumbent_s, brief)
            self._refuse(player, player.wrong)
            if not lost and not brief:
                self._classify(player)
            circumstances = {} if brief else self._circumstances(player)
            if not screened.pruned:
                circumstances |= self._energy(player, screened)
        except FAILURES as failure:
            return self._failed(failure, player)
        outcome = Outcome.PRUNED if screened.pruned else Outcome.MEASURED
        return player.measurement(outcome, screened.pruned, screened.samples_s, circumstances)

    def run_once(self, compiled_config: CompiledConfig, first_limit_s: float | None = None) -> Measurement:
        """Times one run behind the first, and verifies nothing: the time says what may be worth a trial.

        Args:
            compiled_config: The config.
            first_limit_s: See `measure`.
        """
        player = self._player(compiled_config)
        try:
            with player.stage("load"):
                player.run = self.device.load(compiled_config.rendered, compiled_config.code, self.workload)
            with player.stage("time"):
                self._run_first(player.run, first_limit_s or 0.0)
                samples_s = self.device.samples_s(player.run, 1, self.regime)
        except FAILURES as failure:
            return self._failed(failure, player)
        return player.measurement(Outcome.PRUNED, "run once", samples_s)

    def _admit(self, player: _Player, first_limit_s: float = 0.0, finals: bool = False) -> None:
        """Loads and verifies a config.

        Args:
            player: Takes what comes of it.
            first_limit_s: See `verify_run`.
            finals: True to verify it over each poison, on two draws, and on inputs of several kinds.

        Raises:
            LaunchFailed, MemoryError, _Refused: It is not to be timed.
        """
        assert player.config is not None
        with player.stage("load"):
            player.run = self.device.load(player.config.rendered, player.config.code, self.workload)
        broken = ""
        with player.stage("verify"):
            player.error, wrong = self.verify_run(player.run, player.allowance, limit_s=first_limit_s)
            for poison in POISONS[1:] if finals else ():
                wrong = wrong or self._over(poison, player)
            if finals and not wrong and player.allowance <= 1 and self.workload.problem.precision != IEEE:
                # Such a precision is as exact as the library for every input.
                broken = broken_promise(self.device, self.workload, player.run)
                player.kinds = len(KINDS)
        self._refuse(player, wrong, finals)
        if broken:
            raise _Refused(Outcome.INACCURATE, broken)
        if finals:
            self._classify(player)

    def _classify(self, player: _Player) -> None:
        """Measures a player's class of bits.

        Raises:
            LaunchFailed, _Refused: It fails, or is a config whose bits differ between two runs.
        """
        with player.stage("bits"):
            player.bits = class_of_bits(self.device, self.workload, player.run)
        if player.bits == VARIES and player.config is not None and not self.may_vary:
            raise _Refused(Outcome.NOT_REPEATABLE, NOT_THE_SAME)

    def _over(self, poison: str, player: _Player) -> str:
        """What is wrong with a run on the second draw, over outputs that hold something else than NaN."""
        wrong = self.verify_run(player.run, player.allowance, self.workload.second, poison)[1]
        return f"over outputs that held {poison}: {wrong}" if wrong else ""

    def _screened(self, player: _Player, incumbent_s: float | None, brief: bool = False) -> sampling.Screened:
        """Times a run until enough is known, and checks one that was timed."""
        with player.stage("time"):
            if brief:
                screened = sampling.briefly(player.take_s, incumbent_s)
            else:
                screened = sampling.screen_by(player.take_s, incumbent_s, self.screen_s)
            if not screened.pruned:
                player.finish(brief)
        player.stages_s["time"] -= player.check_s
        player.stages_s["verify"] += player.check_s
        return screened

    def verify_run(
        self, run: Run, allowance: float = 1.0, draw: Draw | None = None, poison: str = NAN,
        limit_s: float = 0.0,
    ) -> tuple[Error, str]:  # fmt: skip
        """Returns error and complaint of a run on a draw of the inputs, by default the first.

        Args:
            run: The run.
            allowance: So many times the usual tolerance is allowed.
            draw: The inputs.
            poison: What the outputs hold before it.
            limit_s: Seconds after which SIGALRM ends this process; 0 for no limit. Nothing milder stops a
                kernel, and the parent process sees the reason.
        """
        self.workload.begin(draw or self.workload.first, poison)
        self._run_first(run, limit_s)
        return self.workload.check(allowance)

    def _run_first(self, run: Run, limit_s: float) -> None:
        begun_s = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            run()
            self.device.synchronize()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        self.run_s = time.perf_counter() - begun_s

    def _refuse(self, player: _Player, wrong: str, finals: bool = False) -> None:
        """Raises if a config is not to be timed: for a wrong result, or one beyond the error limit."""
        if wrong and not self.workload.sound():
            # This may not be the config's fault, so it is tried again in a fresh worker.
            self.unwell = True
            raise _Refused(Outcome.CRASHED, f"{SPOILT}: {wrong}")
        if wrong:
            raise _Refused(Outcome.WRONG_RESULT, wrong)
        if self.limit is not None and (complaint := self.limit.complaint(player.error, finals)):
            raise _Refused(Outcome.INACCURATE, complaint, self.limit.circumstances)

    def _failed(self, failure: Exception, player: _Player) -> Measurement:
        """Returns the outcome of a config that is not timed; whatever holds memory ends with the worker."""
        if isinstance(failure, _Refused):
            return player.measurement(failure.outcome, str(failure), (), failure.circumstances)
        is_memory = isinstance(failure, MemoryError)
        self.unwell |= is_memory or (isinstance(failure, LaunchFailed) and failure.device_unwell)
        reason = memory_reason(failure) if isinstance(failure, MemoryError) else str(failure)
        is_wrong = isinstance(failure, ImpossibleTime)
        return player.measurement(Outcome.WRONG_RESULT if is_wrong else Outcome.LAUNCH_FAILED, reason)

    def _circumstances(self, player: _Player) -> dict[str, float]:
        """Returns the circumstances of a run, with the error limit and what its promise was tested at."""
        limit = self.limit.circumstances if self.limit is not None else {}
        kinds = {KINDS_OF_INPUTS: float(player.kinds)} if player.kinds else {}
        return {**self.device.circumstances(player.run), **limit, **kinds, **player.states}

    def _energy(self, player: _Player, screened: sampling.Screened) -> dict[str, float]:
        """Power during back-to-back runs and energy of one; empty unless it is wanted and can be had."""
        if not self.energy:
            return {}
        with player.stage("power"):
            power_w = self.device.power_w(player.run)
        time_s = statistics.median(screened.samples_s)
        return {} if power_w is None else {"power_w": power_w, "energy_j": power_w * time_s}

    def verify(self, compiled_config: CompiledConfig, cases: Sequence[ShapeCase]) -> str:
        """Checks a config at other shapes; returns what is wrong at the first at which it fails, or nothing."""
        for case in cases:
            problem, rendered = problem_from(case.problem), compiled_config.rendered
            bench = Bench(self.device, Workload(self.device, problem, fresh_seed()), "hot")
            try:
                launched = replace(rendered, launch=case.launch)
                wrong = bench.verify_run(self.device.load(launched, compiled_config.code, bench.workload))[1]
            except (LaunchFailed, MemoryError) as failure:
                wrong = bench._failed(failure, bench._player(compiled_config)).reason
            self.unwell |= bench.unwell
            if wrong:
                return f"at {problem}: {wrong}"
        return ""

    def class_of_rows(self, compiled_config: CompiledConfig, case: ShapeCase, dim: str, count: int) -> str:
        """The class of a config's rows at a shape, of so many along a dim; empty if it fails there."""
        try:
            workload = Workload(self.device, problem_from(case.problem), fresh_seed(), checked=False)
            launched = replace(compiled_config.rendered, launch=case.launch)
            run = self.device.load(launched, compiled_config.code, workload)
            return class_of_rows(self.device, workload, run, dim, count)
        except (LaunchFailed, MemoryError) as failure:
            self._failed(failure, self._player(compiled_config))  # notes whether the device is unwell
            return ""

    def _libraries(self, threads: Collection[int] = ()) -> list[_Player]:
        """The library, if there is one, with its default number of threads, then with each other number."""
        problem, default = self.workload.problem, self.device.library(self.workload)
        if default is None:
            return []
        others = set(threads) - {0, int(self.device.circumstances(default).get("threads", 0))}
        runs = [default, *(self.device.library(self.workload, count) for count in sorted(others))]
        allowance = problem.operation.baselines[self.device.info.kind].allowance(problem)
        players = [self._player(None, run, allowance) for run in runs if run is not None]
        for player in players:
            with player.stage("verify"):
                player.error, player.wrong = self.verify_run(player.run, allowance)
            self._classify(player)
        return players

    def measure_baseline(self) -> Measurement | None:
        """Verifies and times the library with the same code as a kernel; None if there is none."""
        for player in self._libraries():
            screened = self._screened(player, None)
            circumstances = {**self.device.circumstances(player.run)} | self._energy(player, screened)
            return player.measurement(Outcome.MEASURED, player.wrong, screened.samples_s, circumstances)
        return None

    def finals(
        self, compiled_configs: Sequence[CompiledConfig], budget_s: float, threads: Sequence[int] = ()
    ) -> list[Measurement]:
        """Verifies finalists again, times them in alternation with the library, and verifies them once more.

        Each finalist is verified on two draws of the inputs before the rounds, and on a new one after them.

        Args:
            compiled_configs: The finalists.
            budget_s: Wall time in seconds; what checks leave of it is for the rounds.
            threads: Numbers of CPU threads that the finalists use. The library is timed with its default, and
                with each other number.

        Returns:
            A measurement for each finalist, then those of the library, if there is one, beginning with its
            default number of threads. The library's are missing if no finalist could be timed.
        """
        begun_s = time.monotonic()
        until_s = begun_s + CHECKS_SHARE * budget_s
        admitted, lost = self._admitted(dict(enumerate(compiled_configs)), True, until_s)
        if not admitted:
            return list(lost.values())
        admitted_s = time.monotonic()
        players = [*admitted.values(), *self._libraries(threads)]
        # What follows the rounds takes as long as to check the library.
        begun_s -= time.monotonic() - admitted_s
        left_s = max(budget_s - (time.monotonic() - begun_s), 0.0)
        states_s = min(STATES_SHARE * left_s, kind_of(self.device.info.kind).states_s)
        times_s = sampling.interleave([player.turn_s for player in players], left_s - states_s)
        states_s = min(states_s, budget_s - (time.monotonic() - begun_s))
        self._call_as_programs_do(list(admitted.values()), players[len(admitted) :], times_s, states_s)
        self.workload.draw_anew()
        timed = map(self._judged, players, times_s)
        finalists = [lost[n] if n in lost else next(timed) for n in range(len(compiled_configs))]
        return [*finalists, *timed]

    def rehearse(self) -> str:
        """Checks the library as finals check configs of a precision that promises to be as exact."""
        return "".join(broken_promise(self.device, self.workload, player.run) for player in self._libraries())

    def _call_as_programs_do(
        self, finalists: Sequence[_Player], libraries: Sequence[_Player], times: Sequence[Sequence[float]],
        seconds: float,
    ) -> None:  # fmt: skip
        """Compares finalists with the library in the states of a program: the fastest first, for longest."""
        until_s = time.monotonic() + seconds
        fastest_first = sorted(range(len(finalists)), key=lambda number: statistics.median(times[number]))
        for place, number in enumerate(fastest_first if libraries else ()):
            player, left_s = finalists[number], until_s - time.monotonic()
            if place >= LEAST_FINALISTS and left_s <= 0:
                return
            try:
                share_s = left_s / min(len(finalists) - place, 2)
                player.states = self.device.in_programs(player.run, libraries[0].run, share_s)
            except (LaunchFailed, MemoryError) as failure:
                player.wrong = player.wrong or f"called as programs do: {self._failed(failure, player).reason}"

    def _admitted(
        self, compiled_configs: Mapping[Name, CompiledConfig], finals: bool = False, until_s: float = math.inf
    ) -> tuple[dict[Name, _Player], dict[Name, Measurement]]:
        """The configs that are to be timed, a few if the time is up by then, and what came of the others."""
        players: dict[Name, _Player] = {}
        lost: dict[Name, Measurement] = {}
        for name, compiled_config in compiled_configs.items():
            player = self._player(compiled_config)
            if len(players) >= LEAST_FINALISTS and time.monotonic() > until_s:
                lost[name] = player.measurement(Outcome.PRUNED, NO_TIME)
                continue
            try:
                self._admit(player, finals=finals)
                players[name] = player
            except FAILURES as failure:
                lost[name] = self._failed(failure, player)
        return players, lost

    def _judged(self, player: _Player, samples_s: Sequence[float]) -> Measurement:
        """Judges a finalist after the rounds, on new inputs; the library is not checked."""
        player.stages_s.clear()
        try:
            if player.config is not None:
                wrong = player.wrong or self.verify_run(player.run, player.allowance, self.workload.second)[1]
                self._refuse(player, wrong, finals=True)
        except _Refused as refused:
            return self._failed(refused, player)
        return player.measurement(Outcome.MEASURED, "", samples_s, self._circumstances(player))

    def sentinel(self, compiled_configs: Mapping[str, CompiledConfig], budget_s: float) -> Turns:
        """Verifies participants and library, and times them in turns until enough is known or time is up.

        Args:
            compiled_configs: The configs by name.
            budget_s: Wall time of the rounds, in seconds.
        """
        players, lost = self._admitted(compiled_configs)
        turns = Turns(wrong={name: measurement.reason for name, measurement in lost.items()})
        for player in self._libraries():
            players[LIBRARY] = player
            turns.library_rms_rel = player.error.rms_rel if player.error else None
        if CHAMPION not in players:
            return turns

        def is_enough(times_s: Sequence[Sequence[float]]) -> bool:
            readings = self.device.circumstances(players[CHAMPION].run)
            for name in READ:
                if name in readings:
                    turns.circumstances.setdefault(name, []).append(readings[name])
            return decided(dict(zip(players, times_s, strict=True)))

        try:
            turns.bits = class_of_bits(self.device, self.workload, players[CHAMPION].run)
            warm_s = time.monotonic() + min(WARM_UP * budget_s, WARM_UP_LIMIT_S)
            while time.monotonic() < warm_s:
                for player in players.values():
                    self.device.samples_s(player.run, 1, self.regime)
            takers = [player.take_s for player in players.values()]
            times_s = sampling.interleave(takers, budget_s, is_enough, *SENTINEL_BLOCKS)
            for (name, player), rounds_s in zip(players.items(), times_s, strict=True):
                player.finish()
                if player.wrong and name != LIBRARY:
                    turns.wrong[name] = player.wrong
                else:
                    turns.rounds_s[name] = rounds_s
        except (LaunchFailed, MemoryError) as failure:
            turns.rounds_s.clear()
            turns.wrong[CHAMPION] = f"while all were timed: {self._failed(failure, players[CHAMPION]).reason}"
        return turns

    def survey(self, compiled_config: CompiledConfig | None) -> Measurement:
        """Times a config for a survey, which needs many times rather than exact ones; notes the best.

        A first run that takes far too long ends this process.

        Args:
            compiled_config: The config; None for the library, which is not verified.
        """
        if compiled_config is None:
            measurement = self._library_briefly()
        else:
            limit_s = max(FIRST_FLOOR_S, FIRST_FACTOR * (self.best_s or 0.0))
            measurement = self.measure(compiled_config, self.best_s, limit_s, brief=True)
        if measurement.outcome is Outcome.MEASURED:
            self.best_s = min(self.best_s or math.inf, measurement.time_s or math.inf)
        return measurement

    def _library_briefly(self) -> Measurement:
        player = self._player(None)
        try:
            run = self.device.library(self.workload)
            if run is None:
                return player.measurement(Outcome.INVALID, "there is no library")
            self.workload.begin(self.workload.first)
            run()
            self.device.synchronize()
            before = self.workload.inputs.shuffle if self.regime.startswith("cold") else None
            samples = self.device.samples_s(run, sampling.BRIEF_SAMPLES, self.regime, before)
            more = min(int(LIBRARY_S / max(samples[-1], 1e-9)), LIBRARY_SAMPLES) - sampling.BRIEF_SAMPLES
            samples = samples + (self.device.samples_s(run, more, self.regime, before) if more > 0 else [])
        except (LaunchFailed, MemoryError) as failure:
            return self._failed(failure, player)
        return player.measurement(Outcome.MEASURED, "", samples)
