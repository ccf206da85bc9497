"""What a study is asked, how it stands, and what it found. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.devices.detect import DetectedDevice
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import TIME, Front
from tuner.results.record import Champion, Pair


@dataclass(frozen=True)
class Request:
    """What a study is asked to do.

    Attributes:
        problem: What to compute.
        kernels: Which kernels compete.
        found: Where: one device, or several of one kind that share the trials.
        regime: How time is taken.
        seconds: Wall time in seconds; None for no limit.
        trials: Trials of the study in all, those of earlier runs included; None for no limit.
        seed: Of the search.
        sampler: Name of the search strategy.
        storage_url: Database where Optuna's own tables are kept; None to keep none.
        objectives: What is minimised (see `tuner.results.objectives`); with several, the fastest config is
            champion all the same, and the result has a front.
        error_limit: No champion whose error is more than so many times the library's; None for any.
        drop: True to drop kernels whose first configs are hopeless (`tuner.study.elimination`).
        finals_s: Seconds of `seconds` that are kept for the finals; a share unless given.
        library: The library as measured a while ago, for a study that goes on; measured unless given.
    """

    problem: Problem
    kernels: tuple[Kernel, ...]
    found: tuple[DetectedDevice, ...]
    regime: str = "cold"
    seconds: float | None = 60.0
    trials: int | None = None
    seed: int = 0
    sampler: str = "tile"
    storage_url: str | None = None
    objectives: tuple[str, ...] = TIME
    error_limit: float | None = None
    drop: bool = True
    finals_s: float | None = None
    library: Measurement | None = None


@dataclass
class Progress:
    """How a study stands.

    Attributes:
        stage: ``opening``, ``searching``, ``finals`` or ``done``.
        trials: Trials finished, those of earlier runs included.
        outcomes: Outcome -> trials.
        reasons: Failed outcome -> the first reason seen.
        dropped: Kernel that was dropped -> why.
        best_s: Best median so far in seconds.
        best: Kernel and config of that.
        front: Configs on the Pareto front; 0 with one objective.
        baseline_s: The library's median in seconds; None before it is measured or without one.
        best_blas: Core type and median in seconds of the library told to use the best core type that this
            CPU supports, where it chose another by itself.
        busy: What is wrong with the machine, seen while devices were opened or in the search; empty where it is
            quiet.
        spent_s: Where time went. Wall time: ``opening`` (with ``baseline``), ``measuring``, ``compiling``
            (no config was ready to measure), ``searching`` (none was ready to compile), ``bookkeeping``
            and ``finals``. Device time within ``measuring``: ``load``, ``verify``, ``time``, ``power``.
            Beside it: ``compile`` of all workers, ``thinking`` of the search, and ``storing``.
        left_s: Seconds left; None without a limit.
        elapsed_s: Seconds since the start.
    """

    stage: str = "opening"
    trials: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    best_s: float | None = None
    best: str = ""
    front: int = 0
    baseline_s: float | None = None
    best_blas: tuple[str, float] | None = None
    busy: tuple[str, ...] = ()
    spent_s: dict[str, float] = field(default_factory=dict)
    left_s: float | None = None
    elapsed_s: float = 0.0

    def count(self, measurement: Measurement) -> None:
        """Takes one more trial in."""
        self.trials += 1
        name = measurement.outcome.value
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        if measurement.outcome.failed:
            self.reasons.setdefault(name, measurement.reason)

    def lead(self, time_s: float, best: str) -> None:
        """A config is the best so far."""
        self.best_s, self.best = time_s, best

    def set_front(self, configs: int) -> None:
        """The Pareto front has that number of configs."""
        self.front = configs

    def set_baseline(self, time_s: float | None) -> None:
        """The library was measured."""
        self.baseline_s = time_s

    def set_best_blas(self, core_type: str, time_s: float) -> None:
        """The library was measured with another core type, which suits this CPU best."""
        self.best_blas = (core_type, time_s)

    def observe_load(self, busy: tuple[str, ...]) -> None:
        """What is wrong with the machine now; what was seen before stays if nothing is."""
        self.busy = busy or self.busy

    def drop(self, kernel: str, why: str) -> None:
        """A kernel takes no further part in the search."""
        self.dropped[kernel] = why

    def spend(self, stage: str, seconds: float) -> None:
        """Adds time to a stage."""
        self.spent_s[stage] = self.spent_s.get(stage, 0.0) + seconds

    def set_spent(self, stage: str, seconds: float) -> None:
        """The whole time of a stage that keeps count itself."""
        self.spent_s[stage] = seconds

    def advance(self, stage: str, elapsed_s: float, budget_s: float | None) -> None:
        """Time has passed.

        Args:
            stage: The stage that begins; empty if none does.
            elapsed_s: Seconds since the start.
            budget_s: Seconds of the whole run; None for no limit.
        """
        self.stage, self.elapsed_s = stage or self.stage, elapsed_s
        self.left_s = None if budget_s is None else max(budget_s - elapsed_s, 0.0)

    @property
    def totals(self) -> dict[str, int]:
        """``total``, ``measured`` and ``failed`` trials, then each outcome's count."""
        failed = sum(count for name, count in self.outcomes.items() if Outcome(name).failed)
        measured = self.outcomes.get(Outcome.MEASURED.value, 0)
        return {"total": self.trials, "measured": measured, "failed": failed, **self.outcomes}


@dataclass(frozen=True)
class Result:
    """What a study found.

    Attributes:
        champion: Crowned in the finals; None where nothing could be measured.
        progress: The final standing.
        stopped: Why the search ended; empty where it was told to.
        pairs: The champion's pairs in the finals, with every other finalist and the library.
        front: Where there are several objectives.
        unplayed: Why some did not play the finals who came next after those that turned out wrong; else empty.
    """

    champion: Champion | None
    progress: Progress
    stopped: str
    pairs: tuple[Pair, ...] = ()
    front: Front | None = None
    unplayed: str = ""
