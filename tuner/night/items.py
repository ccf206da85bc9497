"""The result of a problem in a night. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tuner.declare.kernel import Kernel
from tuner.night.plan.items import PlanItem
from tuner.night.slices import Share
from tuner.night.work import Place
from tuner.results.measurement import Measurement
from tuner.results.objectives import Front, told
from tuner.results.record import Champion


@dataclass(frozen=True)
class Spell:
    """The time that one place spent on a problem.

    Attributes:
        place: The place's name; on a cluster, the worker's.
        board: The device's UUID.
        slices: Number of slices.
        seconds: Seconds of them, with opening and finals.
    """

    place: str
    board: str
    slices: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class NightItem:
    """The result of one problem.

    Attributes:
        item: The plan's item.
        state: ``tuned``, ``done before``, ``failed`` or ``not reached``: without finals, for lack of time or
            because the night was interrupted. Its trials still count.
        before: The champion before this night.
        after: The champion now.
        why: For ``tuned``, why the study ended; else the message.
        slices: Number of slices that it had.
        spent_s: Seconds that it took, including finals.
        trials: ``total``, ``measured`` and ``failed`` trials, then each outcome's count, including earlier
            nights. Empty if it was not opened.
        front: Its Pareto front, if it has several objectives and was tuned.
        spells: Where it was worked on, and for how long.
        stale: What had changed since the champion before; empty if nothing had.
    """

    item: PlanItem
    state: str
    before: Champion | None = None
    after: Champion | None = None
    why: str = ""
    slices: int = 0
    spent_s: float = 0.0
    trials: Mapping[str, int] = field(default_factory=dict)
    front: Front | None = None
    spells: tuple[Spell, ...] = ()
    stale: str = ""

    @property
    def improvement(self) -> float | None:
        """Time of the earlier champion over that of the current one; None if one is missing.

        The two were measured in different runs. Whether a difference is real is shown by the verdict of the
        finals.
        """
        if self.before is None or self.after is None:
            return None
        before_s, after_s = self.before.record.measurement.time_s, self.after.record.measurement.time_s
        return before_s / after_s if before_s and after_s else None

    def to_json(self) -> dict[str, Any]:
        """Returns the item as a JSON object."""
        return {
            **self.item.problem.to_json(),
            "regime": self.item.regime,
            "wanted": self.item.wanted
            and {"calls": self.item.wanted.calls, "saves_s": self.item.wanted.saves_s},
            "state": self.state,
            "why": self.why,
            "slices": self.slices,
            "spent_s": self.spent_s,
            "trials": dict(self.trials),
            "before": self.before and _champion_json(self.before),
            "after": self.after and _champion_json(self.after),
            "improvement": self.improvement,
            "verdict": self.after.verdict if self.after and self.state == "tuned" else None,
            "stale": self.stale or None,
            "error_limit": told(self.after.record.measurement) if self.after else None,
            "places": [asdict(each) for each in self.spells],
            **(self.front.as_keys() if self.front else {}),
        }


def _champion_json(champion: Champion) -> dict[str, Any]:
    record = champion.record
    return {
        "kernel": record.kernel, "config": dict(record.config), "time_s": record.measurement.time_s,
        "tflops": record.tflops, "gbps": record.gbps, "speedup": champion.speedup or None,
        "record_id": record.id, "provisional_reasons": list(champion.doubts),
    }  # fmt: skip


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
        libraries: Board -> the library's measurement from when the problem was first opened there.
        turn: How often it was worked on.
        place: Name of the place where its study is open; empty if it is not.
        at_work: True while a place works on it.
        due: Why its finals are due; empty if they are not.
        lost: Number of places in a row that were lost while working on it.
        spells: Where it was worked on.
        stale: What has changed since its champion; empty if nothing has.
    """

    name: str
    item: PlanItem
    kernels: tuple[Kernel, ...]
    before: Champion | None
    share: Share
    trials: Mapping[str, int] = field(default_factory=dict)
    libraries: dict[str, Measurement] = field(default_factory=dict)
    turn: int = 0
    place: str = ""
    at_work: bool = False
    due: str = ""
    lost: int = 0
    spells: dict[str, Spell] = field(default_factory=dict)
    stale: str = ""

    @property
    def idle(self) -> bool:
        """True if no place works on it, and none holds its study open."""
        return not self.at_work and not self.place

    def worked(self, place: Place, slices: int, seconds: float) -> None:
        """Counts time that was spent on it."""
        self.share.slices += slices
        self.share.spent_s += seconds
        before = self.spells.get(place.name, Spell(place.name, place.info.uuid))
        self.spells[place.name] = Spell(
            place.name, place.info.uuid, before.slices + slices, before.seconds + seconds
        )

    def ended(
        self, state: str, why: str, after: Champion | None = None, front: Front | None = None
    ) -> NightItem:
        """Returns the report on it at its end."""
        share = self.share
        return NightItem(
            self.item, state, self.before, after or self.before, why, share.slices, share.spent_s, self.trials,
            front, tuple(self.spells.values()), self.stale,
        )  # fmt: skip
