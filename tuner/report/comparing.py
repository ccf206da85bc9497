"""``tuner compare``: champions of two devices, drivers, versions, days or studies, problem by problem."""

from __future__ import annotations

import contextlib
import csv
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import print_json, table
from tuner.cli.options import OPERATION, database_option, folder_option, json_option, writable_folder
from tuner.errors import InputError, NothingFound
from tuner.results import measurement as judging
from tuner.results.measurement import Comparison, Outcome
from tuner.results.record import Record, Role
from tuner.results.units import config_text, duration
from tuner.store import Store, listing
from tuner.store.listing import Selection
from tuner.study.requests import database_url

#: What a side may be chosen by -> what a record has of it.
KINDS: Mapping[str, Callable[[Record], str]] = {
    "device": lambda r: r.device.name,
    "uuid": lambda r: r.device.uuid,
    "driver": lambda r: r.versions.get("driver", ""),
    "compiler": lambda r: r.versions.get("compiler", ""),
    "library": lambda r: r.versions.get("library", ""),
    "version": lambda r: r.versions.get("tuner", ""),
    "study": lambda r: r.study,
    "date": lambda r: r.measured_at[:10],
}
#: A day, or from one to another.
_DATES = re.compile(r"(\d{4}-\d\d-\d\d)(?:\.\.(\d{4}-\d\d-\d\d))?")


@dataclass(frozen=True)
class Side:
    """One of the two that are compared.

    Attributes:
        kind: One of `KINDS`, or ``db``.
        value: What a record has to have; the URL of a database.
    """

    kind: str
    value: str

    @classmethod
    def of(cls, text: str, known: Iterable[Record] = ()) -> Side:
        """Reads ``KIND:VALUE``, a date, a database's file, or a value that some record has.

        Raises:
            InputError: The text says none of these.
        """
        kind, colon, value = text.partition(":")
        if colon and kind in (*KINDS, "night", "db"):
            return cls({"night": "date"}.get(kind, kind), value)
        if _DATES.fullmatch(text):
            return cls("date", text)
        if "://" in text or (text.endswith(".db") and Path(text).is_file()):
            return cls("db", text if "://" in text else f"sqlite:///{text}")
        for name, value_of in KINDS.items():
            if any(value_of(record) == text for record in known):
                return cls(name, text)
        raise InputError(
            f"a side is a device, a driver, a version, a date, a study or a database that records know, got "
            f"{text!r}; write KIND:VALUE, with KIND one of {', '.join([*KINDS, 'night', 'db'])}"
        )

    def has(self, record: Record) -> bool:
        """Whether a record is of this side."""
        if self.kind == "db":
            return True
        value = KINDS[self.kind](record)
        if self.kind == "date" and (dates := _DATES.fullmatch(self.value)):
            return dates[1] <= value <= (dates[2] or dates[1])
        return value == self.value or (
            self.kind in ("driver", "compiler", "library") and self.value in value.split()
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


@dataclass(frozen=True)
class ComparedProblem:
    """A problem on both sides.

    Attributes:
        problem: In words.
        regime: How times were taken.
        one: The best record of the first side.
        other: Of the second.
        comparison: How the second compares with the first: a ratio above 1 says that the second is faster.
        library: The library's time on the first side over that on the second; None where one has none.
        together: True if both were timed in turn, in one session.
    """

    problem: str
    regime: str
    one: Record
    other: Record
    comparison: Comparison
    library: float | None
    together: bool

    @property
    def configs(self) -> tuple[str, str]:
        """Kernel and config of both sides, in words."""
        one, other = (
            " ".join([record.kernel, *([config_text(record.config)] if record.config else [])])
            for record in (self.one, self.other)
        )
        return one, other

    def to_json(self) -> dict[str, Any]:
        """Plain values by column."""
        one, other = self.configs
        return {
            "problem": self.problem, "regime": self.regime, "ratio": self.comparison.ratio,
            "low": self.comparison.low, "high": self.comparison.high, "verdict": self.comparison.verdict,
            "one_s": self.one.measurement.time_s, "other_s": self.other.measurement.time_s,
            "library_ratio": self.library, "one": one, "other": other, "same_config": one == other,
            "timed_in_turn": self.together,
        }  # fmt: skip

    def cells(self) -> list[str]:
        """The row as people read it; see `Compared.columns`."""
        times = [duration(record.measurement.time_s or 0.0) for record in (self.one, self.other)]
        how = "" if self.together else ", apart"
        interval = f"{self.comparison.low:.3f} to {self.comparison.high:.3f}{how}"
        return [
            f"{self.problem}, {self.regime}", *times, f"{self.comparison.ratio:.3f}", interval,
            self.comparison.verdict, f"{self.library:.3f}" if self.library else "",
            "same" if self.configs[0] == self.configs[1] else "another",
        ]  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """Two sides, problem by problem, those that changed most first.

    Attributes:
        one: The first side.
        other: The second.
        rows: The problems that both have.
        only_one: Problems of the first side alone.
        only_other: Problems of the second alone.
    """

    one: str
    other: str
    rows: Sequence[ComparedProblem]
    only_one: Sequence[str] = field(default=())
    only_other: Sequence[str] = field(default=())

    def __str__(self) -> str:
        return self.markdown()

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return math.exp(sum(math.log(row.comparison.ratio) for row in self.rows) / len(self.rows))

    def counts(self) -> dict[str, int]:
        """Verdict -> problems; that of the second side against the first."""
        verdicts = [row.comparison.verdict for row in self.rows]
        return {name: verdicts.count(name) for name in ("faster", "same", "slower", "ambiguous")}

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "one": self.one, "other": self.other, "mean_ratio": self.mean, "counts": self.counts(),
            "problems": [row.to_json() for row in self.rows], "only_one": list(self.only_one),
            "only_other": list(self.only_other),
        }  # fmt: skip

    @property
    def columns(self) -> list[str]:
        """What `ComparedProblem.cells` are."""
        return ["problem", self.one, self.other, "ratio", "interval", "verdict", "library", "config"]

    def markdown(self) -> str:
        """The rows as a table of Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *(row.cells() for row in self.rows)]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    _repr_markdown_ = markdown

    def summary(self) -> str:
        """The mean and the verdicts of all problems, in a sentence."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts().items() if count)
        return f"geometric mean {self.mean:.3f} over {len(self.rows)} problems: {counts}"

    def alone(self) -> list[tuple[str, Sequence[str]]]:
        """The sides that have problems which the other lacks, with these."""
        both = ((self.one, self.only_one), (self.other, self.only_other))
        return [(side, problems) for side, problems in both if problems]


def compare_sides(one: str, other: str, *, operation: str = "", db: str = "") -> Compared:
    """Compares two devices, drivers, versions, days, studies or databases.

    A side is written ``device:NVIDIA H200``, ``driver:580.65``, ``version:2.1``, ``night:2026-11-20``,
    ``date:2026-11-01..2026-11-07``, ``study:NAME`` or ``db:URL``; the kind may be left out where records know
    the value. For each problem and regime the fastest config of the finals speaks for a side (of the trials,
    where no finals were held). Records of one session are compared round by round, others by the intervals of
    their medians, which know nothing of drift.

    Args:
        one: The first side.
        other: The second.
        operation: Only problems of this operation.
        db: URL of the database; by default that of ``TUNER_DB``, else ``studies.db`` in this folder.

    Raises:
        InputError: A side cannot be read.
        NothingFound: The sides have no problem in common.
    """
    texts, selection = (one, other), Selection(operation)
    known = [] if all(map(_is_database, texts)) else _read(database_url(db), selection)
    sides = [Side.of(text, known) for text in texts]
    records = [
        [
            record
            for record in (_read(side.value, selection) if side.kind == "db" else known)
            if side.has(record)
        ]
        for side in sides
    ]
    best, libraries = [_best(own) for own in records], [_libraries(own) for own in records]
    common = [key for key in best[0] if key in best[1]]
    if not common:
        raise NothingFound(
            f"{sides[0]} has {len(best[0])} problems and {sides[1]} has {len(best[1])}, none in common; "
            "`tuner records stats` shows what there is"
        )
    rows = [_row(key, best, libraries) for key in common]
    rows.sort(key=lambda row: -abs(math.log(row.comparison.ratio)))
    only = [tuple(sorted(", ".join(key) for key in own if key not in common)) for own in best]
    return Compared(str(sides[0]), str(sides[1]), rows, *only)


def _is_database(text: str) -> bool:
    with contextlib.suppress(InputError):
        return Side.of(text).kind == "db"
    return False


def _read(url: str, selection: Selection) -> list[Record]:
    """Timed records of a database; samples of trials that were stopped early say nothing."""
    with Store.open(url, read_only=True) as store:
        return [
            record
            for record in listing.stream(store, Record, selection)
            if record.measurement.outcome is Outcome.MEASURED and record.measurement.samples_s
        ]


#: Problem in words, and regime.
_Key = tuple[str, str]


def _best(records: Iterable[Record]) -> dict[_Key, Record]:
    """What speaks for a side: the fastest of the latest finals, or the best trial."""
    by_key: dict[_Key, list[Record]] = {}
    for record in records:
        if record.role in (Role.FINAL, Role.TRIAL):
            by_key.setdefault((str(record.problem), record.regime), []).append(record)
    for key, own in by_key.items():
        finals = [record for record in own if record.role is Role.FINAL]
        last = max(finals, key=lambda record: record.measured_at).session if finals else ""
        by_key[key] = [record for record in finals if record.session == last] or own
    return {
        key: min(own, key=lambda record: record.measurement.time_s or math.inf) for key, own in by_key.items()
    }


def _libraries(records: Iterable[Record]) -> dict[_Key, Record]:
    """The library's last time."""
    own = [record for record in records if record.role is Role.BASELINE]
    own.sort(key=lambda record: record.measured_at)
    return {(str(record.problem), record.regime): record for record in own}


def _row(
    key: _Key, best: Sequence[Mapping[_Key, Record]], libraries: Sequence[Mapping[_Key, Record]]
) -> ComparedProblem:
    one, other = best[0][key], best[1][key]
    ours, theirs = other.measurement.samples_s, one.measurement.samples_s
    together = bool(one.session) and one.session == other.session and len(ours) == len(theirs)
    comparison = (judging.compare if together else judging.compare_apart)(ours, theirs)
    times = [own[key].measurement.time_s if key in own else None for own in libraries]
    library = times[0] / times[1] if times[0] and times[1] else None
    return ComparedProblem(*key, one, other, comparison, library, together)


@click.command()
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--operation", shell_complete=OPERATION, default="", help="Only problems of this operation.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--markdown", is_flag=True, help="Print a table of Markdown.")
@folder_option("Write compare.html to this folder.")
@database_option
@json_option
def compare(
    one: str, other: str, operation: str, as_csv: bool, markdown: bool, folder: Path | None, db: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Compare B with A, problem by problem, those that changed most first.

    A and B are device:NAME, driver:VERSION, compiler:, library:, version: (of tile-tuner), night:DATE,
    date:FROM..TO, study:NAME or db:URL; the kind may be left out where records know the value. A ratio above 1
    says that B is faster. Its interval is of 95 %; the library's ratio shows what the machine itself did.
    """
    if folder is not None:
        writable_folder(folder)
    compared = compare_sides(one, other, operation=operation, db=db)
    if folder is not None:
        click.echo(str(_write_page(compared, folder)), err=True)
    if as_json:
        print_json(compared.to_json())
    elif as_csv:
        rows = [row.to_json() for row in compared.rows]
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif markdown:
        click.echo(compared.markdown())
    else:
        table(f"{compared.other} against {compared.one}", compared.columns, [r.cells() for r in compared.rows])
        click.echo(compared.summary())
        for side, problems in compared.alone():
            click.echo(f"only {side}: {len(problems)} problems", err=True)


def _write_page(compared: Compared, folder: Path) -> Path:
    """Writes ``compare.html``."""
    from tuner.report.pages import figure_block, page, written

    with written(folder):
        from tuner.report.figures import comparison

        title = f"{compared.other} against {compared.one}"
        about = "A ratio above 1 says that the second is faster; intervals are of 95 %."
        blocks = [
            {"lines": [about, compared.summary()]},
            figure_block(comparison(compared.to_json()), "ratios"),
            {
                "columns": [*compared.columns, "A", "B"],
                "rows": [[*row.cells(), *row.configs] for row in compared.rows],
            },
            *({"lines": [f"Only {side}: {'; '.join(problems)}"]} for side, problems in compared.alone()),
        ]
        path = folder / "compare.html"
        path.write_text(page(title, blocks), encoding="utf-8")
    return path
