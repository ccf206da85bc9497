"""A snapshot that is open for questions: it answers each as before, and remembers what it answered."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.errors import TunerError
from tuner.lookup import Answer, answer_within
from tuner.lookup.answers import EXACT, PREDICTED, UNMEASURED, declared_problem
from tuner.lookup.declared import builtin_now
from tuner.lookup.demand import COLD, DEMAND, Tally
from tuner.lookup.snapshot import Snapshot
from tuner.requests.answers import told_as_json
from tuner.requests.questions import Asked
from tuner.results.record import ProblemKey
from tuner.store.frozen import FrozenStore
from tuner.store.snapshots import Manifest

T = TypeVar("T")

#: Answers that a view remembers.
MOST_ANSWERS = 20_000
#: Size of the dims of the problem that is asked first.
WARM_SIZE = 1001
#: Matches of answers that rest on records of other problems.
FROM_ELSEWHERE = ("similar-device", "default")


@dataclass(frozen=True)
class Body:
    """An answer as it is sent.

    Attributes:
        text: JSON, without the number of the snapshot and the closing brace.
        answer: What it was made of.
        tally: Counts how often it was asked; None for an exact answer, and for an earlier snapshot.
    """

    text: str
    answer: Answer
    tally: Tally | None = None

    def count(self) -> None:
        """Counts a question."""
        if self.tally is not None:
            self.tally.hits[0] += 1

    def with_number(self, number: int, more: str = "") -> bytes:
        """The whole JSON text of a snapshot."""
        return f'{self.text},"snapshot":{number}{more}}}'.encode()


@dataclass(frozen=True)
class Touched:
    """What came between two snapshots.

    Attributes:
        recorded: Problems with new records.
        crowned: Problems with new champions.
    """

    recorded: frozenset[ProblemKey]
    crowned: frozenset[ProblemKey]

    @property
    def operations(self) -> set[str]:
        """Their operations."""
        return {each.operation for each in self.recorded | self.crowned}

    def spares(self, problem: ProblemKey, told: Answer) -> bool:
        """True if an answer is the same after it."""
        by_records = told.match == PREDICTED and told.expected_loss >= UNMEASURED
        if told.match in FROM_ELSEWHERE or by_records:
            return problem.operation not in self.operations
        if told.match == "exact" and not told.provisional:
            return problem not in self.crowned
        return problem not in self.recorded | self.crowned


class View:
    """A snapshot, open for questions from several threads.

    Attributes:
        manifest: What it rests on.
        differs: What is not as it was when the snapshot was taken, in words; empty if answers repeat exactly.
        snapshot: What lookups read.
    """

    def __init__(
        self, manifest: Manifest, store: FrozenStore, published: Path, here: Callable[[str], DeviceInfo | str],
        differs: str = "", demand: str = "",
    ) -> None:  # fmt: skip
        """Opens a snapshot.

        Args:
            manifest: What it rests on.
            store: The database as it was then; closed with the view.
            published: Published results as they were then.
            here: What the name of a device means on this machine.
            differs: What is not as it was.
            demand: Database in which questions without an exact answer are counted; empty to count none.
        """
        self.manifest, self.differs, self._demand = manifest, differs, demand
        self.snapshot = Snapshot(store, published, ("snapshot", manifest.number))
        self._store, self._here = store, here
        self._bodies: dict[Asked, Body] = {}
        self._once: dict[Hashable, Any] = {}

    def once(self, key: Hashable, work: Callable[[], T]) -> T:
        """What was worked out under a key before, or is now; it is the same as long as the snapshot is."""
        if key not in self._once:
            self._once[key] = work()
        found: T = self._once[key]
        return found

    def close(self) -> None:
        """Ends its connections."""
        self._store.close()

    @property
    def store(self) -> FrozenStore:
        """The database as it was then."""
        return self._store

    def answer(self, asked: Asked, catalogue: Catalogue | None = None) -> Answer:
        """What a lookup answers.

        Raises:
            NothingFound: No config is legal.
            UnknownName: The device is unknown.
        """
        where = self._here(asked.device)
        return answer_within(
            self.snapshot, asked.problem, where, asked.regime, asked.kernel or None, catalogue,
            confirmed=asked.confirmed,
        )  # fmt: skip

    def is_known(self, asked: Asked) -> bool:
        """Whether a question was answered before."""
        return asked in self._bodies

    def is_quick(self, asked: Asked) -> bool:
        """Whether an answer takes a look at records only, and no model or search for similar ones."""
        of = asked.problem, asked.regime
        return self._store.has_champion(*of) or self.snapshot.has_published(*of)

    def body(self, asked: Asked) -> Body:
        """The answer to a question, ready to be sent.

        Raises:
            NothingFound: As `answer`.
            UnknownName: As `answer`.
        """
        known = self._bodies.get(asked)
        if known is None:
            found = self.answer(asked)
            told = found.to_json()
            del told["age_days"]  # it would differ from one moment to the next
            known = Body(told_as_json(told)[:-1], found, self._tally(asked, found))
            if len(self._bodies) >= MOST_ANSWERS:
                self._bodies.clear()
            self._bodies[asked] = known
        return known

    def _tally(self, asked: Asked, found: Answer) -> Tally | None:
        """What counts a question whose answer is not exact, where that is of use to nights."""
        if not self._demand or found.match == EXACT or found.question is None:
            return None
        if asked.regime != COLD or asked.kernel or asked.confirmed:
            return None
        problem = declared_problem(found.question, builtin_now())
        if problem is None:
            return None
        tally = Tally()
        DEMAND.add(problem, found.question.device, found, tally, self._demand)
        return tally

    def warm(self, layouts: int | None = None) -> None:
        """Reads what the first questions need: kernels, models and what is worked out from them.

        Args:
            layouts: Of so many dtypes and layouts of each operation; of all when None.
        """
        for operation in builtin_now().operations.values():
            with contextlib.suppress(TunerError):  # a question will tell
                for asked in operation.dtypes:
                    for model in self.snapshot.models(operation.name, COLD, asked):
                        kinds = [kind for kind in model.traits if kind[0] == asked]
                        for dtype, layout in kinds[:layouts]:
                            problem = operation.problem(dict.fromkeys(operation.dims, WARM_SIZE), dtype, layout)
                            answer_within(self.snapshot, ProblemKey.of(problem), self._here(model.device.name))

    def inherit(self, earlier: View, touched: Touched) -> None:
        """Takes over what an earlier snapshot has read and answered, as far as it still holds.

        Whatever else it had read is read again now, so that no question has to wait for that.
        """
        operations = touched.operations
        self.snapshot.inherit(earlier.snapshot, lambda subject: subject.operation not in operations)
        for asked, body in list(earlier._bodies.items()):
            if touched.spares(asked.problem, body.answer):
                self._bodies[asked] = body


def etag(body: bytes) -> str:
    """The entity tag of a body."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def manifest_json(view: View) -> dict[str, Any]:
    """A snapshot as a JSON object."""
    return view.manifest.to_json() | {"differs": view.differs}


def retraction_json(of: str, made_at: str, reason: str) -> str:
    """What marks an answer whose record was retracted after the snapshot, as more JSON text."""
    return f',"retracted":{json.dumps({"id": of, "made_at": made_at, "reason": reason})}'
