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
from tuner.results.record import Champion, Record
from tuner.results.units import config_text, duration, speed
from tuner.study.progress import Progress, Result
from tuner.study.reporting import failures, where_time_went
from tuner.study.requests import Asked

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Tuned:
    """The result of tuning a problem. Call it with arrays to run the champion.

    Attributes:
        problem: What was tuned.
        champion: The champion of the finals; None if there is none yet.
        trials: Records of all trials of the study, earlier runs included, in order of measurement.
        baseline: Record of the library, timed beside the champion; None without one.
        progress: Counts, seconds by stage, reasons of failures.
        stopped: Why the search ended.
        interrupted: True if Ctrl-C ended it: no finals were held.
        declaration: The file that declares the kernel, if it is one of your own; it can be kept and edited.
        asked: The study as it was asked.
        result: What the study itself returned; None if it was interrupted.
    """

    problem: Problem
    champion: Champion | None
    trials: tuple[Record, ...]
    baseline: Record | None
    progress: Progress
    stopped: str
    interrupted: bool
    declaration: Path | None
    asked: Asked
    result: Result | None = None

    @property
    def record(self) -> Record:
        """The champion's record, or that of the best trial where no finals were held.

        Raises:
            NothingFound: No config has a time.
        """
        if self.champion is not None:
            return self.champion.record
        timed = [
            each for each in self.trials if each.measurement.outcome == "MEASURED" and each.measurement.time_s
        ]
        if not timed:
            raise NothingFound(f"no config of {self.problem} has a time: {self._why_none()}")
        return min(timed, key=lambda each: each.measurement.time_s or 0.0)

    def _why_none(self) -> str:
        if any(each.measurement.outcome == "MEASURED" for each in self.trials):
            return f"no finals were held, or none passed them ({self.stopped})"
        reasons = "; ".join(failures(self.progress.reasons))
        if not reasons:
            spent = where_time_went(self.progress)
            return f"no trial was finished ({self.stopped}): {spent}. Give it more seconds"
        if "unwritten" in reasons and self.declaration is not None:
            names = ", ".join(each.name for each in self.problem.outputs)
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
        return next(each for each in self.asked.request.kernels if each.name == self.kernel)

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
        from tuner.python.record_tables import dataframe

        return dataframe(self.trials)

    def figures(self) -> dict[str, Any]:
        """Figures of Plotly by name: history, importance, pairs, parallel, failures, time."""
        figures: dict[str, Any] = required("figures").of_study(self)
        return figures

    def show(self, folder: str | Path) -> list[Path]:
        """Writes the study as one page that can be hovered and zoomed, and its figures as PNG."""
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
