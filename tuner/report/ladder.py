"""``tuner ladder``: each step tuned briefly or taken as declared, then all of them timed in alternation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from tuner.cli import options as cli
from tuner.cli.formatting import print_json, table
from tuner.declare.catalogue import builtin, from_file
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.declare.space import Config, Space, Value
from tuner.devices.detect import DetectedDevice, find, kind_of
from tuner.errors import InputError, NothingFound, TunerError
from tuner.report.ladder_plan import LadderPlan, LadderStep, Section, ladder_of, read_ladder_plan
from tuner.report.ladder_result import DeviceLimits, Ladder, Rung
from tuner.results.record import Role
from tuner.search import Known, Search, SearchOptions
from tuner.store import Store
from tuner.study.leaderboard import Leaderboard
from tuner.study.locks import occupied
from tuner.study.loop import Loop
from tuner.study.progress import TimeBudget
from tuner.study.session import Session
from tuner.study.study import SearchPolicy
from tuner.workers.device_worker import Crew

#: Seconds for tuning each step, unless said otherwise.
DEFAULT_SECONDS = 10.0
#: Seconds for the alternation of a problem's steps beyond the minimum number of rounds.
FINALS_S = 15.0
#: Seconds that one config may take, however slow the first steps are.
LIMIT_S = 560.0
#: Bytes of the array that is read or copied, far beyond any cache; its parts; how many numbers are multiplied.
GPU_LIMITS, HOST_LIMITS = (1 << 30, 1 << 12, 1 << 21), (1 << 28, 1 << 8, 1 << 18)
#: The array and its checks take this multiple of its bytes. Multiply-adds for each number.
ROOM, STEPS = 16, 16_384


def pinned_space(kernel: Kernel, pins: Mapping[str, Value], problem: Problem, device: DeviceInfo) -> Space:
    """The legal configs in which the pinned parameters have their values.

    A rule that is for speed alone is dropped if it excludes all of the pinned values, so that a step is shown
    as published. Without pins, a kernel meant for other shapes has no configs left.
    """
    parameters = [
        replace(own, values=(pins[own.name],)) if own.name in pins else own for own in kernel.parameters
    ]
    space = Space.build(parameters, kernel.constraints, problem, device)
    binding = [constraint for constraint in kernel.constraints if not constraint.for_speed]
    return space if len(space) or not pins else Space.build(parameters, binding, problem, device)


def first_configs(
    kernel: Kernel, pins: Mapping[str, Value], problem: Problem, device: DeviceInfo
) -> list[Config]:
    """The legal ones of the kernel's declared first configs, with pins applied."""
    pinned = [Config({**config, **pins}) for config in kernel.first_configs()]
    return [config for config in pinned if kernel.legal(problem, device, config)]


def declared_config(
    kernel: Kernel, pins: Mapping[str, Value], problem: Problem, device: DeviceInfo
) -> Config | None:
    """The first declared config that is legal; else the most similar legal config, None without one."""
    known, default = first_configs(kernel, pins, problem, device), kernel.default_config()
    if not known:
        space = pinned_space(kernel, pins, problem, device)
        known = [space[at] for at in space.nearest([{**default, **pins}])] if default is not None else space[:1]
    return known[0] if known else None


# ---- the climb


@dataclass
class Climb:
    """One climb; `run` does it all.

    Attributes:
        plan: The steps.
        crew: The device's workers, open.
        store: The store for the trials; no champion is crowned.
        regime: How times are taken.
        seconds: Seconds for tuning each step; None for the declared configs.
        end_to_end: True to time allocation and copies too.
        seed: Seed of the searches.
        report: Receives the next step, in words.
    """

    plan: LadderPlan
    crew: Crew
    store: Store
    regime: str = "cold"
    seconds: float | None = DEFAULT_SECONDS
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
        worker = self.crew.devices[0]
        ladder = Ladder(self.plan, worker.info, worker.versions, self.regime)
        for section in self.plan.sections:
            ladder.rungs += self._climb(ladder, section)
        if not ladder.rungs:
            raise NothingFound(f"no step has a legal config on {worker.info.name}; choose another shape")
        ladder.rungs.sort(key=self._place)
        self.report("the device's limits")
        ladder.limits = self._limits(ladder.rungs[0].section.problem.dtype)
        return ladder

    def _place(self, rung: Rung) -> tuple[int, int]:
        """Steps of one shape come as in the plan, whatever their layouts; sweeps come last."""
        if rung.section.is_sweep:
            return len(self.plan.shapes), 0
        sizes = [size for _, size in rung.section.problem.shape]
        return self.plan.shapes.index(sizes), self.plan.steps.index(rung.step)

    @contextmanager
    def _session(self, problem: Problem, regime: str) -> Iterator[Session]:
        """Opens a session and makes its arrays."""
        with Session(self.crew, self.store, problem, regime, f"ladder {problem}") as session:
            session.prepare()
            yield session

    def _climb(self, ladder: Ladder, section: Section) -> list[Rung]:
        """Measures the steps of a section; beside those of a ladder the library, and all in alternation."""
        problem, rungs = section.problem, list[Rung]()
        with self._session(problem, self.regime) as session:
            library = None if section.is_sweep else session.worker.baseline()
            if library is not None:
                self.store.add(session.of_baseline(library))
            for number, step in enumerate(section.steps, 1):
                self.report(f"{section.title}: step {number} of {len(section.steps)}, {step.label}")
                rungs += self._tried(section, step, session)
            if not section.is_sweep:
                self.report(f"{section.title}: all steps in alternation")
                times = iter(session.worker.finals([rung.code for rung in rungs if rung.code], FINALS_S))
                rungs = [replace(rung, measurement=next(times)) if rung.code else rung for rung in rungs]
                for rung in rungs:
                    if rung.code:
                        session.add(Role.FINAL, rung.kernel, rung.config, rung.measurement)
                library = next(times, library)
            if library is not None and library.time_s:
                ladder.libraries[problem] = session.of_baseline(library)
            if self.end_to_end:
                ladder.transfers_s[problem] = session.worker.transfers_s()
        return rungs

    def _tried(self, section: Section, step: LadderStep, session: Session) -> Iterator[Rung]:
        """Measures a step's best config after a search, or its declared one; none if no config is legal."""
        kernel, problem, info = self.plan.kernel(step.kernel), section.problem, session.worker.info
        config, trials = declared_config(kernel, step.config, problem, info), 1
        if self.seconds is not None and not section.is_sweep:
            space = pinned_space(kernel, step.config, problem, info)
            tuned, trials = self._tuned(step, space, session) if len(space) > 1 else (None, 1)
            config = tuned or config
        if config is not None:
            code, measurement = session.timed(kernel, config, LIMIT_S)
            session.add(Role.TRIAL, kernel, config, measurement)
            yield Rung(section, step, kernel, config, measurement, trials, code)

    def _tuned(self, step: LadderStep, space: Space, session: Session) -> tuple[Config | None, int]:
        """Searches the space of one kernel: its best config, None if none could be measured; and the trials."""
        kernel = self.plan.kernel(step.kernel)
        starts = first_configs(kernel, step.config, session.problem, session.worker.info)
        known = Known([(kernel.name, config) for config in starts])
        search = Search({kernel.name: space}, SearchOptions(self.seed), known)
        budget = TimeBudget(self.seconds, finals_s=0.0)
        leaderboard = Leaderboard(progress=budget.progress)
        policy = SearchPolicy([kernel], search, leaderboard, session.shares_cores)
        try:
            Loop(session, policy, budget).run()
        finally:
            policy.close()
            session.pool.cancel()
        best = min(leaderboard.times_s.items(), key=lambda timed: timed[1], default=None)
        return best and best[0][1], max(budget.progress.trials, 1)

    # ---- what the steps are compared with

    def _limits(self, dtype: str) -> DeviceLimits:
        """Measures reading, copying and multiply-adds."""
        worker = self.crew.devices[0]
        array_bytes, parts, numbers = HOST_LIMITS if kind_of(worker.info.kind).is_host else GPU_LIMITS
        length = min(array_bytes, worker.free_bytes // ROOM) // DTYPE_BYTES[dtype] // parts
        return DeviceLimits(
            self._limit("read", {"parts": parts, "n": length}, dtype),
            self._limit("copy", {"n": parts * length}, dtype),
            self._limit("multiply_add", {"n": numbers, "steps": STEPS}, dtype),
        )

    def _limit(self, name: str, dims: Mapping[str, int], dtype: str) -> float:
        """What the best declared config of a file in ``kernels/limits`` reaches, in GB/s or TFLOPS."""
        catalogue, times_s = from_file(kernels_folder() / "limits" / f"{name}.py"), list[float]()
        try:
            problem = catalogue.operation(name).problem(dims, dtype)
        except TunerError:  # this dtype has no such limit: integers are not multiplied and added
            return 0.0
        with self._session(problem, "cold") as session:
            info = session.worker.info
            cores = 1 << (max(info.cores, 1).bit_length() - 1)
            for kernel in (kernel for kernel in catalogue.kernels if kernel.kind == info.kind):
                pins: dict[str, Value] = {kernel.threads: cores} if kernel.threads else {}
                for config in first_configs(kernel, pins, problem, info):
                    measurement = session.timed(kernel, config, LIMIT_S)[1]
                    session.add(Role.TRIAL, kernel, config, measurement)
                    times_s.append(measurement.time_s or math.inf)
        work = problem.work.flops * 1e-12 if name == "multiply_add" else problem.work.bytes * 1e-9
        return work / min(times_s, default=math.inf)


# ---- the command


@click.command()
@cli.problem_options
@cli.kernels_option("Measure only this kernel; repeat for several.")
@cli.device_option("cpu or cuda:N; default: the GPU if there is one.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help=f"Seconds for tuning each step.  [default: {DEFAULT_SECONDS:g}]",
)
@click.option("--classic", is_flag=True, help="Take each step's declared config instead of tuning it.")
@click.option("--end-to-end", is_flag=True, help="Time allocation and copies to and from the device, too.")
@click.option("--no-sweeps", is_flag=True, help="Leave the sweeps of a plan out.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the searches.")
@cli.folder_option("Write an HTML page and plots to this folder.")
@click.option("--quiet", is_flag=True, help="Show no progress on stderr.")
@cli.data_options
def ladder(
    folder: Path | None, seconds: float | None, end_to_end: bool, seed: int, db: str, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Measure every kernel of an operation in order, and show what each step gains.

    OPERATION DIM... is e.g. "gemm 4096 4096 4096". PLAN.toml (configs/ladder-*.toml) reproduces the table of a
    published report, with its figures beside ours.
    """
    if folder is not None:
        cli.writable_folder(folder)
    plan, where = _asked(options)
    if seconds is None and not (options["classic"] or plan.classic):
        seconds = DEFAULT_SECONDS
    report = partial(click.echo, err=True) if not options["quiet"] else lambda text: None
    with Store.open(db) as store, occupied(db, (where,), f"ladder {plan.title}"), Crew([where]) as crew:
        climbed = Climb(plan, crew, store, options["regime"], seconds, end_to_end, seed, report).run()
    if folder is not None:
        from tuner.report.pages import write_ladder

        click.echo(str(write_ladder(climbed, folder)), err=True)
    if as_json:
        print_json(climbed.rows())
        return
    for section in climbed.sections:
        table(f"{section.title} on {climbed.device.name}, {climbed.regime}", *climbed.table(section))
        for text in climbed.slower_texts(section):
            click.echo(text)
    click.echo(str(climbed.limits))


def _asked(options: Mapping[str, Any]) -> tuple[LadderPlan, DetectedDevice]:
    """The plan that a user names, or that of an operation's kernels, and the device.

    Raises:
        InputError: More than a plan is named, or a device that the plan is not for.
    """
    target = options["target"]
    if target.endswith(".toml"):
        words = ("dims", "kernels", "sets", "dtype", "layout", "precision", "epilogue")
        if any(options[name] for name in words):
            raise InputError(
                f"a ladder plan says itself what to measure, got more beside {target}; leave it away"
            )
        plan = read_ladder_plan(Path(target), builtin())
        where = find(options["device"] or kind_of(plan.target).first)
        if where.target != plan.target:
            raise InputError(f"{target} is for {plan.target}, got --device {where.spec}; choose another device")
        plan.sweeps = [] if options["no_sweeps"] else plan.sweeps
    else:
        catalogue, problem = cli.named_problem(options)
        where = find(options["device"])
        plan = ladder_of(catalogue, problem, where.target, options["kernels"])
    return plan, where
