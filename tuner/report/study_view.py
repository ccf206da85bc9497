"""Finds the records of a study by its name or problem, and computes what figures and tables show of it."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tuner.errors import NothingFound, TunerError
from tuner.lookup.asking import parse_key
from tuner.python.tuned import Tuned
from tuner.results.measurement import Outcome, headline
from tuner.results.objectives import classes_text
from tuner.results.record import Champion, ProblemKey, Record, Role, rank_in_time
from tuner.results.units import config_text, duration, speed, speed_unit
from tuner.store import Store, listing
from tuner.study.requests import database_url

#: Pairs of parameters that a heatmap offers: those that matter most.
PAIRS = 6
#: Fewer measured configs say nothing of importance.
LEAST = 4
#: Where the time of a trial goes, in this order; and what else a running study counts.
STAGES = ("compile", "load", "verify", "time", "bits", "power")
COUNTED = ("thinking", "storing", "opening", "finals")


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

    @classmethod
    def of(cls, title: str, records: Sequence[Record], champion: Champion | None) -> StudyView:
        """The view of a study's or a problem's records, of which one may be the champion's."""
        trials = [record for record in records if record.role is not Role.BASELINE]
        libraries = [record for record in records if record.role is Role.BASELINE]
        library = champion.baseline if champion is not None else None
        library = library or (libraries[-1] if libraries else None)
        return cls(title, trials, library, champion.record if champion is not None else None)

    @cached_property
    def timed(self) -> list[Record]:
        """Trials that have a time, pruned ones too."""
        timed = (trial for trial in self.trials if trial.measurement.time_s)
        return [trial for trial in timed if not trial.measurement.outcome.failed]

    @cached_property
    def _unit(self) -> tuple[str, float]:
        best_s = min((time_of(trial) for trial in self.timed), default=math.inf)
        return speed_unit(**_work(self.trials[0]), time_s=best_s) if self.trials else ("runs/s", 1.0)

    @property
    def unit(self) -> str:
        """The unit of `speed`."""
        return self._unit[0]

    def speed(self, record: Record) -> float:
        """The speed of a record's run in `unit`."""
        return self._unit[1] / time_of(record)

    @cached_property
    def kernel(self) -> str:
        """The kernel whose parameters are looked at: the champion's, else that of the fastest trial."""
        best = self.champion or min(self.timed, key=time_of, default=None)
        return best.kernel if best is not None else ""

    @cached_property
    def of_kernel(self) -> list[Record]:
        """Timed trials of `kernel`."""
        return [trial for trial in self.timed if trial.kernel == self.kernel]

    @cached_property
    def parameters(self) -> dict[str, list[Any]]:
        """Parameter of `kernel` -> its values that were tried, in order; those with several alone."""
        tried: dict[str, list[Any]] = {}
        for name in self.of_kernel[0].config if self.of_kernel else ():
            values = {trial.config[name] for trial in self.of_kernel if name in trial.config}
            if len(values) > 1:
                tried[name] = sorted(values, key=lambda value: (isinstance(value, str), value))
        return tried

    def summary(self) -> list[tuple[str, str]]:
        """What is said of the whole, as names and values: its trials, the champion, the library."""
        rows = [("trials", f"{len(self.trials)}, {len(self.timed)} with a time")]
        if self.trials:
            first = self.trials[0]
            rows.append(("device", f"{first.device.name}, timed {first.regime}, {first.measured_at[:10]}"))
        for name, record in (("champion", self.champion), ("library", self.baseline)):
            if record is not None and record.measurement.time_s:
                config = f" {config_text(record.config)}" if record.config else ""
                shown = speed(**_work(record), time_s=time_of(record))
                rows.append((name, f"{record.kernel}{config}: {shown}, {duration(time_of(record))}"))
        slowest_first = sorted(self.timed, key=time_of, reverse=True)
        classes = {one.measurement.bits: time_of(one) for one in slowest_first if one.measurement.bits}
        return [*rows, ("classes of bits", classes_text(classes))] if classes else rows


def time_of(record: Record) -> float:
    """A record's median time in seconds; infinite without one."""
    return record.measurement.time_s or math.inf


def _work(record: Record) -> dict[str, float]:
    return {"flops": record.work["flops"], "moved_bytes": record.work["bytes"]}


def importance(study: StudyView) -> dict[str, float]:
    """Parameter -> share of the variance of log time that its values explain alone, the largest first.

    It is the main effect of a fANOVA on what was measured: the variance of the means of groups of equal values,
    over the whole. Means are of few trials, so what chance alone would explain is subtracted (as in omega
    squared, Hays 1963).
    """
    trials = study.of_kernel
    if len(trials) < LEAST:
        return {}
    logs = np.log([time_of(trial) for trial in trials])
    logs -= logs.mean()
    total = float((logs**2).sum())
    if total == 0:
        return dict.fromkeys(study.parameters, 0.0)
    shares = {}
    for name, values in study.parameters.items():
        groups = [logs[[trial.config[name] == value for trial in trials]] for value in values]
        between = sum(len(group) * float(group.mean()) ** 2 for group in groups)
        left = len(trials) - len(values)
        noise = (total - between) / left if left > 0 else total / len(trials)
        shares[name] = max(0.0, (between - (len(values) - 1) * noise) / (total + noise))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def best_by_pair(study: StudyView, one: str, other: str) -> list[list[float | None]]:
    """Best speed for each pair of values: a row for each of `other`'s, a column for each of `one`'s."""
    best = collections.defaultdict[tuple[Any, Any], float](float)
    for trial in study.of_kernel:
        place = trial.config[one], trial.config[other]
        best[place] = max(best[place], study.speed(trial))
    return [[best.get((column, row)) for column in study.parameters[one]] for row in study.parameters[other]]


def pairs_shown(study: StudyView) -> list[tuple[str, str]]:
    """The pairs of parameters that matter most, the most telling first."""
    ranked = list(importance(study)) or list(study.parameters)
    return sorted(itertools.combinations(ranked, 2), key=lambda pair: sum(map(ranked.index, pair)))[:PAIRS]


def reasons(study: StudyView) -> dict[str, int]:
    """Why trials were not measured: outcome and first line of its reason -> trials, the most frequent first."""
    counts: collections.Counter[str] = collections.Counter()
    for measurement in (trial.measurement for trial in study.trials):
        if measurement.outcome is not Outcome.MEASURED:
            why = "" if measurement.outcome is Outcome.PRUNED else headline(measurement.reason)
            outcome = measurement.outcome.value.lower().replace("_", " ")
            counts[f"{outcome}: {why}"[:120] if why else outcome] += 1
    return dict(counts.most_common())


def seconds_by_stage(study: StudyView) -> dict[str, float]:
    """Seconds by stage: those of trials, and what a study counts beside them while it runs."""
    spent = {name: sum(trial.measurement.stages_s.get(name, 0.0) for trial in study.trials) for name in STAGES}
    spent |= {name: study.spent_s.get(name, 0.0) for name in COUNTED}
    return {name: seconds for name, seconds in spent.items() if seconds > 0}


def view_of(tuned: Tuned) -> StudyView:
    """A study that `tuner.tune` returned."""
    best = tuned.champion.record if tuned.champion is not None else None
    title = f"{tuned.problem} on {tuned.asked.request.found[0].info.name}"
    return StudyView(title, tuned.trials, tuned.baseline, best, tuned.progress.spent_s)


def recorded_study(what: object, device: str = "", regime: str = "", db: str = "") -> StudyView:
    """A study of the database, as figures take it; the latest of a problem that has several.

    Args:
        what: A study's name, or a problem.
        device: Name or uuid of the device; any if empty.
        regime: How times were taken; any if empty.
        db: URL of the database.

    Raises:
        NothingFound: Nothing is recorded of it.
    """
    with Store.open(database_url(db), read_only=True) as store:
        records = store.records(study=what) if isinstance(what, str) else []
        if not records:
            key = _key(store, what)
            own = store.records(problem=key, device=device or None)
            own = [record for record in own if record.study and regime in ("", record.regime)]
            trials = [record for record in own if record.role is Role.TRIAL]
            if not trials:
                raise NothingFound(f"no trial of {key} is recorded here; tune it, or name another by --db")
            last = max(trials, key=lambda record: rank_in_time(record.measured_at)).study
            records = [record for record in own if record.study == last]
        first = records[0]
        champion = store.champion(first.problem, first.device, first.regime)
    if champion is not None and champion.record.id not in {record.id for record in records}:
        champion = None
    shown = [record for record in records if record.role in (Role.TRIAL, Role.BASELINE)]
    return StudyView.of(first.study, shown, champion)


def _key(store: Store, what: object) -> ProblemKey:
    """The problem that words name: of a built-in operation, or the last crowned one that begins with them.

    Raises:
        NothingFound: It is neither.
    """
    try:
        return parse_key(what)  # type: ignore[arg-type]
    except TunerError as error:
        words = str(what).split()
        for problem in (measured.problem for measured in listing.problems(store)):
            if words and str(problem).replace(" x ", " ").split()[: len(words)] == words:
                return problem
        raise NothingFound(
            f"nothing recorded has the name of {what!r}, neither a study nor a problem ({error}); "
            "`tuner records stats` and `tuner records list` show what there is"
        ) from error
