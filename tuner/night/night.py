"""A night on this machine: the surveys of its plan, what programs asked for, and the runner of its slices."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace

from tuner.declare.catalogue import builtin
from tuner.devices.detect import DetectedDevice, kind_of
from tuner.errors import InputError, NothingFound
from tuner.extras import required
from tuner.lookup.demand import most_wanted
from tuner.model.survey import refit_if_possible, run_survey
from tuner.model.survey_design import CONFIGS, PER_PROBLEM, Ranges, SurveyRequest
from tuner.night.plan import Plan, PlanItem, SurveyItem
from tuner.night.work import Assignment, Done, Part, Place
from tuner.results.objectives import limit_for
from tuner.store import Store
from tuner.study.progress import Progress
from tuner.study.requests import budget
from tuner.study.study import Study, open_study
from tuner.workers.device_worker import Crew

#: Makes the view of one study's progress.
View = Callable[[PlanItem], AbstractContextManager[Callable[[Progress], None]]]


class Stage:
    """Holds the devices, which stay open from one study to the next.

    Attributes:
        done: What came of the latest work so far, also if an exception ended it.
    """

    def __init__(self, store: Store, devices: tuple[DetectedDevice, ...], view: View) -> None:
        """Begins with no study.

        Args:
            store: Where records go.
            devices: The device, or several of one kind that share the trials.
            view: Shows the progress of each study.
        """
        self.done = Done()
        self._store, self._devices, self._view = store, devices, view
        self._crew = Crew(devices)
        self._stack = ExitStack()
        self._study: Study | None = None
        self._open: tuple[str, int] = ("", 0)

    def run(self, work: Assignment) -> Done:
        """Runs a slice, or the finals, after which the study is closed.

        Raises:
            DeviceTrouble: The device stays unwell.
            Interrupted: SIGINT or SIGTERM came.
        """
        done, begun_s, known = Done(), time.monotonic(), 0
        self.done = done
        try:
            if work.item.invariant:
                return self._all_sizes(work, done)
            study = self._opened(work, done)
            known = study.progress.trials
            for seconds in work.parts:
                self._search(study, seconds, done)
                if done.parts[-1].why:
                    break
            if not work.parts:
                result = study.finals()
                done.champion, done.front = result.champion, result.front
                if result.champion is None:
                    reasons = (f"{name}: {reason}" for name, reason in result.progress.reasons.items())
                    done.failed = f"nothing measured: {'; '.join(reasons) or result.stopped}"
        except (InputError, NothingFound) as error:
            done.failed = str(error)
        finally:
            done.spent_s = time.monotonic() - begun_s
            if self._study is not None:
                done.trials = self._study.progress.totals
                done.tried = self._study.progress.trials - known
        self._open = (work.name, work.turn + 1)
        if done.failed or not work.parts:
            self._leave()
        return done

    def _all_sizes(self, work: Assignment, done: Done) -> Done:
        """Finds configs of one class of rows for all sizes, in one piece; the champion is the largest's."""
        self._leave()
        begun_s = time.monotonic()
        with self._view(work.item) as report:
            result = required("invariant")(work.request(self._devices), self._store, report, self._crew)
        done.champion, done.trials = result.champion, result.progress.totals
        done.parts = [Part(None, done.trials["total"], result.stopped, time.monotonic() - begun_s)]
        return done

    def _opened(self, work: Assignment, done: Done) -> Study:
        """The study of the problem: the open one, if nothing was measured elsewhere since, or a fresh one."""
        if self._study is None or self._open != (work.name, work.turn):
            self._leave()
            begun_s = time.monotonic()
            try:
                report = self._stack.enter_context(self._view(work.item))
                study = open_study(work.request(self._devices), self._store, report, self._crew)
                self._study = self._stack.enter_context(study)
            except BaseException:
                self._leave()
                raise
            done.opening_s = time.monotonic() - begun_s
        done.library = self._study.library
        return self._study

    def _search(self, study: Study, seconds: float, done: Done) -> None:
        begun_s = time.monotonic()
        why = study.search(None if math.isinf(seconds) else seconds)
        total = study.progress.totals["total"]
        done.parts.append(Part(study.leaderboard.objective_value, total, why, time.monotonic() - begun_s))

    def _leave(self) -> None:
        """Ends the study; its trials are stored, and the device stays open for the next one."""
        self._study = None
        self._stack.close()

    def close(self) -> None:
        """Ends the study and all processes; its trials are stored."""
        try:
            self._leave()
        finally:
            self._crew.close()


class LocalRunner(Stage):
    """A `Runner` whose only place is this process.

    Attributes:
        place: This process.
    """

    def __init__(
        self, store: Store, devices: tuple[DetectedDevice, ...], view: View,
        versions: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Begins with nothing to do.

        Args:
            store: Where records go.
            devices: The device, or several of one kind that share a study.
            view: Shows the progress of each study.
            versions: Name -> version of compiler, driver and library, if an open device told them.
        """
        super().__init__(store, devices, view)
        self.place = Place("here", devices[0].info, versions or {})
        self._work: Assignment | None = None

    def free(self) -> Sequence[Place]:
        """This process, unless it has work."""
        return [] if self._work is not None else [self.place]

    def start(self, place: Place, work: Assignment) -> None:
        """Takes the work, which `wait` then runs."""
        self._work, self.done = work, Done()

    def wait(self, seconds: float) -> Iterable[tuple[Place, Assignment, Done]]:
        """Runs the work; see the protocol."""
        if self._work is not None:
            self.run(self._work)
        return self._taken()

    def gone(self) -> Sequence[Place]:
        """This process stays."""
        return []

    def places_of(self, model: str) -> int:
        """This process alone."""
        return 1

    def stop(self, why: str) -> Iterable[tuple[Place, Assignment, Done]]:
        """Closes the device; what was interrupted counts as far as it came."""
        self.close()
        return self._taken()

    def _taken(self) -> list[tuple[Place, Assignment, Done]]:
        work, self._work = self._work, None
        return [] if work is None else [(self.place, work, self.done)]


def run_surveys(plan: Plan, store: Store, device: DetectedDevice, deadline_s: float | None) -> Iterator[str]:
    """Runs the plan's surveys, each for its seconds or up to the deadline; each goes on where it ended before.

    Args:
        plan: The plan.
        store: Where timings go.
        device: The device.
        deadline_s: When the night ends, by `time.monotonic`; None without an end.

    Yields:
        What each came to, for people.

    Raises:
        DeviceTrouble: The device cannot be opened or stays unwell; what was timed is kept.
        Interrupted: SIGINT or SIGTERM came; what was timed is kept.
    """
    for item in plan.surveys:
        left_s, name = item.table.seconds, f"survey of {item.operation.name}"
        if deadline_s is not None:
            left_s = min(left_s, deadline_s - time.monotonic())
        if left_s <= 0:
            yield f"{name}: not reached"
            continue
        request = _survey_request(item, device, left_s)
        progress = run_survey(request, store)
        refitted = f"; {refit_if_possible(store, request)}" if progress.problems else ""
        yield f"{name}: {progress.timings} timings at {progress.problems} problems{refitted}"


def _survey_request(item: SurveyItem, device: DetectedDevice, seconds: float) -> SurveyRequest:
    table, operation = item.table, item.operation
    kernels = item.catalogue.of(
        operation.name, device.target, tuple(table.kernels), dtype=table.dtype or operation.dtypes[0]
    )
    regime = item.regime or kind_of(device.target).survey.regime
    ranges = Ranges.on(device.target, most=table.most, layouts=tuple(table.layouts), dtype=table.dtype)
    return SurveyRequest(
        operation, tuple(kernels), device, seconds, regime, table.seed, ranges, item.problems, table.drawn,
        table.configs or CONFIGS, table.per_problem or PER_PROBLEM,
    )  # fmt: skip


def with_wanted(plan: Plan, store: Store, device: DetectedDevice) -> Plan:
    """The plan with what programs asked for on a device, before its own problems.

    Args:
        plan: A plan; its ``wanted`` says how many.
        store: Where demand is counted.
        device: The device.
    """
    catalogue, merged = builtin(), dict[object, PlanItem]()
    seconds, trials = budget(plan.defaults.seconds, plan.defaults.trials)
    for wanted in most_wanted(store, device=device.info.name, limit=plan.wanted) if plan.wanted else ():
        with suppress(InputError):  # it may not be declared any more
            problem = wanted.problem.of_operation(catalogue.operation(wanted.problem.operation))
            item = PlanItem(
                problem, catalogue, seconds=seconds, trials=trials,
                error_limit=limit_for(problem.precision, None), wanted=wanted,
            )  # fmt: skip
            merged[item.key] = item
    for item in plan.items:  # its own budget counts, and its place is before those that nobody asked for
        before = merged.get(item.key)
        merged[item.key] = item if before is None else replace(item, wanted=before.wanted)
    return replace(plan, items=tuple(merged.values()))
