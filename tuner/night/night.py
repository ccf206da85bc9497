"""One run through a plan on this machine: slices where the gain is, finals for each, until a deadline."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice
from tuner.errors import InputError, NothingFound
from tuner.night.plan import Plan
from tuner.night.plan_items import PlanItem, asks_for
from tuner.night.scheduler import Lane, NightItem, NightRules, play
from tuner.night.standing import Standing
from tuner.night.work import Done, Finished, Part, Place, Work
from tuner.store import Store
from tuner.study.progress import Progress
from tuner.study.study import Study, open_study
from tuner.workers.device_worker import Crew

#: Makes the view of one study's progress.
View = Callable[[PlanItem], AbstractContextManager[Callable[[Progress], None]]]


class Stage:
    """Holds the devices, which stay open from one study to the next.

    Attributes:
        done: What came of the latest work so far, also if an exception ended it.
    """

    def __init__(self, store: Store, found: tuple[DetectedDevice, ...], view: View) -> None:
        """Begins with no study.

        Args:
            store: Where records go.
            found: The device, or several of one kind that share the trials.
            view: Shows the progress of each study.
        """
        self.done = Done()
        self._store, self._found, self._view = store, found, view
        self._crew = Crew(found)
        self._stack = ExitStack()
        self._study: Study | None = None
        self._open: tuple[str, int] = ("", 0)

    def run(self, work: Work) -> Done:
        """Runs a slice, or the finals, after which the study is closed.

        Raises:
            DeviceTrouble: The device stays unwell.
            Interrupted: SIGINT or SIGTERM came.
        """
        done, begun_s, known = Done(), time.monotonic(), 0
        self.done = done
        try:
            study = self._opened(work, done)
            known = study.progress.trials
            for seconds in work.parts:
                self._search(study, seconds, done)
                if done.parts[-1].why:
                    break
            if not work.parts:
                result = study.finals()
                done.finished = Finished(result.champion, result.progress.reasons, result.front)
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

    def _opened(self, work: Work, done: Done) -> Study:
        """The study of the problem: the open one, if nothing was measured elsewhere since, or a fresh one."""
        if self._study is None or self._open != (work.name, work.turn):
            self._leave()
            begun_s = time.monotonic()
            try:
                report = self._stack.enter_context(self._view(work.item))
                study = open_study(work.request(self._found), self._store, report, self._crew)
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
        done.parts.append(Part(study.objective_value, total, why, time.monotonic() - begun_s))

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


class LocalRunner:
    """A `Runner` whose only place is this process.

    Attributes:
        place: This process.
    """

    def __init__(self, stage: Stage, info: DeviceInfo) -> None:
        """Begins with nothing to do.

        Args:
            stage: Runs the work.
            info: The device, or the first of those that share a study.
        """
        self._stage, self.place = stage, Place("here", info)
        self._work: Work | None = None

    def free(self) -> Sequence[Place]:
        """This process, unless it has work."""
        return [] if self._work is not None else [self.place]

    def start(self, place: Place, work: Work) -> None:
        """Takes the work, which `wait` then runs."""
        self._work = work

    def wait(self, seconds: float) -> Iterable[tuple[Place, Work, Done]]:
        """Runs the work; see the protocol."""
        work, self._work = self._work, None
        return [] if work is None else [(self.place, work, self._stage.run(work))]

    def gone(self) -> Sequence[Place]:
        """This process stays."""
        return []


@dataclass
class Night:
    """One run through a plan.

    Attributes:
        plan: The plan to tune.
        store: Where records go.
        found: The device, or several of one kind.
        seed: Seed of the searches.
        deadline_s: `time.monotonic` at which to stop; None without a deadline.
        storage_url: Database for Optuna's tables.
        again: True to continue problems that are done, too.
        warned: Called before any tuning if the night is too short for the plan.
        versions: Name -> version of compiler, driver and library, if an open device told them.
        said: Called after each slice with the problem, its number of slices, and the share that this one
            gained; None if nothing was measured before.
    """

    plan: Plan
    store: Store
    found: tuple[DetectedDevice, ...]
    seed: int
    deadline_s: float | None
    storage_url: str | None = None
    again: bool = False
    versions: Mapping[str, str] | None = None
    said: Callable[[PlanItem, int, float | None], None] = lambda item, slices, gain: None
    warned: Callable[[str], None] = lambda text: None
    _lane: Lane | None = field(default=None, init=False)
    _looked_at: int = field(default=0, init=False)

    def run(self, view: View = lambda item: nullcontext(lambda progress: None)) -> Iterator[NightItem]:
        """Tunes the problems in slices, and yields the result of each as soon as it is known.

        Problems with a stale champion come first, then the others in the plan's order. A problem that fails for
        a reason of its own does not end the night. If a champion is provisional, its finals are repeated after
        all others, if time allows, and again in later nights.

        Args:
            view: Shows the progress of each study.

        Raises:
            DeviceTrouble: The device stays unwell.
            Interrupted: SIGINT or SIGTERM came.
        """
        standing, lane = self._lane_of_model()
        for number, ended in enumerate(self._enlisted(lane, standing)):
            self._looked_at = number + 1
            if ended is not None:
                yield ended
        lane.begin(standing)
        stage = Stage(self.store, self.found, view)
        runner = LocalRunner(stage, self.found[0].info)
        try:
            yield from play(lambda place: lane, lambda: [lane], runner)
        except BaseException:
            with contextlib.suppress(KeyError):  # the place was free
                lane.count(runner.place, stage.done)
            raise
        finally:
            stage.close()

    def preview(self) -> Iterator[NightItem]:
        """What the night would do with each problem, without a device: it is done, to be tuned, or stale."""
        standing, lane = self._lane_of_model()
        for item, ended in zip(self.plan.items, self._enlisted(lane, standing), strict=True):
            before = standing.champion(item)
            why = standing.why_stale(item, before)
            waiting = NightItem(item, "stale" if why else "to tune", before=before, after=before, why=why)
            yield waiting if ended is None else ended

    def _lane_of_model(self) -> tuple[Standing, Lane]:
        rules = NightRules(
            self._left_s, self.seed, self.plan.sampler, self.storage_url, self.again, self.said, self.warned
        )
        self._lane = Lane(rules)
        return Standing(self.store, self.found[0].info, self.versions), self._lane

    def _enlisted(self, lane: Lane, standing: Standing) -> Iterator[NightItem | None]:
        """The result of each problem for which nothing is to be done; None for those that wait."""
        info = self.found[0].info
        for number, item in enumerate(self.plan.items):
            if asks_for(item.devices, info):
                yield lane.enlist(f"{number}: {item.problem}", item, info, standing)
            else:
                why = f"it asks for {', '.join(item.devices)}, and this is {info.name}"
                yield NightItem(item, "not reached", why=why)

    def unfinished(self, why: str) -> list[NightItem]:
        """Returns the remaining results if the night was ended from outside."""
        begun = self._lane.unfinished(why) if self._lane is not None else []
        return [
            *begun,
            *(NightItem(item, "not reached", why=why) for item in self.plan.items[self._looked_at :]),
        ]

    def _left_s(self) -> float:
        return math.inf if self.deadline_s is None else self.deadline_s - time.monotonic()
