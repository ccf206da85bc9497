"""What a night hands out and gets back: a problem's slices and finals, where they ran, what came of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.devices.detect import DetectedDevice
from tuner.errors import NothingFound
from tuner.lookup import answer
from tuner.lookup.stale import installed_compiler, staleness
from tuner.night.budget import Gains
from tuner.night.plan import PlanItem
from tuner.results.measurement import Measurement
from tuner.results.objectives import ErrorLimit, Front, told
from tuner.results.record import Champion, ProblemKey, Role
from tuner.store import Store
from tuner.store.published import reigning_champion
from tuner.study.requests import StudyRequest, competitors
from tuner.study.session import study_name


@dataclass(frozen=True)
class Place:
    """Where slices run: one device, or several of this machine that share a study.

    Attributes:
        name: Unique in the night.
        info: The device; its ``uuid`` names the board.
        versions: Versions of compiler, driver and library there, as far as known.
    """

    name: str
    info: DeviceInfo
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Assignment:
    """A slice of a problem, or its finals.

    Attributes:
        name: The problem's, unique in the night.
        item: The plan's item.
        kernels: The competing kernels.
        turn: How often the problem was worked on before. A study that is still open goes on only with the next
            turn; otherwise it lacks what was measured elsewhere.
        parts: Seconds of each part of the slice; empty for finals.
        seconds: Seconds of the study from its opening on; None without a limit.
        finals_s: Seconds of these kept for the finals.
        library: The library's measurement on this board, from when the problem was first opened there.
        seed: Seed of the search.
        sampler: Name of the search strategy.
    """

    name: str
    item: PlanItem
    kernels: tuple[Kernel, ...]
    turn: int
    parts: tuple[float, ...]
    seconds: float | None
    finals_s: float
    library: Measurement | None
    seed: int
    sampler: str

    def request(self, devices: tuple[DetectedDevice, ...]) -> StudyRequest:
        """What the study is asked on some devices."""
        item = self.item
        return StudyRequest(
            item.problem, self.kernels, devices, item.regime, self.seconds, item.trials, self.seed,
            self.sampler, item.objectives, item.error_limit, item.bits, not item.kernels, self.finals_s,
            self.library, item.invariant,
        )  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A part of a slice that was searched.

    Attributes:
        objective: A number that falls as the search progresses; None before anything was measured.
        trials: Trials so far.
        why: Reason why the search ended; empty if it can go on.
        seconds: Seconds that it took.
    """

    objective: float | None
    trials: int
    why: str
    seconds: float


@dataclass
class Done:
    """What came of a piece of work.

    Attributes:
        opening_s: Seconds that opening the study took; None if it was open.
        library: The library's measurement; None without a library.
        parts: The parts that were searched.
        trials: Counts as in `tuner.study.progress.Progress.totals`; empty if the study was not opened.
        tried: How many of these trials this piece of work made.
        spent_s: Seconds of all of it.
        champion: The champion of the finals, if they were held.
        front: Their Pareto front, if there are several objectives.
        failed: A reason why the problem cannot be tuned, or has no champion; empty if there is none.
        lost: Why the work did not come to its end, through no fault of the problem.
        cut: True if it was ended on purpose, so that nothing is to blame.
    """

    opening_s: float | None = None
    library: Measurement | None = None
    parts: list[Part] = field(default_factory=list)
    trials: Mapping[str, int] = field(default_factory=dict)
    tried: int = 0
    spent_s: float = 0.0
    champion: Champion | None = None
    front: Front | None = None
    failed: str = ""
    lost: str = ""
    cut: bool = False


class Runner(Protocol):
    """Runs work somewhere: in this process, or on the workers of a cluster."""

    def free(self) -> Sequence[Place]:
        """Places that wait for work now."""

    def start(self, place: Place, work: Assignment) -> None:
        """Begins a piece of work on a free place."""

    def wait(self, seconds: float) -> Iterable[tuple[Place, Assignment, Done]]:
        """Waits until a piece of work is done, or a place becomes free, or the time has passed.

        Raises:
            DeviceTrouble: No place is left, and none can come.
            Interrupted: SIGINT or SIGTERM came.
        """

    def gone(self) -> Sequence[Place]:
        """Places that have vanished since the last call; what was open there is closed."""

    def places_of(self, model: str) -> int:
        """Number of places with this model of device that work or wait."""

    def stop(self, why: str) -> Iterable[tuple[Place, Assignment, Done]]:
        """Ends all work and lets go of all places; returns what came of the work that was ended."""


@dataclass(eq=False)
class NightItem:
    """One problem of a night, from its place in the queue to its result.

    Attributes:
        item: The plan's item.
        state: ``waiting``; in the end ``tuned``, ``done before`` or ``failed``; without finals, for lack of
            time or because the night was interrupted, ``searched``, whose trials count, or ``not reached``.
        before: The champion before this night.
        after: The champion now.
        why: For ``tuned``, why the study ended; else the message.
        trials: ``total``, ``measured`` and ``failed`` trials, then each outcome's count, including earlier
            nights. Empty if it was not opened.
        front: Its Pareto front, if it has several objectives and was tuned.
        places: Name of a place -> what it did for it: its ``board``, number of ``slices``, and ``seconds``.
        stale: What had changed since the champion before; empty if nothing had.
        name: Unique in the night.
        kernels: The competing kernels.
        begun: True from the first slice on.
        finals_s: Seconds kept for its finals; known once it has begun.
        libraries: Board -> the library's measurement from when the problem was first opened there.
        turn: How often it was worked on.
        place: Name of the place where its study is open; empty if it is not.
        at_work: True while a place works on it.
        due: Why its finals are due; empty if they are not.
        lost: Number of places in a row that were lost while working on it.
        gains: What its slices gained.
    """

    item: PlanItem
    state: str = "waiting"
    before: Champion | None = None
    after: Champion | None = None
    why: str = ""
    trials: Mapping[str, int] = field(default_factory=dict)
    front: Front | None = None
    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    stale: str = ""
    name: str = ""
    kernels: tuple[Kernel, ...] = ()
    begun: bool = False
    finals_s: float = 0.0
    libraries: dict[str, Measurement] = field(default_factory=dict)
    turn: int = 0
    place: str = ""
    at_work: bool = False
    due: str = ""
    lost: int = 0
    gains: Gains = field(default_factory=Gains)

    @property
    def limit_s(self) -> float:
        """Seconds that the plan allows it; infinite without a limit."""
        return math.inf if self.item.seconds is None else self.item.seconds

    @property
    def rest_s(self) -> float:
        """Seconds that the plan still allows."""
        return max(self.limit_s - self.spent_s, 0.0)

    @property
    def spent_s(self) -> float:
        """Seconds so far."""
        return float(sum(there["seconds"] for there in self.places.values()))

    @property
    def slices(self) -> int:
        """Slices so far."""
        return sum(there["slices"] for there in self.places.values())

    @property
    def idle(self) -> bool:
        """True if no place works on it, and none holds its study open."""
        return not self.at_work and not self.place

    def worked(self, place: Place, slices: int, seconds: float) -> None:
        """Counts time that was spent on it."""
        there = self.places.setdefault(place.name, {"board": place.info.uuid, "slices": 0, "seconds": 0.0})
        there["slices"] += slices
        there["seconds"] += seconds

    def ended(self, state: str, why: str) -> NightItem:
        """Gives it a result in which the champion before still reigns; returns it."""
        self.state, self.why, self.after = state, why, self.before
        return self

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

    @property
    def bits_changed(self) -> bool:
        """True if results have other bits by the champion than by the one before this night."""
        measured = [champion.record.measurement for champion in (self.before, self.after) if champion]
        pair = [one.rows or one.bits for one in measured]
        return len(pair) == 2 and "" not in pair and pair[0] != pair[1]

    def to_json(self) -> dict[str, Any]:
        """Returns the result as a JSON object."""
        item, wanted, after = self.item, self.item.wanted, self.after
        return {
            "problem": str(item.problem), **item.problem.to_json(), "regime": item.regime,
            "wanted": wanted and {"calls": wanted.calls, "saves_s": wanted.saves_s}, "state": self.state,
            "why": self.why, "slices": self.slices, "spent_s": self.spent_s, "trials": dict(self.trials),
            "before": self.before and self.before.as_keys(), "after": after and after.as_keys(),
            "improvement": self.improvement,
            "verdict": after.verdict if after and self.state == "tuned" else None, "stale": self.stale or None,
            "error_limit": told(after.record.measurement) if after else None, "bits_changed": self.bits_changed,
            "places": [{"place": name, **there} for name, there in self.places.items()],
            **(self.front.as_keys() if self.front else {}),
        }  # fmt: skip


# --- what is stored ------------------------------------

#: Largest number of finals of a problem while its champion stays provisional: one in each night.
FINALS_IN_DOUBT = 6


def kernels_of(item: PlanItem, target: str) -> tuple[Kernel, ...]:
    """Returns the kernels that compete for an item.

    Raises:
        InputError: There is no kernel for the target.
    """
    return competitors(item.catalogue, item.problem, target, item.kernels)


def study_of(item: PlanItem, device: DeviceInfo, kernels: tuple[Kernel, ...]) -> str:
    """Names the study of an item on a device."""
    key = ProblemKey.of(item.problem)
    return study_name(key, device, item.regime, kernels, item.objectives, item.error_limit, item.bits)


class Standing:
    """What is stored of a plan's problems on one device."""

    def __init__(self, store: Store, device: DeviceInfo, versions: Mapping[str, str] | None = None) -> None:
        """Reads which problems have a champion.

        Args:
            store: Where records are.
            device: The device.
            versions: Versions on the device's machine; by default ``compiler`` as installed here.
        """
        self._store, self._device = store, device
        self._versions = versions or {"compiler": installed_compiler(device.kind)}

    def champion(self, item: PlanItem) -> Champion | None:
        """Returns the reigning champion of a problem; of configs of one class of rows the one that answers."""
        if item.invariant:
            with suppress(NothingFound):
                asked = ProblemKey.of(item.problem), self._device, item.regime, None, item.catalogue
                return answer(self._store, *asked, invariant=item.invariant).champion
            return None
        return reigning_champion(self._store, ProblemKey.of(item.problem), self._device, item.regime)

    def is_done(self, item: PlanItem, kernels: tuple[Kernel, ...], champion: Champion | None) -> bool:
        """True if this study reached its finals with these kernels, as they are now, driver and compiler."""
        if item.invariant:
            return champion is not None
        if champion is None or not _accurate(champion, item) or self._store.is_behind(champion):
            return False
        name = study_of(item, self._device, kernels)
        finals = self._store.records(problem=ProblemKey.of(item.problem), device=self._device, role=Role.FINAL)
        now = item.catalogue, self._device, self._versions
        runs = {one.session for one in finals if one.study == name and not staleness(one, *now)[0]}
        return len(runs) >= (FINALS_IN_DOUBT if champion.doubts else 1)

    def why_stale(self, item: PlanItem, champion: Champion | None) -> str:
        """What has changed of kernel, compiler, driver and library since the champion; empty if nothing has."""
        if champion is None:
            return ""
        stale, why = staleness(champion.record, item.catalogue, self._device, self._versions)
        behind = "the library was seen to be faster" if self._store.is_behind(champion) else ""
        return why if stale else behind


def _accurate(champion: Champion, item: PlanItem) -> bool:
    """True if a champion is within the error limit, by its and the library's errors in the finals."""
    if item.error_limit is None:
        return True
    beside = champion.baseline.measurement.error if champion.baseline is not None else None
    limit = ErrorLimit.beside(item.error_limit, beside, item.problem)
    return not limit.complaint(champion.record.measurement.error, finals=True)
