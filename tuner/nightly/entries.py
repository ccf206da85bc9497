"""An unfinished problem of a night."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.declare.kernel import Kernel
from tuner.nightly.items import NightItem, Spell
from tuner.nightly.plan.items import PlanItem
from tuner.nightly.slices import Share
from tuner.nightly.work import Place
from tuner.results.measurement import Measurement
from tuner.results.objectives import Front
from tuner.results.record import Champion


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
