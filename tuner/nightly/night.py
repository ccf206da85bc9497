"""One run through a plan on this machine: slices where the gain is, finals for each, until a deadline."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from tuner.devices.detect import DetectedDevice
from tuner.nightly.items import NightItem
from tuner.nightly.lane import Lane, Rules, play
from tuner.nightly.plan import Plan, PlanItem
from tuner.nightly.plan.items import asks_for
from tuner.nightly.stage import Here, Stage, View
from tuner.nightly.standing import Standing
from tuner.store import Store


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
    _enlisted: int = field(default=0, init=False)

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
        rules = Rules(
            self._left_s, self.seed, self.plan.sampler, self.storage_url, self.again, self.said, self.warned
        )
        info = self.found[0].info
        standing, lane = Standing(self.store, info, self.versions), Lane(rules)
        self._lane = lane
        for number, item in enumerate(self.plan.items):
            if asks_for(item.devices, info):
                ended = lane.enlist(f"{number}: {item.problem}", item, info, standing)
            else:
                why = f"it asks for {', '.join(item.devices)}, and this is {info.name}"
                ended = NightItem(item, "not reached", why=why)
            self._enlisted = number + 1
            if ended is not None:
                yield ended
        lane.begin(standing)
        stage = Stage(self.store, self.found, view)
        runner = Here(stage, info)
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
        rules = Rules(self._left_s, self.seed, self.plan.sampler, None, self.again, self.said, self.warned)
        info = self.found[0].info
        standing, lane = Standing(self.store, info, self.versions), Lane(rules)
        for number, item in enumerate(self.plan.items):
            ended: NightItem | None = NightItem(
                item, "not reached", why=f"it asks for {', '.join(item.devices)}"
            )
            if asks_for(item.devices, info):
                ended = lane.enlist(f"{number}: {item.problem}", item, info, standing)
            if ended is None:
                before = standing.champion(item)
                why = standing.why_stale(item, before)
                ended = NightItem(item, "stale" if why else "to tune", before, before, why)
            yield ended

    def unfinished(self, why: str) -> list[NightItem]:
        """Returns the remaining results if the night was ended from outside."""
        begun = self._lane.unfinished(why) if self._lane is not None else []
        unseen = self.plan.items[self._enlisted :]
        return [*begun, *(NightItem(item, "not reached", why=why) for item in unseen)]

    def _left_s(self) -> float:
        return math.inf if self.deadline_s is None else self.deadline_s - time.monotonic()
