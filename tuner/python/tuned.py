"""What `tuner.tune` returns: the champion, every trial, and what one does with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.errors import NothingFound
from tuner.extras import required
from tuner.lookup import Answer, staleness
from tuner.python.running import ConfigRunner
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role, measured_as_now
from tuner.results.units import config_text, duration, speed
from tuner.store import Store
from tuner.study.progress import Progress, Result, failures, where_time_went
from tuner.study.requests import Asked
from tuner.study.session import study_name

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Tuned:
    """The result of tuning a problem. Call it with arrays to run the champion.

    Attributes:
        asked: The study as it was asked.
        trials: Records of all trials of the study, earlier runs included, in order of measurement.
        baseline: Record of the library, timed beside the champion; None without one.
        progress: Counts, seconds by stage, reasons of failures.
        stopped: Why the search ended.
        result: What the study itself returned; None if it was interrupted.
    """

    asked: Asked
    trials: tuple[Record, ...]
    baseline: Record | None
    progress: Progress
    stopped: str
    result: Result | None = None

    @classmethod
    def of_study(cls, asked: Asked, progress: Progress, result: Result | None, stopped: str = "") -> Tuned:
        """The result of a study with its trials, read from the database.

        Args:
            asked: The study.
            progress: Its last progress.
            result: What it returned; None if it was interrupted.
            stopped: Why it ended.
        """
        request, device = asked.request, asked.request.found[0].info
        key, kernels = ProblemKey.of(request.problem), {kernel.name: kernel for kernel in request.kernels}
        with Store.open(asked.db, read_only=True) as store:
            records = store.records(problem=key, device=device)
        study = study_name(
            key, device, request.regime, request.kernels, request.objectives, request.error_limit
        )
        trials = tuple(
            record
            for record in records
            if record.role is Role.TRIAL
            and record.regime == request.regime
            and record.kernel in kernels
            and measured_as_now(record, kernels[record.kernel], request.problem)
        )
        if result is not None and result.champion is not None:
            baseline = result.champion.baseline
        else:
            own = (each for each in reversed(records) if each.role is Role.BASELINE and each.study == study)
            baseline = next(own, None)
        return cls(asked, trials, baseline, progress, stopped, result)

    @property
    def problem(self) -> Problem:
        """What was tuned."""
        return self.asked.request.problem

    @property
    def champion(self) -> Champion | None:
        """The champion of the finals; None if there is none yet."""
        return self.result.champion if self.result is not None else None

    @property
    def interrupted(self) -> bool:
        """True if Ctrl-C ended it: no finals were held."""
        return self.result is None

    @property
    def declaration(self) -> Path | None:
        """The file that declares the kernel, if it is one of your own; it can be kept and edited."""
        return self.problem.operation.origin

    @property
    def record(self) -> Record:
        """The champion's record, or that of the best trial where no finals were held.

        Raises:
            NothingFound: No config has a time.
        """
        if self.champion is not None:
            return self.champion.record
        timed = [record for record in self._measured if record.measurement.time_s]
        if not timed:
            raise NothingFound(f"no config of {self.problem} has a time: {self._why_none()}")
        return min(timed, key=lambda record: record.measurement.time_s or 0.0)

    @property
    def _measured(self) -> list[Record]:
        return [record for record in self.trials if record.measurement.outcome is Outcome.MEASURED]

    def _why_none(self) -> str:
        if self._measured:
            return f"no finals were held, or none passed them ({self.stopped})"
        reasons = "; ".join(failures(self.progress.reasons))
        if not reasons:
            spent = where_time_went(self.progress)
            return f"no trial was finished ({self.stopped}): {spent}. Give it more seconds"
        if "unwritten" in reasons and self.declaration is not None:
            names = ", ".join(output.name for output in self.problem.outputs)
            reasons += f". What a kernel writes (here {names}; outputs= names it) holds NaN before each run"
        return reasons

    @property
    def kernel(self) -> str:
        """Name of the kernel that is fastest."""
        return self.record.kernel

    @property
    def config(self) -> dict[str, Any]:
        """Its config."""
        return dict(self.record.config)

    @property
    def time_s(self) -> float:
        """Its median time, in seconds."""
        return self.record.measurement.time_s or 0.0

    @property
    def speedup(self) -> float | None:
        """The library's time over the champion's, as timed in turn in the finals; None without a library."""
        return self.champion.speedup or None if self.champion is not None else None

    @property
    def answer(self) -> Answer:
        """The same as a lookup answers it.

        Raises:
            NothingFound: There is no champion.
        """
        if self.champion is None:
            raise NothingFound(f"{self.problem} has no champion: {self._why_none()}; tune it again, it goes on")
        stale, why = staleness(self.champion.record, self.asked.catalogue)
        return Answer(self.champion, stale=stale, stale_reason=why)

    @cached_property
    def _declared(self) -> Kernel:
        return next(kernel for kernel in self.asked.request.kernels if kernel.name == self.kernel)

    @cached_property
    def _runner(self) -> ConfigRunner:
        spec = self.asked.request.found[0].spec
        return ConfigRunner(self._declared, self.problem, self.config, self.record.device, spec)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Runs the champion on arrays; see `tuner.python.running.ConfigRunner`."""
        return self._runner(*arrays, **named)

    def export(self, format: str = "source", folder: str | Path = ".") -> list[Path]:
        """Writes the champion so that it runs without tile-tuner.

        Args:
            format: ``source``, ``binary``, ``python`` or ``json``.
            folder: Where to write; it is made where it does not exist.

        Returns:
            The files, the main one first.
        """
        from tuner.export import export

        return export(self.answer, self._declared, self.problem, format, folder)

    def to_dataframe(self) -> pandas.DataFrame:
        """The trials as a table of pandas: a row for each, with its config, outcome and times."""
        from tuner.python.record_tables import Table

        return Table.of(self.trials).to_dataframe()

    def figures(self) -> dict[str, Any]:
        """Figures of Plotly by name: history, importance, pairs, parallel, failures, time."""
        figures: dict[str, Any] = required("figures").of_study(self)
        return figures

    def show(self, folder: str | Path) -> list[Path]:
        """Writes the study as one page, ``study.html``, that can be hovered and zoomed."""
        paths: list[Path] = required("figures").write_study(self, Path(folder))
        return paths

    def explain(self) -> str:
        """What was tried, what won, against what, and where the time went; for people."""
        return "\n".join(self._lines())

    __str__ = explain

    def _repr_markdown_(self) -> str:
        return "```text\n" + self.explain() + "\n```"

    def _lines(self) -> Iterator[str]:
        progress, work = self.progress, self.problem.work
        yield f"{self.problem} on {self.asked.request.found[0].info.name}"
        try:
            record = self.record
        except NothingFound as nothing:
            yield str(nothing)
            return
        how = "champion" if self.champion is not None else "best trial, no finals were held"
        yield f"  {how}: {record.kernel} {config_text(record.config)}"
        yield f"  time: {duration(self.time_s)}, {speed(work.flops, work.bytes, self.time_s)}, {record.regime}"
        if self.baseline is not None and self.baseline.measurement.time_s:
            ratio = f", {self.speedup:.3f} x as fast" if self.speedup else ""
            yield f"  {self.baseline.kernel}: {duration(self.baseline.measurement.time_s)}{ratio}"
        error = record.measurement.error
        if error is not None:
            on = "the given inputs alone" if self.problem.operation.fixed else "fresh random inputs"
            yield f"  error: rms {error.rms_rel:.2e}, max {error.max_rel:.2e} against float64, on {on}"
        for reason in self.champion.doubts if self.champion is not None else ():
            yield f"  provisional: {reason}"
        counts = ", ".join(
            f"{count} {name.lower().replace('_', ' ')}" for name, count in progress.outcomes.items()
        )
        yield f"  trials: {progress.trials} ({counts or 'none'}); {self.stopped or 'ended'}"
        for failure in failures(progress.reasons):
            yield f"    {failure}"
        yield f"  {where_time_went(progress)}"
