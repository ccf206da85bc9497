"""Compares the champions of two devices, drivers, versions, days or studies, problem by problem."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

from tuner.errors import InputError, NothingFound, UnknownName
from tuner.results.measurement import Comparison, Outcome, compare, compare_apart
from tuner.results.record import Record, Role
from tuner.store import Store, streams
from tuner.store.streams import Selection
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
#: Roles in the order in which they speak for a config.
_TRUSTED = (Role.FINAL, Role.TRIAL)


class CompareOptions(TypedDict, total=False):
    """What `compare` takes beside its two sides.

    Attributes:
        operation: Only problems of this operation.
        db: URL of the database; by default that of ``TUNER_DB``, else ``studies.db`` in this folder.
    """

    operation: str
    db: str


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
        for name, told in KINDS.items():
            if any(told(each) == text for each in known):
                return cls(name, text)
        raise InputError(
            f"a side is a device, a driver, a version, a date, a study or a database that records know, got "
            f"{text!r}; write KIND:VALUE, with KIND one of {', '.join([*KINDS, 'night', 'db'])}"
        )

    def has(self, record: Record) -> bool:
        """Whether a record is of this side."""
        if self.kind == "db":
            return True
        told = KINDS[self.kind](record)
        if self.kind == "date" and (dates := _DATES.fullmatch(self.value)):
            return dates[1] <= told <= (dates[2] or dates[1])
        if self.kind in ("driver", "compiler", "library"):
            return told == self.value or self.value in told.split()
        return told == self.value

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


@dataclass(frozen=True)
class Row:
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
    def change(self) -> float:
        """How much changed, either way."""
        return abs(math.log(self.comparison.ratio))

    def to_json(self) -> dict[str, Any]:
        """Plain values by column."""

        def config(record: Record) -> str:
            return " ".join([record.kernel, *(f"{name}={value}" for name, value in record.config.items())])

        told = self.comparison
        return {
            "problem": self.problem, "regime": self.regime, "ratio": told.ratio, "low": told.low,
            "high": told.high, "verdict": told.verdict, "one_s": self.one.measurement.time_s,
            "other_s": self.other.measurement.time_s, "library_ratio": self.library,
            "one": config(self.one), "other": config(self.other),
            "same_config": config(self.one) == config(self.other), "timed_in_turn": self.together,
        }  # fmt: skip


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
    rows: Sequence[Row]
    only_one: Sequence[str] = field(default=())
    only_other: Sequence[str] = field(default=())

    def __str__(self) -> str:
        return self.markdown()

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return math.exp(sum(math.log(each.comparison.ratio) for each in self.rows) / len(self.rows))

    def counts(self) -> dict[str, int]:
        """Verdict -> problems; that of the second side against the first."""
        verdicts = [each.comparison.verdict for each in self.rows]
        return {name: verdicts.count(name) for name in ("faster", "same", "slower", "ambiguous")}

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "one": self.one, "other": self.other, "mean_ratio": self.mean, "counts": self.counts(),
            "problems": [each.to_json() for each in self.rows], "only_one": list(self.only_one),
            "only_other": list(self.only_other),
        }  # fmt: skip

    def markdown(self) -> str:
        """The rows as a table of Markdown."""
        lines = [
            f"| problem | {self.one} | {self.other} | ratio | interval | verdict | library |",
            "|---|---|---|---|---|---|---|",
        ]
        for each in self.rows:
            told, library = each.comparison, each.library
            lines.append(
                f"| {each.problem}, {each.regime} | {_us(each.one)} | {_us(each.other)} | {told.ratio:.3f} | "
                f"{told.low:.3f} to {told.high:.3f} | {told.verdict} | {f'{library:.3f}' if library else ''} |"
            )
        return "\n".join(lines)

    def _repr_markdown_(self) -> str:
        return self.markdown()


def _us(record: Record) -> str:
    return f"{(record.measurement.time_s or 0.0) * 1e6:.4g} us"


def compare_sides(one: str, other: str, **options: Unpack[CompareOptions]) -> Compared:
    """Compares two devices, drivers, versions, days, studies or databases.

    A side is written ``device:NVIDIA H200``, ``driver:580.65``, ``version:2.1``, ``night:2026-11-20``,
    ``date:2026-11-01..2026-11-07``, ``study:NAME`` or ``db:URL``; the kind may be left out where records know
    the value. For each problem and regime the fastest config of the finals speaks for a side (of the trials,
    where no finals were held). Records of one session are compared round by round, others by the intervals of
    their medians, which know nothing of drift.

    Args:
        one: The first side.
        other: The second.
        options: See `CompareOptions`.

    Raises:
        InputError: A side cannot be read.
        NothingFound: The sides have no problem in common.
        UnknownName: There is no such option.
    """
    for name in options:
        if name not in CompareOptions.__annotations__:
            raise UnknownName("option", name, CompareOptions.__annotations__)
    url, wanted = database_url(options.get("db") or ""), Selection(options.get("operation") or "")
    known = [] if all(_of_database(each) for each in (one, other)) else _read(url, wanted)
    sides = [Side.of(each, known) for each in (one, other)]
    records = [_read(each.value, wanted) if each.kind == "db" else known for each in sides]
    chosen = [_best(found, side) for found, side in zip(records, sides, strict=True)]
    libraries = [_libraries(found, side) for found, side in zip(records, sides, strict=True)]
    common = [key for key in chosen[0] if key in chosen[1]]
    if not common:
        raise NothingFound(
            f"{sides[0]} has {len(chosen[0])} problems and {sides[1]} has {len(chosen[1])}, none in common; "
            "`tuner records stats` shows what there is"
        )
    rows = [_row(key, chosen, libraries) for key in common]
    rows.sort(key=lambda each: -each.change)
    alone = [
        tuple(sorted(f"{problem}, {regime}" for problem, regime in own if (problem, regime) not in common))
        for own in chosen
    ]
    return Compared(str(sides[0]), str(sides[1]), rows, alone[0], alone[1])


def _of_database(text: str) -> bool:
    with contextlib.suppress(InputError):
        return Side.of(text).kind == "db"
    return False


def _read(url: str, wanted: Selection) -> list[Record]:
    """Timed records of a database; samples of trials that were stopped early say nothing."""
    with Store.open(url, read_only=True) as store:
        return [
            each
            for each in streams.records(store, wanted)
            if each.measurement.outcome is Outcome.MEASURED and each.measurement.samples_s
        ]


_Key = tuple[str, str]


def _best(records: Iterable[Record], side: Side) -> dict[_Key, Record]:
    """Problem and regime -> what speaks for the side: of the latest finals the fastest, or the best trial."""
    by_key: dict[_Key, list[Record]] = {}
    for each in records:
        if each.role in _TRUSTED and side.has(each):
            by_key.setdefault((str(each.problem), each.regime), []).append(each)
    found = {}
    for key, own in by_key.items():
        finals = [each for each in own if each.role is Role.FINAL]
        if finals:
            last = max(finals, key=lambda each: each.measured_at).session
            own = [each for each in finals if each.session == last]
        found[key] = min(own, key=lambda each: each.measurement.time_s or math.inf)
    return found


def _libraries(records: Iterable[Record], side: Side) -> dict[_Key, Record]:
    """Problem and regime -> the library's last time."""
    own = [each for each in records if each.role is Role.BASELINE and side.has(each)]
    own.sort(key=lambda each: each.measured_at)
    return {(str(each.problem), each.regime): each for each in own}


def _row(key: _Key, chosen: Sequence[Mapping[_Key, Record]], libraries: Sequence[Mapping[_Key, Record]]) -> Row:
    one, other = chosen[0][key], chosen[1][key]
    ours, theirs = other.measurement.samples_s, one.measurement.samples_s
    together = bool(one.session) and one.session == other.session and len(ours) == len(theirs)
    found = (compare if together else compare_apart)(ours, theirs)
    times = [each[key].measurement.time_s if key in each else None for each in libraries]
    library = times[0] / times[1] if times[0] and times[1] else None
    return Row(*key, one, other, found, library, together)
