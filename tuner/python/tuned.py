"""What programs get of measurements: `Tuned`, which `tuner.tune` returns, and records as tables."""

from __future__ import annotations

import contextlib
import csv
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.declare.catalogue import Catalogue
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.errors import NothingFound
from tuner.extras import required
from tuner.lookup import Answer, staleness
from tuner.python.running import ConfigRunner
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role, measured_as_now
from tuner.results.units import beside, config_text, duration, speed
from tuner.store import Store
from tuner.store.listing import Selection, stream
from tuner.study.progress import Progress, Result, failures, where_time_went
from tuner.study.requests import Asked, database_url

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
        kernels = {kernel.name: kernel for kernel in request.kernels}
        with Store.open(asked.db, read_only=True) as store:
            records = store.records(problem=ProblemKey.of(request.problem), device=device)
        records = [record for record in records if record.regime == request.regime]
        trials = tuple(
            record
            for record in records
            if record.role is Role.TRIAL
            and record.kernel in kernels
            and measured_as_now(record, kernels[record.kernel], request.problem)
        )
        if result is not None and result.champion is not None:
            baseline = result.champion.baseline
        else:
            baseline = next((record for record in reversed(records) if record.role is Role.BASELINE), None)
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
        timed = [record for record in self.trials if record.measurement.outcome is Outcome.MEASURED]
        if not timed:
            raise NothingFound(self._why_none())
        return min(timed, key=lambda record: record.measurement.time_s or math.inf)

    def _why_none(self) -> str:
        why = why_none(self.problem, self.progress, self.stopped)
        if "unwritten" in why and self.declaration is not None:
            names = ", ".join(output.name for output in self.problem.outputs)
            why += f". What a kernel writes (here {names}; outputs= names it) holds NaN before each run"
        return why

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
            raise NothingFound(self._why_none())
        return champion_answer(self.champion, self.asked.catalogue)

    @cached_property
    def _declared(self) -> Kernel:
        return next(kernel for kernel in self.asked.request.kernels if kernel.name == self.kernel)

    @cached_property
    def _runner(self) -> ConfigRunner:
        spec = self.asked.request.found[0].spec
        return ConfigRunner(self._declared, self.problem, self.config, self.record.device, spec)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Runs the champion on arrays; see `tuner.python.running.ConfigRunner`.

        Raises:
            NothingFound: No config has a time; the message says why.
        """
        _ = self.record
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

    __str__ = __repr__ = explain  # at a prompt, too, where fields would be pages long

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
            library, library_s = self.baseline.kernel, self.baseline.measurement.time_s
            known = self.speedup or 0.0, library_s / self.time_s
            ratio = beside(known[0], min(known), max(known), library)
            yield f"  {library}: {duration(library_s)}" + (f"; the champion is {ratio}" if self.speedup else "")
        if self.champion is not None and (best := self.champion.library_best):
            ratio = f"the champion is {best.comparison.ratio:.3f} x {best.other.split()[0]}"
            yield f"  the library at its best: {duration(best.time_s)}; {ratio}"
        error = record.measurement.error
        if error is not None:
            on = "the given inputs alone" if self.problem.operation.fixed else "fresh random inputs"
            yield f"  error: rms {error.rms_rel:.2e}, max {error.max_rel:.2e} against float64, on {on}"
        for reason in self.champion.doubts if self.champion is not None else ():
            yield f"  provisional: {reason}"
        counts = ", ".join(f"{count} {name.lower()}" for name, count in progress.outcomes.items())
        yield f"  trials: {progress.trials} ({counts or 'none'}); {self.stopped or 'ended'}"
        for failure in failures(progress.reasons):
            yield f"    {failure}"
        yield f"  {where_time_went(progress)}"


def champion_answer(champion: Champion, catalogue: Catalogue) -> Answer:
    """A champion as a lookup answers it, stale where its kernel has changed."""
    stale, why = staleness(champion.record, catalogue)
    return Answer(champion, stale=stale, stale_reason=why)


def why_none(problem: Problem, progress: Progress, stopped: str) -> str:
    """Why a study has no champion."""
    if not progress.trials:
        spent = where_time_went(progress)
        return f"no trial of {problem} was finished ({stopped}): {spent}. Give it more seconds"
    reasons = failures(progress.reasons)
    if progress.totals["measured"]:
        none = f"no finals were held, or none passed them ({stopped})"
        reasons.append(f"{none}; `tuner records list` has why, and the same call goes on")
    return "\n  ".join([f"{problem} has no champion after {progress.trials} trials:", *reasons])


# --- Records as tables ---------------------------------------------------------------------------------------

#: Column -> its kind and what it holds of a record. Units are in the names.
COLUMNS: Mapping[str, tuple[type, Callable[[Record], Any]]] = {
    "id": (str, lambda r: r.id),
    "measured_at": (str, lambda r: r.measured_at),
    "operation": (str, lambda r: r.problem.operation),
    "dtype": (str, lambda r: r.problem.dtype),
    "layout": (str, lambda r: r.problem.layout),
    "precision": (str, lambda r: r.problem.precision),
    "epilogue": (str, lambda r: r.problem.epilogue),
    "device": (str, lambda r: r.device.name),
    "device_uuid": (str, lambda r: r.device.uuid),
    "regime": (str, lambda r: r.regime),
    "role": (str, lambda r: r.role.value),
    "kernel": (str, lambda r: r.kernel),
    "outcome": (str, lambda r: r.measurement.outcome.value),
    "reason": (str, lambda r: r.measurement.reason),
    "time_s": (float, lambda r: r.measurement.time_s),
    "noise": (float, lambda r: r.measurement.noise),
    "samples": (int, lambda r: len(r.measurement.samples_s)),
    "tflops": (float, lambda r: r.tflops),
    "gbps": (float, lambda r: r.gbps),
    "error_rms": (float, lambda r: r.measurement.error and r.measurement.error.rms_rel),
    "error_max": (float, lambda r: r.measurement.error and r.measurement.error.max_rel),
    "registers": (int, lambda r: r.measurement.compiled and r.measurement.compiled.registers),
    "spill_bytes": (int, lambda r: r.measurement.compiled and r.measurement.compiled.spill_bytes),
    **{
        f"{stage}_s": (float, lambda r, stage=stage: r.measurement.stages_s.get(stage))  # type: ignore[misc]
        for stage in ("compile", "load", "verify", "power")
    },
    "driver": (str, lambda r: r.versions.get("driver", "")),
    "compiler": (str, lambda r: r.versions.get("compiler", "")),
    "library": (str, lambda r: r.versions.get("library", "")),
    "study": (str, lambda r: r.study),
    "session": (str, lambda r: r.session),
    "source_hash": (str, lambda r: r.source_hash),
}


class Table(list[Mapping[str, Any]]):
    """Rows of plain values by column: ``dim.m`` for sizes, ``config.BM`` for parameters.

    A column that a row has no value for is missing in it.

    Attributes:
        columns: Names in order, with their kinds.
    """

    columns: Mapping[str, type]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Table:
        """Records as a table, in their order."""
        table = cls(map(row_of, records))
        table.columns = columns_of(records)
        return table

    def to_dataframe(self) -> pandas.DataFrame:
        """The table as a data frame of pandas, which the extra ``tables`` installs."""
        import pandas

        frame = pandas.DataFrame(list(self), columns=list(self.columns))
        return frame.astype({name: "string" for name, kind in self.columns.items() if kind is str})

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {len(self.columns)} columns; to_dataframe() makes a data frame of them>"


def columns_of(records: Iterable[Record]) -> dict[str, type]:
    """The columns that records have, with the kinds of their values; text if a parameter's are of several."""
    dims: dict[str, type] = {}
    config: dict[str, type] = {}
    for record in records:
        dims |= {f"dim.{name}": type(value) for name, value in record.problem.shape}
        for name, value in record.config.items():
            kind = config.setdefault(f"config.{name}", type(value))
            config[f"config.{name}"] = kind if kind is type(value) else str
    return {name: kind for name, (kind, _) in COLUMNS.items()} | dims | config


def row_of(record: Record) -> dict[str, Any]:
    """A record as a row."""
    row = {name: value(record) for name, (_, value) in COLUMNS.items()}
    row |= {f"dim.{name}": value for name, value in record.problem.shape}
    return row | {f"config.{name}": value for name, value in record.config.items()}


def records(
    operation: str = "", shape: Sequence[int] = (), device: str = "", regime: str = "", role: str = "",
    db: str = "",
) -> Table:  # fmt: skip
    """Records of a database as a table, in order of measurement; all of them where nothing is said.

    Args:
        operation: Name of the operation.
        shape: Sizes in the operation's order.
        device: Name or uuid.
        regime: How times were taken.
        role: ``trial``, ``final`` or ``baseline``.
        db: URL of the database; by default that of ``TUNER_DB``, else ``studies.db`` in this folder.

    Raises:
        NothingFound: There is no database.
    """
    wanted = Selection(operation, tuple(shape), device, regime)
    with Store.open(database_url(db), read_only=True) as store:
        selected = [record for record in stream(store, Record, wanted) if role in ("", record.role.value)]
    return Table.of(sorted(selected, key=lambda record: (record.measured_at, record.id)))


def export_table(store: Store, path: Path | None, wanted: Selection, parquet: bool) -> int:
    """Writes records as a table, ordered by id; retracted ones are left out.

    Args:
        store: The store to read.
        path: The file; None for stdout.
        wanted: Which records.
        parquet: True for Parquet, which goes to a file, False for CSV.

    Returns:
        How many rows were written.
    """
    if parquet and path is not None:
        table = Table.of(list(stream(store, Record, wanted)))
        table.to_dataframe().to_parquet(path)
        return len(table)
    columns = columns_of(stream(store, Record, wanted))
    with path.open("w", newline="", encoding="utf-8") if path else contextlib.nullcontext(sys.stdout) as out:
        writer = csv.DictWriter(out, list(columns), restval="", lineterminator="\n")
        writer.writeheader()
        return sum(1 for record in stream(store, Record, wanted) if writer.writerow(row_of(record)))
