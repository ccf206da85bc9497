"""An unfinished problem of a night, and the study that holds the device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from tuner.declare.kernel import Kernel
from tuner.nightly.items import NightItem
from tuner.nightly.plan import PlanItem
from tuner.nightly.slices import Share
from tuner.results.measurement import Measurement
from tuner.results.objectives import Front
from tuner.results.record import Champion
from tuner.store import Store
from tuner.study.opening import open_study
from tuner.study.progress import Progress, Request
from tuner.study.study import Study

#: Makes the view of one study's progress.
View = Callable[[PlanItem], AbstractContextManager[Callable[[Progress], None]]]


@dataclass(eq=False)
class Entry:
    """An unfinished problem.

    Attributes:
        name: Unique in the night.
        item: The plan's item.
        kernels: The competing kernels.
        before: The champion before this night.
        share: Its share of the night.
        trials: Counts so far.
        library: The library's measurement from when the problem was first opened.
    """

    name: str
    item: PlanItem
    kernels: tuple[Kernel, ...]
    before: Champion | None
    share: Share
    trials: Mapping[str, int] = field(default_factory=dict)
    library: Measurement | None = None

    def ended(
        self, state: str, why: str, after: Champion | None = None, front: Front | None = None
    ) -> NightItem:
        """Returns the report on it at its end."""
        share = self.share
        return NightItem(
            self.item, state, self.before, after or self.before, why, share.slices, share.spent_s, self.trials,
            front,
        )  # fmt: skip


class Stage:
    """Holds the device for one study at a time.

    Attributes:
        entry: The problem whose study it is; None if there is none.
        study: That study.
    """

    study: Study

    def __init__(self, store: Store, view: View) -> None:
        """Begins with no study.

        Args:
            store: Where records go.
            view: Shows the progress of each study.
        """
        self.entry: Entry | None = None
        self._store, self._view = store, view
        self._stack = ExitStack()

    def open(self, entry: Entry, request: Request) -> float:
        """Opens the study of a problem, after closing another one.

        Returns:
            Seconds that it took.

        Raises:
            TunerError: `open_study` raised it; nothing is open then.
        """
        self.close()
        begun_s = time.monotonic()
        self.entry, entry.share.open = entry, True
        try:
            report = self._stack.enter_context(self._view(entry.item))
            self.study = self._stack.enter_context(open_study(request, self._store, report))
        except BaseException:
            self.close()
            raise
        finally:
            entry.share.spent_s += time.monotonic() - begun_s
        entry.trials, entry.library = self.study.progress.totals, self.study.library
        return time.monotonic() - begun_s

    def close(self) -> None:
        """Ends the study's processes; its trials are stored."""
        if self.entry is not None:
            self.entry.share.open = False
        self.entry = None
        self._stack.close()

    def search(self, seconds: float) -> str:
        """Runs a slice; see `Study.search`."""
        assert self.entry is not None
        begun_s = time.monotonic()
        self.entry.share.slices += 1
        try:
            return self.study.search(None if math.isinf(seconds) else seconds)
        finally:
            self.entry.share.spent_s += time.monotonic() - begun_s
            self.entry.trials = self.study.progress.totals

    def finish(self, why: str) -> NightItem:
        """Plays the finals, then finishes the problem."""
        entry = self.entry
        assert entry is not None
        begun_s = time.monotonic()
        try:
            result = self.study.finals()
        finally:
            entry.share.spent_s += time.monotonic() - begun_s
        self.close()
        if result.champion is None:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in result.progress.reasons.items())
            return entry.ended("failed", f"nothing measured: {reasons or why}")
        return entry.ended("tuned", why, result.champion, result.front)
