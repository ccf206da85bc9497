"""A night: the problems of a plan, one study after the other, until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tuner.devices.detect import Found
from tuner.errors import InputError, NothingFound
from tuner.kernel import Kernel
from tuner.plan import Plan, PlanItem
from tuner.preparation import key_of, study_name
from tuner.progress import Progress, Request
from tuner.record import Champion
from tuner.store import Store
from tuner.study import Study

#: With less than this left, seconds, no further problem is begun: opening a device takes about as long.
LEAST_SECONDS = 5.0

#: Makes the view of one study's progress.
View = Callable[[PlanItem], AbstractContextManager[Callable[[Progress], None]]]


@dataclass(frozen=True)
class NightItem:
    """What became of one problem.

    Attributes:
        item: From the plan.
        state: ``tuned``, ``done before``, ``failed`` or ``not reached``.
        before: The champion before this night.
        after: The champion now.
        why: For ``failed``, the message; for ``tuned``, why the study ended.
    """

    item: PlanItem
    state: str
    before: Champion | None = None
    after: Champion | None = None
    why: str = ""

    @property
    def improvement(self) -> float | None:
        """Time of the champion before over that of the one now; None where one is missing.

        The two were not measured in one run: the verdict, which was, says whether a difference is real.
        """
        if self.before is None or self.after is None:
            return None
        before_s, after_s = self.before.record.measurement.time_s, self.after.record.measurement.time_s
        return before_s / after_s if before_s and after_s else None

    def to_json(self) -> dict[str, Any]:
        """The item as a JSON object."""
        return {
            **self.item.problem.to_json(),
            "regime": self.item.regime,
            "state": self.state,
            "why": self.why,
            "before": self.before and _champion_json(self.before),
            "after": self.after and _champion_json(self.after),
            "improvement": self.improvement,
            "verdict": self.after.verdict if self.after and self.state == "tuned" else None,
        }


def _champion_json(champion: Champion) -> dict[str, Any]:
    record = champion.record
    return {
        "kernel": record.kernel, "config": dict(record.config), "time_s": record.measurement.time_s,
        "tflops": record.tflops, "gbps": record.gbps, "speedup": champion.speedup, "record_id": record.id,
    }  # fmt: skip


def kernels_of(item: PlanItem, target: str) -> tuple[Kernel, ...]:
    """The kernels that compete for an item.

    Raises:
        InputError: There is none for the target.
    """
    found = item.catalogue.of(item.problem.operation.name, target, item.kernels)
    if not found:
        raise InputError(f"{item.problem.operation.name} has no kernel for {target}")
    return found


@dataclass
class Night:
    """One run through a plan.

    Attributes:
        plan: What to tune.
        store: Where records go.
        found: The device, or several of one kind.
        seed: Of the searches.
        deadline_s: `time.monotonic` at which to stop; None without a deadline.
        storage_url: Database of Optuna's tables.
        again: True to go on with problems that are done, too.
    """

    plan: Plan
    store: Store
    found: tuple[Found, ...]
    seed: int
    deadline_s: float | None
    storage_url: str | None = None
    again: bool = False

    def run(self, view: View = lambda item: nullcontext(lambda progress: None)) -> Iterator[NightItem]:
        """Tunes one problem after the other and says of each what became of it.

        A problem that fails for a reason of its own does not end the night.

        Args:
            view: Shows the progress of each study.

        Raises:
            DeviceTrouble: The device stays unwell.
            Interrupted: SIGINT or SIGTERM came.
        """
        for item in self.plan.items:
            yield self._one(item, view)

    def _one(self, item: PlanItem, view: View) -> NightItem:
        before = self._champion(item)
        left = self._left_s()
        try:
            kernels = kernels_of(item, self.found[0].target)
            if not self.again and self._is_done(item, kernels, before):
                return NightItem(item, "done before", before, before)
            if left is not None and left < LEAST_SECONDS:
                return NightItem(item, "not reached", before, before, "the deadline came first")
            with view(item) as report:
                result = Study(self._request(item, kernels, left), self.store, report).run()
        except (InputError, NothingFound) as error:
            return NightItem(item, "failed", before, before, str(error))
        if result.champion is None:
            reasons = "; ".join(f"{name}: {why}" for name, why in result.progress.reasons.items())
            return NightItem(item, "failed", before, before, f"nothing measured: {reasons or result.stopped}")
        return NightItem(item, "tuned", before, result.champion, result.stopped)

    def _request(self, item: PlanItem, kernels: tuple[Kernel, ...], left_s: float | None) -> Request:
        limits = [each for each in (item.seconds, left_s) if each is not None]
        return Request(
            problem=item.problem, kernels=kernels, found=self.found, regime=item.regime,
            seconds=min(limits) if limits else None, trials=item.trials, seed=self.seed,
            sampler=self.plan.sampler, storage_url=self.storage_url,
        )  # fmt: skip

    def _left_s(self) -> float | None:
        return None if self.deadline_s is None else self.deadline_s - time.monotonic()

    def _champion(self, item: PlanItem) -> Champion | None:
        return self.store.champion(key_of(item.problem), self.found[0].info, item.regime)

    def _is_done(self, item: PlanItem, kernels: tuple[Kernel, ...], champion: Champion | None) -> bool:
        """True where this study was held to its finals with these kernels, as they are, and this driver."""
        if champion is None:
            return False
        name = study_name(key_of(item.problem), self.found[0].info, item.regime, kernels)
        same_driver = champion.record.device.driver == self.found[0].info.driver
        return champion.record.study == name and same_driver
