"""Climbs a ladder: each step tuned briefly or taken as declared, then all of them timed in alternation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tuner.declare.catalogue import from_file
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.declare.space import Config, Parameter, Space, Value
from tuner.devices.detect import DetectedDevice, kind_of
from tuner.errors import NothingFound, TunerError
from tuner.report.ladder_plan import LadderPlan, LadderStep, Sweep, lessons
from tuner.report.ladder_result import DeviceLimits, Ladder, Library, Rung, SweepPoint
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Role
from tuner.search import BackgroundSearch, Known, Search, SearchOptions
from tuner.store import Store
from tuner.study.leaderboard import Leaderboard
from tuner.study.loop import Loop
from tuner.study.progress import TimeBudget
from tuner.study.session import Recorder, Session, TimingConditions
from tuner.study.study import SearchPolicy
from tuner.workers.bench import CompiledConfig
from tuner.workers.device_worker import Crew

#: Seconds for the alternation of a problem's rungs beyond the minimum number of rounds.
FINALS_S = 15.0
#: Seconds that one config may take, however slow the first steps are.
LIMIT_S = 560.0
#: Largest size in bytes of the array that is read or copied on a GPU.
GPU_BYTES = 1 << 30
#: On a CPU the size is this multiple of the last-level cache, within these bounds.
CACHES, CPU_LEAST_BYTES, CPU_MOST_BYTES = 4, 64 << 20, 256 << 20
#: The array and its checks take this multiple of its bytes.
ROOM = 16
#: Multiply-adds for each number, and numbers for each thread that a device can hold.
STEPS, NUMBERS = 16_384, 8
#: Number of numbers for each core of a CPU.
NUMBERS_OF_A_CORE = 1 << 14


def pinned_space(kernel: Kernel, pins: Mapping[str, Value], problem: Problem, device: DeviceInfo) -> Space:
    """Returns the legal configs in which the pinned parameters have their values.

    A rule that is for speed alone is dropped if it excludes all of the pinned values, so that a step is shown
    as published. Without pins, a kernel meant for other shapes has no configs left.
    """
    parameters = [
        Parameter(one.name, (pins[one.name],), one.scale) if one.name in pins else one
        for one in kernel.parameters
    ]
    space = Space.build(parameters, kernel.constraints, problem, device)
    if len(space) or not pins:
        return space
    binding = [constraint for constraint in kernel.constraints if not constraint.for_speed]
    return Space.build(parameters, binding, problem, device)


def first_configs(
    kernel: Kernel, pins: Mapping[str, Value], problem: Problem, device: DeviceInfo
) -> list[Config]:
    """Returns the legal ones of the kernel's declared first configs, with pins applied."""
    wanted = [Config({**config, **pins}) for config in kernel.first_configs()]
    return [config for config in wanted if all(r.rule(problem, device, config) for r in kernel.constraints)]


def declared_config(
    kernel: Kernel, pins: Mapping[str, Value], problem: Problem, device: DeviceInfo
) -> Config | None:
    """Returns the first declared config that is legal; else the most similar legal config, None without one."""
    known = first_configs(kernel, pins, problem, device)
    if known:
        return known[0]
    space, default = pinned_space(kernel, pins, problem, device), kernel.default_config()
    nearest = space.nearest([{**default, **pins}]) if default is not None else list(space[:1])
    return nearest[0] if nearest else None


def measured(session: Session, kernel: Kernel, config: Config) -> tuple[CompiledConfig | None, Measurement]:
    """Compiles and measures one config to the end; a step of a ladder may be slow.

    Returns:
        The machine code, None if it was not measured; and the measurement.
    """
    compiled = session.compile(kernel, config)
    if isinstance(compiled, Measurement):
        return None, compiled
    measurement = session.measure(compiled, limit_s=LIMIT_S)
    return compiled if measurement.outcome is Outcome.MEASURED else None, measurement


@contextmanager
def _session(crew: Crew, store: Store, problem: Problem, regime: str) -> Iterator[Session]:
    """Opens a session and makes its arrays."""
    worker = crew.devices[0]
    recorder = Recorder(store, problem, worker.info, regime, worker.versions, f"ladder {problem}")
    with Session(crew, problem, recorder, TimingConditions(regime)) as session:
        session.prepare()
        yield session


# ---- the climb


@dataclass
class Climb:
    """One climb; `run` does it all.

    Attributes:
        plan: The steps.
        found: The device.
        store: The store for the trials; no champion is crowned.
        regime: How times are taken.
        seconds: Seconds for tuning each step; None for the declared configs.
        end_to_end: True to time allocation and copies too.
        seed: Seed of the searches.
        report: Receives the next step, in words.
    """

    plan: LadderPlan
    found: DetectedDevice
    store: Store
    regime: str = "cold"
    seconds: float | None = 10.0
    end_to_end: bool = False
    seed: int = 0
    report: Callable[[str], None] = lambda text: None

    def run(self) -> Ladder:
        """Measures every step of every problem, the sweeps and the limits.

        Raises:
            InputError: A problem does not fit into the device's memory.
            NothingFound: No step has a legal config.
            DeviceTrouble: The device cannot be opened or stays unwell.
        """
        plan = self.plan
        with Crew([self.found]) as crew:
            self._crew, worker = crew, crew.devices[0]
            ladder = Ladder(plan, worker.info, worker.versions, self.regime)
            for problem in plan.problems:
                place = len(ladder.rungs)
                for layout in dict.fromkeys(step.layout or problem.layout for step in plan.steps):
                    steps = [step for step in plan.steps if (step.layout or problem.layout) == layout]
                    self._climb(ladder, replace(problem, layout=layout), steps)
                order = {id(step): number for number, step in enumerate(plan.steps)}
                ladder.rungs[place:] = sorted(ladder.rungs[place:], key=lambda rung: order[id(rung.step)])
            if plan.steps and not ladder.rungs:
                raise NothingFound(
                    f"no step of the ladder has a legal config on {worker.info.name}; choose another shape"
                )
            for sweep in plan.sweeps:
                self._sweep(ladder, sweep)
            self.report("the device's limits")
            ladder.limits = measure_limits(crew, self.store, plan.problems[0].dtype)
        return ladder

    def _climb(self, ladder: Ladder, problem: Problem, steps: Sequence[LadderStep]) -> None:
        """Measures steps at a problem, then all of them and the library in alternation."""
        with _session(self._crew, self.store, problem, self.regime) as session:
            self.report(f"{problem}: the library")
            library = session.worker.baseline()
            if library is not None:
                self.store.add(session.recorder.of_baseline(library))
            rungs = []
            for number, step in enumerate(steps, 1):
                self.report(f"{problem}: step {number} of {len(steps)}, {step.label}")
                rungs += self._tried(step, session)
            self.report(f"{problem}: all steps in alternation")
            played = session.worker.finals([rung.code for rung in rungs if rung.code], FINALS_S)
            times = iter(played)
            for at, rung in enumerate(rungs):
                if rung.code is not None:
                    rungs[at] = replace(rung, measurement=next(times))
                    session.add(Role.FINAL, rung.step.kernel, rung.config, rungs[at].measurement)
            library = next(times, library)
            ladder.rungs += rungs
            if library is not None:
                name = problem.operation.baselines[ladder.device.kind].named(problem)
                ladder.libraries.append(Library(name, problem, library))
            if self.end_to_end:
                ladder.transfers_s[problem] = session.worker.transfers_s()
        further = measure_further_library(self._crew, problem, self.regime)
        if further is not None:
            ladder.libraries.append(Library(further[0], problem, further[1], main=False))

    def _tried(self, step: LadderStep, session: Session) -> list[Rung]:
        """Tunes a step, or measures its declared config; none if no config is legal."""
        kernel, pins, problem, info = step.kernel, step.pins, session.problem, session.worker.info
        if self.seconds is not None:
            space = pinned_space(kernel, pins, problem, info)
            tuned = self._tuned(step, space, session) if len(space) > 1 else None
            if tuned is not None:
                return [tuned]
        config = declared_config(kernel, pins, problem, info)
        if config is None:
            return []
        code, measurement = measured(session, kernel, config)
        session.add(Role.TRIAL, kernel, config, measurement)
        return [Rung(step, problem, config, measurement, code=code)]

    def _tuned(self, step: LadderStep, space: Space, session: Session) -> Rung | None:
        """Searches the space of one kernel; None if no config could be measured."""
        kernel = step.kernel
        starts = first_configs(kernel, step.pins, session.problem, session.worker.info)
        known = Known([(kernel.name, config) for config in starts])
        search = BackgroundSearch(
            Search({kernel.name: space}, SearchOptions(self.seed, session.recorder.study), known),
            inline=session.shares_cores,
        )
        budget = TimeBudget(self.seconds, lambda progress: None, finals_s=0.0)
        leaderboard = Leaderboard(progress=budget.progress)
        try:
            Loop(session, SearchPolicy([kernel], search, leaderboard), budget).run()
        finally:
            search.close()
            session.pool.cancel()
        times_s, codes = leaderboard.times_s, leaderboard.compiled_configs
        best = min((key for key in times_s if key in codes), key=lambda key: times_s[key], default=None)
        if best is None:
            return None
        measurement = Measurement(Outcome.MEASURED, samples_s=(times_s[best],))
        return Rung(step, session.problem, best[1], measurement, budget.progress.trials, codes[best])

    def _sweep(self, ladder: Ladder, sweep: Sweep) -> None:
        for problem in sweep.problems:
            self.report(f"{problem}: {sweep.label} over {sweep.parameter}")
            with _session(self._crew, self.store, problem, self.regime) as session:
                for value in sweep.values:
                    config = declared_config(sweep.kernel, sweep.pinned(value), problem, ladder.device)
                    if config is not None:
                        _, measurement = measured(session, sweep.kernel, config)
                        ladder.sweeps.append(SweepPoint(sweep, problem, value, measurement))


# ---- what the steps are compared with


def _limit_problem(name: str, dims: Mapping[str, int], dtype: str) -> tuple[Problem, tuple[Kernel, ...]]:
    """Returns a problem of a file in ``kernels/limits``, and its kernels."""
    catalogue = from_file(kernels_folder() / "limits" / f"{name}.py")
    return catalogue.operation(name).problem(dims, dtype), catalogue.kernels


def measure_limits(crew: Crew, store: Store, dtype: str) -> DeviceLimits:
    """Measures a device's limits.

    Args:
        crew: The device's workers, open.
        store: A session needs one; nothing is stored in it.
        dtype: Element type; a limit that cannot be measured in it is 0.
    """
    info = crew.devices[0].info
    elements = array_bytes(info, crew.devices[0].free_bytes) // DTYPE_BYTES[dtype]
    parts = 1 << 8 if kind_of(info.kind).is_host else 1 << 12
    numbers = NUMBERS * info.sm_count * info.max_threads_per_sm
    wanted = {
        "read": {"parts": parts, "n": elements // parts},
        "copy": {"n": elements},
        "multiply_add": {"n": numbers or NUMBERS_OF_A_CORE * max(info.cores, 1), "steps": STEPS},
    }
    rates = []
    for name, dims in wanted.items():
        try:
            problem, kernels = _limit_problem(name, dims, dtype)
        except TunerError:  # this dtype has no such limit: integers are not multiplied and added
            rates.append(0.0)
            continue
        time_s = _best_s(crew, store, problem, kernels)
        work = problem.work.flops * 1e-12 if name == "multiply_add" else problem.work.bytes * 1e-9
        rates.append(work / time_s if time_s else 0.0)
    return DeviceLimits(*rates)


def array_bytes(info: DeviceInfo, free_bytes: int) -> int:
    """Bytes of the array that is read or copied: far beyond any cache, and a whole number of KiB."""
    wanted = GPU_BYTES
    if kind_of(info.kind).is_host:
        wanted = min(max(CACHES * info.l2_bytes, CPU_LEAST_BYTES), CPU_MOST_BYTES)
    return max(min(wanted, free_bytes // ROOM), 1 << 20) >> 15 << 15


def _best_s(crew: Crew, store: Store, problem: Problem, kernels: tuple[Kernel, ...]) -> float | None:
    """Returns the shortest median over the declared first configs; None if none can be measured."""
    info = crew.devices[0].info
    with _session(crew, store, problem, "cold") as session:
        times = [
            measured(session, kernel, config)[1].time_s
            for kernel in kernels
            if kernel.target == info.kind
            for config in _configs(kernel, problem, info)
        ]
    return min(filter(None, times), default=None)


def _configs(kernel: Kernel, problem: Problem, info: DeviceInfo) -> list[Config]:
    """Returns the declared configs; on a CPU, each with one thread and with one thread for each core."""
    pins: list[dict[str, Value]] = [{}]
    if kernel.threads:
        pins = [{kernel.threads: 1}, {kernel.threads: 1 << (max(info.cores, 1).bit_length() - 1)}]
    return list(dict.fromkeys(config for pin in pins for config in first_configs(kernel, pin, problem, info)))


def measure_further_library(crew: Crew, problem: Problem, regime: str) -> tuple[str, Measurement] | None:
    """Times the further library that ``configs/lessons.toml`` names; its name and time, None without one."""
    worker = crew.devices[0]
    file = lessons().get(problem.operation.name, {}).get(worker.info.kind, {}).get("further_library", "")
    if not file or problem.operation.origin:
        return None
    alike, _ = _limit_problem(file, problem.dims, problem.dtype)
    baseline = alike.operation.baselines.get(worker.info.kind)
    if baseline is None:
        return None
    worker.prepare({**alike.to_json(), "origin": str(alike.operation.origin)}, regime)
    measurement = worker.baseline()
    crew.rest()
    return None if measurement is None else (baseline.named(problem), measurement)
