"""The workers of a cluster as the coordinator sees them. Plain data."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import Any

from tuner.fleet.orders import Order, Report
from tuner.night.work import Place, Work


class State(enum.StrEnum):
    """What a worker does."""

    CHECKED = "being checked"
    FREE = "waits"
    WORKS = "works"
    TIMES = "times sentinels"
    REFUSED = "refused"
    SILENT = "silent"
    GONE = "gone"


@dataclass
class Member:
    """A worker.

    Attributes:
        address: Dask's address.
        name: Its name.
        state: What it does.
        why: Why it was refused, or is silent or gone.
        place: Where slices run; None before it was greeted.
        report: What it said of itself.
        work: Its present work.
        order: The order for it.
        future: Dask's future of its present task.
        progress: What it last told of its progress.
        heard_s: `time.monotonic` when it was last heard to get further, or began.
        since_s: `time.monotonic` when its state began.
        busy_s: Seconds that it worked, as it said itself.
        slices: Pieces of work that it brought to an end.
        trials: Trials that it tried in this night, so far as it told.
        trials_before: The same when its present work began.
    """

    address: str
    name: str
    state: State = State.CHECKED
    why: str = ""
    place: Place | None = None
    report: Report | None = None
    work: Work | None = None
    order: Order | None = None
    future: Any = None
    progress: dict[str, Any] = field(default_factory=dict)
    heard_s: float = field(default_factory=time.monotonic)
    since_s: float = field(default_factory=time.monotonic)
    busy_s: float = 0.0
    slices: int = 0
    trials: int = 0
    trials_before: int = 0

    def becomes(self, state: State, why: str = "") -> None:
        """Changes the state."""
        self.state, self.why = state, why
        self.since_s = self.heard_s = time.monotonic()

    def to_json(self, minutes: float) -> dict[str, Any]:
        """Returns the worker as a JSON object.

        Args:
            minutes: Since the night began.
        """
        info = self.place.info if self.place else None
        return {
            "name": self.name,
            "host": self.report.host if self.report else "",
            "device": info.name if info else "",
            "board": info.uuid if info else "",
            "state": self.state.value,
            "why": self.why,
            "doing": self.doing,
            "slices": self.slices,
            "busy_s": self.busy_s,
            "trials": self.trials,
            "trials_per_minute": self.trials / minutes,
            "best_s": self.progress.get("best_s"),
            "best": self.progress.get("best", ""),
            "baseline_s": self.progress.get("baseline_s"),
        }

    @property
    def doing(self) -> str:
        """What it does, for people."""
        if self.work is None or self.state is not State.WORKS:
            return f"{self.state.value}: {self.why}" if self.why else self.state.value
        what = "" if self.work.parts else ", finals"
        stage = self.progress.get("stage", "opening")
        return f"{self.work.item.problem}: {stage}{what}"
