"""Runs a night's work in this process: holds the device, for one study at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice
from tuner.errors import InputError, NothingFound
from tuner.nightly.plan.items import PlanItem
from tuner.nightly.work import Done, Finished, Part, Place, Work
from tuner.store import Store
from tuner.study.opening import open_study
from tuner.study.progress import Progress
from tuner.study.study import Study
from tuner.workers.crew import Crew

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


class Here:
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
