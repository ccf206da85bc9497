"""What lookups have read, kept while it is true, in this process."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.lookup.answers import Question
from tuner.lookup.predictor import predictor
from tuner.lookup.tuned import Subject, Tuned, gather
from tuner.results.record import Champion, ProblemKey
from tuner.store.published import Published, devices, entries, standing, tuned_folder

if TYPE_CHECKING:
    from tuner.store import Store

T = TypeVar("T")

#: Subjects that are kept while nothing changes; every catalogue that is read anew has its own.
SUBJECTS_KEPT = 16
#: Answers kept while nothing changes.
ANSWERS_KEPT = 10_000
#: State of store and files on which answers rest.
State = tuple[Any, ...]


@dataclass(frozen=True)
class Snapshot:
    """A store, or none, and the published results, in their present state.

    Attributes:
        store: Where records are; None without a database.
        published: Folder of published results; the project's own when None.
        state: Changes whenever an answer might.
    """

    store: Store | None
    published: Path | None
    state: State

    @classmethod
    def open(cls, store: Store | None, published: Path | None = None) -> Snapshot:
        """Looks at the present state, which takes next to no time."""
        stamp: tuple[int, ...] = ()
        if store is not None:
            from tuner.store.matrix import stamp as stamp_of

            stamp = stamp_of(store)
        return cls(store, published, (*stamp, *_files(str(published or tuned_folder()))))

    @property
    def _kept(self) -> dict[Any, Any]:
        """What is kept of this store and folder in this state."""
        kept = _KEPT.setdefault(self.store if self.store is not None else _NO_STORE, {})
        if kept.get(self.published, (None,))[0] != self.state:
            kept[self.published] = self.state, {}
        found: dict[Any, Any] = kept[self.published][1]
        return found

    def tuned(self, subject: Subject, catalogue: Catalogue) -> list[Tuned]:
        """The tuned problems of a subject, by kernels as they are now."""
        kept, key = self._kept.setdefault("subjects", {}), (subject, id(catalogue))
        if key not in kept:
            if len(kept) >= SUBJECTS_KEPT:
                kept.clear()
            # While the catalogue is kept, no other has its id.
            kept[key] = gather(self.store, subject, catalogue, self.published), catalogue
        found: list[Tuned] = kept[key][0]
        return found

    def remembered(self, subject: Subject, catalogue: Catalogue, kernel: str = "") -> Any:
        """What the tuned problems of a subject say of others, by all kernels or one; None without predictor."""
        tuned, extra = self.tuned(subject, catalogue), predictor()
        kernels = [
            each
            for each in catalogue.kernels
            if (each.operation, each.target) == (subject.operation, subject.kind) and kernel in ("", each.name)
        ]
        if not tuned or extra is None:
            return None
        kept = self._kept.setdefault("remembered", {})
        found: tuple[Any, list[Tuned]] | None = kept.get((subject, id(catalogue), kernel))
        if found is None or found[1] is not tuned:
            found = kept[subject, id(catalogue), kernel] = extra.remembered(tuned, kernels), tuned
        return found[0]

    def once(self, key: tuple[Any, ...], answer: Callable[[], T], resting_on: object) -> T:
        """What was answered to a question in this state, or is now.

        Args:
            key: The question; its ids are of `resting_on`.
            answer: Answers it.
            resting_on: Is kept with the answer, so that nothing else has its id.
        """
        answers = self._kept.setdefault("answers", {})
        kept = answers.get(key)  # another thread may clear them at any moment
        if kept is None:
            kept = answer(), resting_on
            if len(answers) >= ANSWERS_KEPT:
                answers.clear()
            answers[key] = kept
        found: T = kept[0]
        return found

    def inherit(self, earlier: Snapshot, holds: Callable[[Subject], bool]) -> None:
        """Takes over what an earlier state has read, before the first question.

        Subjects that have changed since are read again now.

        Args:
            earlier: The state, of the same devices, published results and retractions.
            holds: Whether nothing of a subject has changed since.
        """
        before, kept = earlier._kept, self._kept
        for key, value in list(before.items()):
            if isinstance(key, tuple):
                kept[key] = value
        subjects = kept.setdefault("subjects", {})
        for (subject, number), read in list(before.get("subjects", {}).items()):
            if holds(subject):
                subjects[subject, number] = read
            else:
                self.tuned(subject, read[1])

    def known(self, key: Any, read: Callable[[], T]) -> T:
        """What was read in this state under a key, or is now."""
        kept = self._kept
        if key not in kept:
            kept[key] = read()
        found: T = kept[key]
        return found

    def standing(self, operation: str, device: tuple[str, str] | None = None) -> list[Published]:
        """Published results that the store has not taken back, of all devices or of one of a kind and name."""
        return self.known(
            ("standing", operation, device),
            lambda: standing(entries(operation, self.published, device), self.store),
        )

    def devices(self) -> list[DeviceInfo]:
        """Every device that there are records or published results of; the store's own last."""

        def read() -> list[DeviceInfo]:
            own = self.store.devices() if self.store is not None else []
            return [*devices(self.published), *own]

        return self.known("devices", read)

    def models(self, operation: str, regime: str, dtype: str = "") -> Sequence[Any]:
        """The models of an operation, one for each device that has one, of a dtype where there are such."""
        extra, key = predictor(), ("models", operation, regime, dtype)
        if extra is None:
            return ()
        where = self.published, self.store
        return self.known(key, lambda: extra.models(operation, regime, *where, dtype))

    def has_problem(self, problem: ProblemKey) -> bool:
        """Whether the store has any record of a problem, on whatever device."""
        if self.store is None:
            return False
        from tuner.store.matrix import problems_after

        store, known = self.store, _PROBLEMS.setdefault(self.store, {})

        def read() -> bool:
            known.update(problems_after(store, max(known.values(), default=0)))
            return True

        return self.known("problems", read) and problem in known

    def published_champion(self, question: Question) -> Champion | None:
        """The published champion of this very problem and device."""
        device = question.device.kind, question.device.name
        by_place = self._published(question.problem.operation, device)
        found = by_place.get((question.problem, question.regime), ())
        return next((each for each in found if question.kernel in ("", each.record.kernel)), None)

    def has_published(self, problem: ProblemKey, regime: str) -> bool:
        """Whether there is a published champion of a problem, on whatever device."""
        return (problem, regime) in self._published(problem.operation)

    def _published(
        self, operation: str, device: tuple[str, str] | None = None
    ) -> dict[tuple[ProblemKey, str], list[Champion]]:
        """Published champions by problem and regime, of all devices or of one of a kind and name."""

        def read() -> dict[tuple[ProblemKey, str], list[Champion]]:
            found: dict[tuple[ProblemKey, str], list[Champion]] = {}
            for each in self.standing(operation, device):
                record = each.champion.record
                found.setdefault((record.problem, record.regime), []).append(each.champion)
            return found

        return self.known(("published", operation, device), read)


def _files(folder: str) -> list[tuple[str, int, int]]:
    """Files of results and models, each with the time of its last change and its size."""
    found: list[tuple[str, int, int]] = []
    folders = [each.path for each in _listed(folder) if each.is_dir()]
    for path in (*folders, *(f"{each}/models" for each in folders)):
        for each in _listed(path):
            if each.name.endswith(".json"):
                seen = each.stat()
                found.append((each.path, seen.st_mtime_ns, seen.st_size))
    return sorted(found)


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


#: Store -> the problems that it has records of, with their numbers there: rows are only ever added.
_PROBLEMS: weakref.WeakKeyDictionary[Any, dict[ProblemKey, int]] = weakref.WeakKeyDictionary()


class _NoStore:
    """Stands for the absence of a database."""


_NO_STORE = _NoStore()
_KEPT: weakref.WeakKeyDictionary[Any, dict[Any, tuple[State, dict[Any, Any]]]] = weakref.WeakKeyDictionary()
