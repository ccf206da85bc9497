"""Finds the records of a study by its name or problem, and computes what figures and tables show of it."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tuner.errors import NothingFound, TunerError
from tuner.lookup.asking import parse_key
from tuner.python.tuned import Tuned
from tuner.results.measurement import Outcome, headline
from tuner.results.record import ProblemKey, Record, Role, rank_in_time
from tuner.results.units import is_compute_bound
from tuner.study.requests import database_url

if TYPE_CHECKING:
    from tuner.store import Store

#: Heatmaps of at most so many pairs: those of the parameters that matter most.
PAIRS = 6
#: Fewer measured configs say nothing of importance.
LEAST = 4
#: Where the time of a trial goes, in this order.
STAGES = ("compile", "load", "verify", "time", "power")


@dataclass(frozen=True)
class StudyView:
    """What a study saw.

    Attributes:
        title: Problem, and where.
        trials: Its trials in order of measurement.
        baseline: The library's record, if there is one.
        champion: The champion's record, if there is one.
        spent_s: Seconds by stage as a running study counts them; empty for one that is read from records.
    """

    title: str
    trials: Sequence[Record]
    baseline: Record | None = None
    champion: Record | None = None
    spent_s: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def timed(self) -> list[Record]:
        """Trials that have a time, pruned ones too."""
        return [each for each in self.trials if each.measurement.time_s and not each.measurement.outcome.failed]

    @property
    def work(self) -> Mapping[str, float]:
        """Flops and bytes of a run."""
        return self.trials[0].work if self.trials else {"flops": 0.0, "bytes": 0.0}

    @property
    def unit(self) -> str:
        """In which speed is told."""
        flops, moved = self.work["flops"], self.work["bytes"]
        if flops and is_compute_bound(flops, moved):
            best_s = min((each.measurement.time_s or math.inf for each in self.timed), default=math.inf)
            return "TFLOPS" if flops / best_s >= 1e12 else "GFLOPS"
        return "GB/s" if moved else "runs/s"

    def speed(self, time_s: float) -> float:
        """A time as a speed in `unit`."""
        amount = {
            "TFLOPS": self.work["flops"] / 1e12, "GFLOPS": self.work["flops"] / 1e9,
            "GB/s": self.work["bytes"] / 1e9, "runs/s": 1.0,
        }  # fmt: skip
        return amount[self.unit] / time_s

    @cached_property
    def kernel(self) -> str:
        """The kernel whose parameters are looked at: the champion's, else that of the fastest trial."""
        if self.champion is not None:
            return self.champion.kernel
        best = min(self.timed, key=lambda each: each.measurement.time_s or math.inf, default=None)
        return best.kernel if best is not None else ""

    @cached_property
    def of_kernel(self) -> list[Record]:
        """Timed trials of `kernel`."""
        return [each for each in self.timed if each.kernel == self.kernel]

    @cached_property
    def parameters(self) -> dict[str, list[Any]]:
        """Parameter of `kernel` -> its values that were tried, in order; those with several alone."""
        found: dict[str, list[Any]] = {}
        for name in self.of_kernel[0].config if self.of_kernel else ():
            values = {each.config[name] for each in self.of_kernel if name in each.config}
            if len(values) > 1:
                found[name] = sorted(values, key=lambda value: (isinstance(value, str), value))
        return found


def importance(study: StudyView) -> dict[str, float]:
    """Parameter -> share of the variance of log time that its values explain alone, the largest first.

    It is the main effect of a fANOVA on what was measured: the variance of the means of groups of equal values,
    over the whole. Means are of few trials, so what chance alone would explain is subtracted (as in omega
    squared, Hays 1963).
    """
    trials = study.of_kernel
    if len(trials) < LEAST:
        return {}
    logs = [math.log(each.measurement.time_s or 1.0) for each in trials]
    mean = statistics.fmean(logs)
    total = sum((each - mean) ** 2 for each in logs)
    if total == 0:
        return dict.fromkeys(study.parameters, 0.0)
    found = {}
    for name, values in study.parameters.items():
        groups = [
            [log for log, each in zip(logs, trials, strict=True) if each.config[name] == v] for v in values
        ]
        between = sum(len(group) * (statistics.fmean(group) - mean) ** 2 for group in groups if group)
        freedom = len(values) - 1
        left = len(trials) - len(values)
        noise = (total - between) / left if left > 0 else total / len(trials)
        found[name] = max(0.0, (between - freedom * noise) / (total + noise))
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def best_by_pair(study: StudyView, one: str, other: str) -> list[list[float | None]]:
    """Best speed for each pair of values: a row for each of `other`'s, a column for each of `one`'s."""
    best: dict[tuple[Any, Any], float] = {}
    for each in study.of_kernel:
        place = each.config[one], each.config[other]
        best[place] = max(best.get(place, 0.0), study.speed(each.measurement.time_s or math.inf))
    rows, columns = study.parameters[other], study.parameters[one]
    return [[best.get((column, row)) for column in columns] for row in rows]


def pairs_shown(study: StudyView) -> list[tuple[str, str]]:
    """The pairs of parameters that matter most."""
    ranked = list(importance(study)) or list(study.parameters)
    return sorted(itertools.combinations(ranked, 2), key=lambda pair: sum(map(ranked.index, pair)))[:PAIRS]


def reasons(study: StudyView) -> dict[tuple[str, str], int]:
    """Outcome and first line of its reason -> trials, the most frequent first; pruned trials too."""
    found: dict[tuple[str, str], int] = {}
    for each in study.trials:
        if each.measurement.outcome is not Outcome.MEASURED:
            reason = headline(each.measurement.reason)[:160]
            key = each.measurement.outcome.value, "" if each.measurement.outcome is Outcome.PRUNED else reason
            found[key] = found.get(key, 0) + 1
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def ended(outcome: str, why: str, most: int = 60) -> str:
    """An outcome with the beginning of its reason."""
    told = why if len(why) <= most else f"{why[: most - 3].rstrip()}..."
    return outcome.lower().replace("_", " ") + (f": {told}" if told else "")


def seconds_by_stage(study: StudyView) -> dict[str, float]:
    """Seconds of the study by stage: compiling, verifying, timing, thinking, and what else was counted.

    Records keep the stages of trials. What else went on is counted while a study runs; of one that is read from
    records, it is the wall time between its trials in which the device did nothing, under ``between trials``.
    """
    found = {stage: sum(each.measurement.stages_s.get(stage, 0.0) for each in study.trials) for stage in STAGES}
    beside = {name: study.spent_s.get(name, 0.0) for name in ("thinking", "storing", "opening", "finals")}
    if not study.spent_s:
        beside = {"between trials": _between(study.trials)}
    return {name: seconds for name, seconds in {**found, **beside}.items() if seconds > 0}


def _between(trials: Sequence[Record]) -> float:
    """Seconds between trials of the same run: the search thinks, or compilers are waited for."""
    total = 0.0
    for before, after in itertools.pairwise(trials):
        if before.session == after.session:
            passed = datetime.fromisoformat(after.measured_at) - datetime.fromisoformat(before.measured_at)
            busy = sum(after.measurement.stages_s.get(stage, 0.0) for stage in STAGES if stage != "compile")
            total += max(passed.total_seconds() - busy, 0.0)
    return total


def view_of(tuned: Tuned) -> StudyView:
    """A study that `tuner.tune` returned."""
    best = tuned.champion.record if tuned.champion is not None else None
    title = f"{tuned.problem} on {tuned.asked.request.found[0].info.name}"
    return StudyView(title, tuned.trials, tuned.baseline, best, tuned.progress.spent_s)


class ShowOptions(TypedDict, total=False):
    """Which study `show` shows, where a problem has several.

    Attributes:
        device: Name or uuid of the device; by default that of the latest study.
        regime: How times were taken; by default that of the latest study.
        folder: Where to write ``study.html`` and PNGs; by default nothing is written.
        db: URL of the database; by default that of ``TUNER_DB``, else ``studies.db`` in this folder.
    """

    device: str
    regime: str
    folder: str | Path
    db: str


def recorded_study(what: object, options: ShowOptions) -> StudyView:
    """A study of the database, as figures take it.

    Raises:
        NothingFound: Nothing is recorded of it; the message lists studies that there are.
    """
    from tuner.store import Store

    with Store.open(database_url(options.get("db") or ""), read_only=True) as store:
        name, records = _by_name(store, what) or _of_problem(store, what, options)
        champion = None
        trials = [record for record in records if record.role is Role.TRIAL]
        if trials:
            champion = store.champion(trials[-1].problem, trials[-1].device, trials[-1].regime)
    if champion is not None and champion.record.id not in {record.id for record in records}:
        champion = None
    baselines = [record for record in records if record.role is Role.BASELINE]
    baseline = champion.baseline if champion is not None else None
    record = champion.record if champion is not None else None
    return StudyView(name, trials, baseline or (baselines[-1] if baselines else None), record)


def _by_name(store: Store, what: object) -> tuple[str, Sequence[Record]] | None:
    records = store.records(study=what) if isinstance(what, str) else []
    return (str(what), records) if records else None


def _of_problem(store: Store, what: object, options: ShowOptions) -> tuple[str, Sequence[Record]]:
    """The name and the records of the latest study of a problem that has a trial."""
    key = _key(store, what)
    regime, device = options.get("regime"), options.get("device")
    by_name: dict[str, list[Record]] = {}
    for record in store.records(problem=key, device=device or None):
        if record.study and regime in (None, "", record.regime):
            by_name.setdefault(record.study, []).append(record)
    with_trials = [one for one in by_name.items() if any(record.role is Role.TRIAL for record in one[1])]
    if not with_trials:
        raise NothingFound(f"no trial of {key} is recorded here; tune it first, or name another by --db")
    return max(with_trials, key=lambda one: max(rank_in_time(record.measured_at) for record in one[1]))


def _key(store: Store, what: object) -> ProblemKey:
    """The problem that words name: of a built-in operation, or of one that is recorded.

    Raises:
        NothingFound: It is neither.
    """
    if not isinstance(what, str):
        return parse_key(what)  # type: ignore[arg-type]
    try:
        return parse_key(what)
    except TunerError as error:
        words = what.split()
        for champion in store.champions(words[0] if words else ""):
            key = champion.record.problem
            sizes = [str(size) for _, size in key.shape]
            if words[1 : 1 + len(sizes)] == sizes:
                return key
        raise NothingFound(
            f"nothing recorded has the name of {what!r}, neither a study nor a problem ({error}); "
            "`tuner records stats` and `tuner records list` show what there is"
        ) from error
