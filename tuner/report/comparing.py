"""``tuner compare``: champions of two devices, drivers, versions, days or studies, problem by problem."""

from __future__ import annotations

import csv
import functools
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tuner.cli.formatting import print_json, table
from tuner.cli.options import OPERATION, data_options
from tuner.errors import InputError, NothingFound
from tuner.results.measurement import Outcome, compare_apart
from tuner.results.measurement import compare as compare_in_turn
from tuner.results.record import Record, Role
from tuner.results.units import config_text, duration
from tuner.store import Store, listing
from tuner.study.requests import database_url

#: Versions of which a word is enough.
VERSIONS = ("driver", "compiler", "library")
#: What a side may be chosen by -> what a record has of it.
KINDS: Mapping[str, Callable[[Record], str]] = {
    "device": lambda record: record.device.name, "uuid": lambda record: record.device.uuid,
    **{name: lambda record, name=name: record.versions.get(name, "") for name in VERSIONS},  # type: ignore[misc]
    "version": lambda record: record.versions.get("tuner", ""), "study": lambda record: record.study,
    "date": lambda record: record.measured_at[:10],
}  # fmt: skip
#: A day, or from one to another.
_DATES = re.compile(r"(\d{4}-\d\d-\d\d)(?:\.\.(\d{4}-\d\d-\d\d))?")
#: Problem in words, and regime.
_Key = tuple[str, str]


def read_side(text: str, known: Callable[[], Sequence[Record]]) -> tuple[str, str]:
    """Reads ``KIND:VALUE``, a date, a database's file, or a value that some known record has.

    Returns:
        One of `KINDS`, or ``db``; and what a record has to have, or the URL of a database.

    Raises:
        InputError: The text says none of these.
    """
    kind, colon, value = text.partition(":")
    if colon and kind in (*KINDS, "night", "db"):
        return ("date" if kind == "night" else kind), value
    if _DATES.fullmatch(text):
        return "date", text
    if "://" in text or (text.endswith(".db") and Path(text).is_file()):
        return "db", text if "://" in text else f"sqlite:///{text}"
    for name, value_of in KINDS.items():
        if any(value_of(record) == text for record in known()):
            return name, text
    raise InputError(
        f"a side is a device, a driver, a version, a date, a study or a database that records know, got "
        f"{text!r}; write KIND:VALUE, with KIND one of {', '.join([*KINDS, 'night', 'db'])}"
    )


def is_of(record: Record, kind: str, value: str) -> bool:
    """Whether a record is of a side by one of `KINDS`. Of versions, such as the library's, a word is enough."""
    own = KINDS[kind](record)
    if kind == "date" and (dates := _DATES.fullmatch(value)):
        return dates[1] <= own <= (dates[2] or dates[1])
    return own == value or (kind in VERSIONS and value in own.split())


@dataclass(frozen=True)
class Compared:
    """Two sides, problem by problem, those that changed most first.

    Attributes:
        one: The first side.
        other: The second.
        problems: A JSON object for each problem that both have: ``problem``, ``regime``; the ``ratio`` of times
            with its interval from ``low`` to ``high``, above 1 if the second side is faster; its ``verdict``;
            ``one_s``, ``other_s`` and the configs, ``one`` and ``other``; ``library_ratio``, the library's;
            ``timed_in_turn``, true if both were timed in turn, in one session.
        only_one: Problems of the first side alone.
        only_other: Problems of the second alone.
    """

    one: str
    other: str
    problems: Sequence[dict[str, Any]]
    only_one: Sequence[str] = ()
    only_other: Sequence[str] = ()

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return math.exp(sum(math.log(row["ratio"]) for row in self.problems) / len(self.problems))

    def counts(self) -> dict[str, int]:
        """Verdict -> problems; that of the second side against the first."""
        verdicts = [row["verdict"] for row in self.problems]
        return {name: verdicts.count(name) for name in ("faster", "same", "slower", "ambiguous")}

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {**vars(self), "mean_ratio": self.mean, "counts": self.counts()}

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows as people read them."""
        columns = ["problem", self.one, self.other, "ratio", "interval", "verdict", "library", "config"]
        return columns, [_cells(row) for row in self.problems]

    def markdown(self) -> str:
        """The rows as a table of Markdown."""
        columns, rows = self.table
        lines = [columns, ["---"] * len(columns), *rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    __str__ = _repr_markdown_ = markdown

    def summary(self) -> str:
        """The mean and the verdicts of all problems, in a sentence."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts().items() if count)
        return f"geometric mean {self.mean:.3f} over {len(self.problems)} problems: {counts}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    interval = f"{row['low']:.3f} to {row['high']:.3f}" + ("" if row["timed_in_turn"] else ", apart")
    return [
        f"{row['problem']}, {row['regime']}", duration(row["one_s"]), duration(row["other_s"]),
        f"{row['ratio']:.3f}", interval, row["verdict"],
        f"{row['library_ratio']:.3f}" if row["library_ratio"] else "",
        "same" if row["same_config"] else "another",
    ]  # fmt: skip


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
    selection = listing.Selection(operation)
    known = functools.cache(lambda: _read(database_url(db), selection))
    names, sides = [], []
    for text in (one, other):
        kind, value = read_side(text, known)
        records = _read(value, selection) if kind == "db" else known()
        names.append(f"{kind} {value}")
        sides.append(_speakers(one for one in records if kind == "db" or is_of(one, kind, value)))
    common = [key for key in sides[0] if key in sides[1]]
    if not common:
        raise NothingFound(
            f"{names[0]} has {len(sides[0])} problems and {names[1]} has {len(sides[1])}, none in common; "
            "`tuner records stats` shows what there is"
        )
    rows = [_row(key, *sides[0][key], *sides[1][key]) for key in common]
    rows.sort(key=lambda row: -abs(math.log(row["ratio"])))
    only = [sorted(", ".join(key) for key in own if key not in common) for own in sides]
    return Compared(names[0], names[1], rows, *only)


def _read(url: str, selection: listing.Selection) -> list[Record]:
    """Timed records of a database; samples of trials that were stopped early say nothing."""
    with Store.open(url, read_only=True) as store:
        return [
            record
            for record in listing.stream(store, Record, selection)
            if record.measurement.outcome is Outcome.MEASURED and record.measurement.samples_s
        ]


def _speakers(records: Iterable[Record]) -> dict[_Key, tuple[Record, float | None]]:
    """For each problem the fastest of the latest finals, or the best trial; and the library's last time."""
    by_key: dict[_Key, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.measured_at):
        by_key.setdefault((str(record.problem), record.regime), []).append(record)
    speakers = {}
    for key, own in by_key.items():
        libraries = [record.measurement.time_s for record in own if record.role is Role.BASELINE]
        finals = [record for record in own if record.role is Role.FINAL]
        rivals = [record for record in finals if record.session == finals[-1].session]
        rivals = rivals or [record for record in own if record.role is Role.TRIAL]
        if rivals:
            best = min(rivals, key=lambda record: record.measurement.time_s or math.inf)
            speakers[key] = best, libraries[-1] if libraries else None
    return speakers


def _row(
    key: _Key, one: Record, library_s: float | None, other: Record, other_library_s: float | None
) -> dict[str, Any]:
    ours, theirs = other.measurement.samples_s, one.measurement.samples_s
    in_turn = bool(one.session) and one.session == other.session and len(ours) == len(theirs)
    comparison = (compare_in_turn if in_turn else compare_apart)(ours, theirs)
    configs = [f"{record.kernel} {config_text(record.config)}".strip() for record in (one, other)]
    return {
        "problem": key[0], "regime": key[1], "ratio": comparison.ratio, "low": comparison.low,
        "high": comparison.high, "verdict": comparison.verdict, "one_s": one.measurement.time_s,
        "other_s": other.measurement.time_s,
        "library_ratio": library_s / other_library_s if library_s and other_library_s else None,
        "one": configs[0], "other": configs[1], "same_config": configs[0] == configs[1],
        "timed_in_turn": in_turn,
    }  # fmt: skip


@click.command()
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--operation", shell_complete=OPERATION, default="", help="Only problems of this operation.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--markdown", is_flag=True, help="Print a table of Markdown.")
@data_options
def compare(one: str, other: str, operation: str, as_csv: bool, markdown: bool, db: str, as_json: bool) -> None:
    """Compare B with A, problem by problem, those that changed most first.

    A and B are device:NAME, driver:VERSION, compiler:, library:, version: (of tile-tuner), night:DATE,
    date:FROM..TO, study:NAME or db:URL; the kind may be left out where records know the value. A ratio above 1
    says that B is faster. Its interval is of 95 %; the library's ratio shows what the machine itself did.
    """
    compared = compare_sides(one, other, operation=operation, db=db)
    if as_json:
        print_json(compared.to_json())
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, list(compared.problems[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(compared.problems)
    elif markdown:
        click.echo(compared.markdown())
    else:
        table(f"{compared.other} against {compared.one}", *compared.table)
        click.echo(compared.summary())
        for side, problems in ((compared.one, compared.only_one), (compared.other, compared.only_other)):
            if problems:
                click.echo(f"only {side}: {len(problems)} problems", err=True)
