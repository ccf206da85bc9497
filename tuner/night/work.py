"""What a night hands out and gets back: a slice or the finals of a problem, and where it ran. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.devices.detect import DetectedDevice
from tuner.night.plan_items import PlanItem
from tuner.results.measurement import Measurement
from tuner.results.objectives import Front
from tuner.results.record import Champion
from tuner.study.requests import StudyRequest


@dataclass(frozen=True)
class Place:
    """Where slices run: one device, or several of this machine that share a study.

    Attributes:
        name: Unique in the night.
        info: The device; its ``uuid`` names the board.
    """

    name: str
    info: DeviceInfo


@dataclass(frozen=True)
class Work:
    """A slice of a problem, or its finals.

    Attributes:
        name: The problem's, unique in the night.
        item: The plan's item.
        kernels: The competing kernels.
        turn: How often the problem was worked on before. A study that is still open goes on only with the next
            turn; otherwise it lacks what was measured elsewhere.
        parts: Seconds of each part of the slice; empty for finals.
        why: For finals, why the search ended.
        seconds: Seconds of the study from its opening on; None without a limit.
        finals_s: Seconds of these kept for the finals.
        library: The library's measurement on this board, from when the problem was first opened there.
        seed: Seed of the search.
        sampler: Name of the search strategy.
        storage_url: Database for Optuna's tables; None to keep none.
    """

    name: str
    item: PlanItem
    kernels: tuple[Kernel, ...]
    turn: int
    parts: tuple[float, ...]
    why: str
    seconds: float | None
    finals_s: float
    library: Measurement | None
    seed: int
    sampler: str
    storage_url: str | None = None

    def request(self, found: tuple[DetectedDevice, ...]) -> StudyRequest:
        """What the study is asked on some devices."""
        item = self.item
        return StudyRequest(
            problem=item.problem, kernels=self.kernels, found=found, regime=item.regime, seconds=self.seconds,
            trials=item.trials, seed=self.seed, sampler=self.sampler, storage_url=self.storage_url,
            objectives=item.objectives, error_limit=item.error_limit, finals_s=self.finals_s,
            library=self.library, drop=not item.kernels,
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


@dataclass(frozen=True)
class Finished:
    """The result of finals.

    Attributes:
        champion: The champion; None if nothing was measured.
        reasons: Failed outcome -> the first reason for it.
        front: The Pareto front, if there are several objectives.
    """

    champion: Champion | None
    reasons: Mapping[str, str]
    front: Front | None = None


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
        finished: The result of the finals.
        failed: A reason why the problem cannot be tuned; empty if it can.
        lost: Why the work did not come to its end, through no fault of the problem.
        cut: True if it was ended on purpose, so that nothing is to blame.
    """

    opening_s: float | None = None
    library: Measurement | None = None
    parts: list[Part] = field(default_factory=list)
    trials: Mapping[str, int] = field(default_factory=dict)
    tried: int = 0
    spent_s: float = 0.0
    finished: Finished | None = None
    failed: str = ""
    lost: str = ""
    cut: bool = False


class Runner(Protocol):
    """Runs work somewhere: in this process, or on the workers of a cluster."""

    def free(self) -> Sequence[Place]:
        """Places that wait for work now."""
        ...

    def start(self, place: Place, work: Work) -> None:
        """Begins a piece of work on a free place."""
        ...

    def wait(self, seconds: float) -> Iterable[tuple[Place, Work, Done]]:
        """Waits until a piece of work is done, or a place becomes free, or the time has passed.

        Raises:
            DeviceTrouble: No place is left, and none can come.
            Interrupted: SIGINT or SIGTERM came.
        """
        ...

    def gone(self) -> Sequence[Place]:
        """Places that have vanished since the last call; what was open there is closed."""
        ...
