"""A study's request, progress and result. Plain data."""

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
        problem: The problem.
        kernels: The kernels that compete.
        found: One device, or several of one kind that share the trials.
        regime: How times are taken.
        seconds: Wall time in seconds; None for no limit.
        trials: Total number of trials, including earlier runs; None for no limit.
        seed: Seed of the search.
        sampler: Name of the search strategy.
        storage_url: Database where Optuna's own tables are kept; None to keep none.
        objectives: Objectives to minimise (see `tuner.results.objectives`). With several, the fastest config
            still is the champion, and the result has a front.
        error_limit: Largest error of a champion, as a multiple of the library's; None for no limit.
        drop: True to drop kernels whose first configs are hopeless (`tuner.study.leaderboard`).
        finals_s: Seconds of `seconds` kept for the finals; by default a share.
        library: The library's earlier measurement, if a study continues; by default it is measured.
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
    """The progress of a study.

    Attributes:
        stage: ``opening``, ``searching``, ``finals`` or ``done``.
        trials: Finished trials, including earlier runs.
        outcomes: Outcome -> trials.
        reasons: Failed outcome -> the first reason for it.
        dropped: Dropped kernel -> reason.
        best_s: Best median so far in seconds.
        best: Kernel and config with that median.
        front: Configs on the Pareto front; 0 with one objective.
        baseline_s: The library's median in seconds; None without a library, or before it is measured.
        best_blas: Core type and median in seconds of the library set to the best core type of this CPU, if it
            chose another by itself.
        busy: What is wrong with the machine, observed while opening devices or searching; empty if it is quiet.
        spent_s: Seconds by stage. Wall time: ``opening`` (with ``baseline``), ``measuring``, ``compiling``
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
        """Counts one more trial."""
        self.trials += 1
        name = measurement.outcome.value
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        if measurement.outcome.failed:
            self.reasons.setdefault(name, measurement.reason)

    def lead(self, time_s: float, best: str) -> None:
        """Sets the best config so far."""
        self.best_s, self.best = time_s, best

    def set_front(self, configs: int) -> None:
        """Sets the number of configs on the Pareto front."""
        self.front = configs

    def set_baseline(self, time_s: float | None) -> None:
        """Sets the library's time."""
        self.baseline_s = time_s

    def set_best_blas(self, core_type: str, time_s: float) -> None:
        """Sets the library's time with the core type that suits this CPU best."""
        self.best_blas = (core_type, time_s)

    def observe_load(self, busy: tuple[str, ...]) -> None:
        """Sets what is wrong with the machine now; if nothing is, the earlier observation stays."""
        self.busy = busy or self.busy

    def drop(self, kernel: str, why: str) -> None:
        """Records that a kernel was dropped from the search."""
        self.dropped[kernel] = why

    def spend(self, stage: str, seconds: float) -> None:
        """Adds time to a stage."""
        self.spent_s[stage] = self.spent_s.get(stage, 0.0) + seconds

    def set_spent(self, stage: str, seconds: float) -> None:
        """Sets the total time of a stage that counts for itself."""
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
    """The result of a study.

    Attributes:
        champion: Champion of the finals; None if nothing could be measured.
        progress: The final progress.
        stopped: Reason why the search ended; empty if it was told to end.
        pairs: The champion's pairs in the finals, with every other finalist and the library.
        front: The Pareto front, if there are several objectives.
        unplayed: Why the next best configs did not replace finalists that turned out wrong; else empty.
    """

    champion: Champion | None
    progress: Progress
    stopped: str
    pairs: tuple[Pair, ...] = ()
    front: Front | None = None
    unplayed: str = ""
