"""Finds the records of a study, so that it can be shown: by its name, or by its problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from tuner.errors import NothingFound, TunerError, UnknownName
from tuner.lookup.asking import parse_key
from tuner.python.tuned import Tuned
from tuner.report.plots import Seen, study_figures, write_study
from tuner.results.record import ProblemKey, Record, Role, rank_in_time
from tuner.study.requests import database_url

if TYPE_CHECKING:
    from tuner.store import Store

#: Studies that a message lists.
LISTED = 10


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


@dataclass(frozen=True)
class Study:
    """A study as records tell of it.

    Attributes:
        name: Its name.
        records: Its records, in order of measurement.
    """

    name: str
    records: Sequence[Record]

    @property
    def last(self) -> str:
        """When its last record was measured."""
        return max(rank_in_time(each.measured_at) for each in self.records)


def show(what: object, **options: Unpack[ShowOptions]) -> dict[str, Any]:
    """Figures of a study: history, importance, pairs, parallel, failures, time.

    Args:
        what: What `tuner.tune` returned, a problem in words, a `tuner.Problem`, or a study's name.
        options: See `ShowOptions`.

    Returns:
        Figures of Plotly by name; each can be shown in a notebook.

    Raises:
        NothingFound: Nothing is recorded of it.
        UnknownName: There is no such option.
    """
    for name in options:
        if name not in ShowOptions.__annotations__:
            raise UnknownName("option", name, ShowOptions.__annotations__)
    seen = what.seen() if isinstance(what, Tuned) else study_seen(what, options)
    if options.get("folder"):
        write_study(seen, Path(options["folder"]))
    return study_figures(seen)


def study_seen(what: object, options: ShowOptions) -> Seen:
    """A study of the database, as figures take it.

    Raises:
        NothingFound: Nothing is recorded of it; the message lists studies that there are.
    """
    from tuner.store import Store

    with Store.open(database_url(options.get("db") or ""), read_only=True) as store:
        found = _by_name(store, what) or _of_problem(store, what, options)
        champion = None
        trials = [each for each in found.records if each.role is Role.TRIAL]
        if trials:
            first = trials[-1]
            champion = store.champion(first.problem, first.device, first.regime)
    own = {each.id for each in found.records}
    record = champion.record if champion is not None and champion.record.id in own else None
    baselines = [each for each in found.records if each.role is Role.BASELINE]
    baseline = champion.baseline if record is not None and champion is not None else None
    return Seen(found.name, trials, baseline or (baselines[-1] if baselines else None), record)


def studies_of(records: Sequence[Record]) -> list[Study]:
    """The studies that records are of, the latest first."""
    by_name: dict[str, list[Record]] = {}
    for each in records:
        if each.study:
            by_name.setdefault(each.study, []).append(each)
    return sorted((Study(name, own) for name, own in by_name.items()), key=lambda each: each.last, reverse=True)


def _by_name(store: Store, what: object) -> Study | None:
    found = store.records(study=what) if isinstance(what, str) else []
    return Study(str(what), found) if found else None


def _of_problem(store: Store, what: object, options: ShowOptions) -> Study:
    key = _key(store, what)
    regime, device = options.get("regime"), options.get("device")
    every = store.records(problem=key, device=device or None)
    found = studies_of([each for each in every if regime in (None, "", each.regime)])
    found = [each for each in found if any(record.role is Role.TRIAL for record in each.records)]
    if not found:
        raise NothingFound(f"no trial of {key} is recorded here; tune it first, or name another by --db")
    return found[0]


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
