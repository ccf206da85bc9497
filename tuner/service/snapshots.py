"""Snapshots of a database: the present one, which is replaced when something changes, and earlier ones.

A manifest numbers what answers rest on; a store opens as it was at one of them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic_core import to_json

from tuner.declare.catalogue import Catalogue
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.errors import NothingFound, TunerError
from tuner.lookup import Answer, answer
from tuner.lookup.answers import EXACT, INVARIANT, PREDICTED, UNMEASURED
from tuner.lookup.asking import completed_device
from tuner.lookup.demand import COLD, DEMAND
from tuner.lookup.snapshot import ANSWER, Snapshot
from tuner.lookup.stale import builtin_now
from tuner.results.record import ProblemKey, utc_now
from tuner.store import Store, opening, retracting, rows, tables
from tuner.store.published import tuned_folder
from tuner.store.reading import Reader
from tuner.version import __version__

#: Size of the dims of the problem that is asked first.
WARM_SIZE = 1001
#: Matches of answers that rest on records of other problems.
FROM_ELSEWHERE = ("similar-device", "default", INVARIANT)
#: A snapshot is followed by the next after this many times as long as it took to open, at the least; but a
#: rollback answers within 5 s.
REST, MOST_REST_S = 10.0, 3.5
#: Earlier snapshots that are kept open.
KEPT_OPEN = 3

#: What the name of a device means on this machine.
Naming = Callable[[str], DeviceInfo | str]
#: A row: its ``number`` in this database, when it was made, ``positions`` and ``code``. Positions tell the last
#: row of each table that answers rest on. Rows are only ever added, so the rows up to there are the same at any
#: later time.
Manifest = sa.Row[Any]


# --- manifests -----------------------------------------


def take(store: Store, code: str) -> Manifest:
    """The snapshot of what is there now: the last one if nothing has changed since, else a new one.

    Writers take turns, so no row before the last one can appear afterwards.

    Args:
        store: The store.
        code: Digest of the files that answers rest on.

    Raises:
        StoreTrouble: The database cannot be written.
    """
    of = tables.snapshots
    with store.writing() as connection:
        now = rows.positions(connection)
        last = connection.execute(sa.select(of).order_by(of.c.number.desc()).limit(1)).one_or_none()
        if last is not None and (last.positions, last.code) == (now, code):
            return last
        row = {"positions": now, "code": code, "published": "", "made_at": utc_now()}
        return connection.execute(sa.insert(of).values(**row).returning(of)).one()


def manifest_of(store: Reader, number: int) -> Manifest | None:
    """A snapshot by its number; None if there is none."""
    of = tables.snapshots
    return next(iter(store.rows(sa.select(of).where(of.c.number == number))), None)


def changed_problems(store: Reader, before: Mapping[str, int]) -> set[ProblemKey] | None:
    """The problems about which something came after earlier positions; None if it may be about any."""
    crown, numbers = tables.crowns.c, list[Any]()
    general = crown.problem.is_(None) & (crown.number > before.get(tables.crowns.name, 0))
    for table in (tables.records, tables.champions, tables.crowns):
        numbers.append(sa.select(table.c.problem).where(table.c.number > before.get(table.name, 0)))
    changed = sa.select(tables.problems).where(tables.problems.c.number.in_(sa.union(*numbers)))
    with store.reading() as connection:
        if connection.execute(sa.select(crown.number).where(general).limit(1)).first():
            return None
        return set(map(rows.problem_of, connection.execute(changed)))


def as_of(url: str, positions: Mapping[str, int]) -> Store:
    """Opens a database, for reading, as it was at a snapshot.

    Temporary views of the connection, which have the names of the tables, end at the snapshot's last rows. Both
    databases look for temporary relations first, so every query of a store works unchanged.

    Args:
        url: The database.
        positions: Those of the snapshot.

    Raises:
        StoreTrouble: The database cannot be used.
    """
    parts = opening.parsed(url)
    engine = opening.make_engine(parts, read_only=True)
    server = engine.dialect.name == "postgresql"

    def connected(connection: Any, _: Any) -> None:
        cursor, schema = connection.cursor(), "main"
        if server:
            cursor.execute("SET TRANSACTION READ WRITE")  # of nothing but the connection's own views
            cursor.execute("SELECT quote_ident(current_schema())")
            schema = cursor.fetchone()[0]
        for table in rows.ANSWERING:
            rest = f"SELECT * FROM {schema}.{table.name} WHERE number <= {positions.get(table.name, 0)}"
            cursor.execute(f"CREATE TEMP VIEW {table.name} AS {rest}")
        cursor.close()
        if server:
            connection.commit()

    sa.event.listen(engine, "connect", connected)
    return Store(engine, parts.render_as_string(hide_password=True))


# --- questions -----------------------------------------


@dataclass(frozen=True)
class LookupRequest:
    """A question to a lookup.

    Attributes:
        problem: What is to be computed.
        device: A name, a uuid, or a device of the node that answers; empty for that node's own.
        regime: How time is taken.
        kernel: Only this kernel; any if empty.
        confirmed: True for champions only that won again in a fresh process, or were published.
        invariant: Dim whose size must not change the bits of a row; empty for none.
    """

    problem: ProblemKey
    device: str = ""
    regime: str = "cold"
    kernel: str = ""
    confirmed: bool = False
    invariant: str = ""


def json_bytes(data: Any) -> bytes:
    """Compact JSON; NaN and infinities, for which it has no words, are null."""
    return to_json(data, inf_nan_mode="null")


def code() -> str:
    """Version of tile-tuner, and a digest of the kernels, published results and models as they are."""
    tuned = [path for pattern in ("*/*.json", "*/models/*.json") for path in tuned_folder().glob(pattern)]
    paths = sorted(path for path in (*kernels_folder().rglob("*.*"), *tuned) if path.suffix != ".pyc")
    return _code(tuple((path, path.stat().st_mtime_ns) for path in paths if path.is_file()))


@functools.lru_cache(maxsize=4)
def _code(files: tuple[tuple[Path, int], ...]) -> str:
    whole = hashlib.sha256()
    for path, _ in files:
        content = path.read_bytes()
        whole.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return f"{__version__}+{whole.hexdigest()[:16]}"


# --- an open snapshot ----------------------------------


@dataclass(frozen=True)
class AnswerBody:
    """An answer as it is sent.

    Attributes:
        text: JSON in bytes, without the number of the snapshot and the closing brace.
        answer: What it was made of.
    """

    text: bytes
    answer: Answer


class OpenSnapshot:
    """A snapshot, open for questions from several threads.

    Attributes:
        manifest: What it rests on.
        store: The database as it was then.
        naming: What the name of a device means on this machine.
        snapshot: What lookups read, with the answers that were given.
    """

    def __init__(self, manifest: Manifest, store: Store, naming: Naming) -> None:
        """Begins with nothing read."""
        self.manifest, self.store, self.naming = manifest, store, naming
        self.snapshot = Snapshot(store, tuned_folder(), ("snapshot", manifest.number))
        weakref.finalize(self, store.close)  # once no request uses it any more

    def answer(self, lookup: LookupRequest, catalogue: Catalogue | None = None) -> Answer:
        """What a lookup answers.

        Raises:
            NothingFound: No config is legal.
            UnknownName: The device is unknown.
        """
        return answer(
            self.snapshot, lookup.problem, self.naming(lookup.device), lookup.regime, lookup.kernel or None,
            catalogue, confirmed=lookup.confirmed, invariant=lookup.invariant,
        )  # fmt: skip

    def _device(self, name: str) -> DeviceInfo | None:
        """The device of a name; None if there is none, or several."""
        with contextlib.suppress(TunerError):
            return completed_device(self.naming(name), self.snapshot.devices())
        return None

    def is_quick(self, problem: ProblemKey) -> bool:
        """Whether a problem has results, from which it is answered without a model."""
        standing = self.snapshot.standing
        published = self.snapshot.once(
            ("published problems", ""), lambda: {result.champion.record.problem for result in standing("")}
        )
        return problem in published or self.snapshot.has_problem(problem)

    def body(self, lookup: LookupRequest) -> AnswerBody:
        """The answer to a question, ready to be sent.

        Raises:
            NothingFound: As `answer`.
            UnknownName: As `answer`.
        """

        def made() -> AnswerBody:
            answer = self.answer(lookup)
            keys = answer.to_json()
            del keys["age_days"]  # it would differ from one moment to the next
            return AnswerBody(json_bytes(keys)[:-1], answer)

        return self.snapshot.once((ANSWER, lookup), made)

    def warm(self) -> None:
        """Reads what the first questions need: champions, kernels, models and what is worked out from them.

        Of models those of each operation's first dtype: what others work out, 100 MB, waits for a question.
        """
        for operation in builtin_now().operations.values():
            with contextlib.suppress(TunerError):  # a question will tell
                for dtype in operation.dtypes[:1]:
                    for model in self.snapshot.models(operation.name, COLD, dtype):
                        for _, layout in (trait for trait in model.traits if trait[0] == dtype):
                            problem = operation.problem(dict.fromkeys(operation.dims, WARM_SIZE), dtype, layout)
                            lookup = LookupRequest(ProblemKey.of(problem), model.device.name)
                            self.is_quick(lookup.problem)
                            self.body(lookup)

    def inherit(self, earlier: OpenSnapshot) -> None:
        """Takes over what an earlier snapshot has read and answered about problems that have not changed.

        Whatever else it had read is read again now, so that no question has to wait for that. If other answers
        may have changed, too, nothing is taken over. A device that is new changes those that rest on others.
        """
        then, now = earlier.manifest, self.manifest
        others = ("tuner_retractions", "tuner_models")
        if then.code != now.code or any(then.positions.get(name) != now.positions[name] for name in others):
            return
        changed = changed_problems(self.store, then.positions)
        if changed is None:
            return
        operations = {problem.operation for problem in changed}
        is_same = functools.cache(lambda device: self._device(device) == earlier._device(device))
        are_same = earlier.snapshot.devices() == self.snapshot.devices()

        def holds(key: tuple[Any, ...], body: Any) -> bool:
            if not isinstance(body, AnswerBody) or not is_same(key[1].device):
                return False
            problem, answer = key[1].problem, body.answer
            by_records = answer.match == PREDICTED and answer.expected_loss >= UNMEASURED
            if answer.match in FROM_ELSEWHERE or by_records:
                return are_same and problem.operation not in operations
            return problem not in changed

        self.snapshot.inherit(earlier.snapshot, lambda subject: subject.operation not in operations, holds)


# --- all snapshots -------------------------------------


class SnapshotCache:
    """Opens snapshots; safe to use from several threads.

    The present snapshot is replaced by `refresh`, which a thread of its own calls: a question never waits for
    it, and costs no look at the database.

    Attributes:
        present: The present snapshot.
        looked_s: When the database was last looked at with success, by `time.monotonic`.
    """

    def __init__(self, store: Store, url: str, naming: Naming) -> None:
        """Opens the present snapshot.

        Args:
            store: The database, for writing.
            url: Its URL.
            naming: What the name of a device means on this machine.

        Raises:
            StoreTrouble: The database cannot be used.
        """
        self._store, self._url, self._naming = store, url, naming
        self._earlier = functools.lru_cache(maxsize=KEPT_OPEN)(self._open_earlier)
        self._rest_until_s = 0.0
        self.looked_s = time.monotonic()
        self.present = self._open(take(store, code()))

    def view(self, number: int | None) -> OpenSnapshot:
        """A snapshot by its number; the present one without.

        Raises:
            NothingFound: There is none of that number.
        """
        present = self.present
        return present if number in (None, present.manifest.number) else self._earlier(number)

    def _open_earlier(self, number: int) -> OpenSnapshot:
        manifest = manifest_of(self._store, number)
        if manifest is None:
            raise NothingFound(
                f"a snapshot has a number of this database, 1 to {self.present.manifest.number}, got {number}; "
                "an answer without one tells the present number"
            )
        return self._open(manifest)

    def _open(self, manifest: Manifest) -> OpenSnapshot:
        return OpenSnapshot(manifest, as_of(self._url, manifest.positions), self._naming)

    def refresh(self) -> None:
        """Looks for changes, and opens the next snapshot if there are any.

        Raises:
            StoreTrouble: The database cannot be used; the present snapshot stays.
        """
        begun_s, before = time.monotonic(), self.present
        if begun_s < self._rest_until_s:
            return
        now = self._store.positions(), code()
        self.looked_s = time.monotonic()
        if now == (before.manifest.positions, before.manifest.code):
            return
        after = self._open(take(self._store, now[1]))
        after.inherit(before)
        after.warm()
        self.present = after
        now_s = time.monotonic()
        self._rest_until_s = now_s + min(REST * (now_s - begun_s), MOST_REST_S)

    def marks(self, view: OpenSnapshot, answer: Answer) -> dict[str, Any]:
        """What is no longer as it was when an earlier snapshot was taken: its code, or a record taken back."""
        now, then = self.present.manifest, view.manifest
        marks: dict[str, Any] = {}
        champion = answer.champion
        if champion is not None and then.positions["tuner_retractions"] != now.positions["tuner_retractions"]:
            library = [champion.baseline.id] if champion.baseline else []
            gone = retracting.retracted(self.present.store, [champion.id, champion.record.id, *library])
            for first in list(gone.values())[:1]:
                marks["retracted"] = {"id": first.of, "made_at": first.made_at, "reason": first.reason}
        if then.code != now.code:
            marks["differs"] = f"code and published results are {now.code} and were {then.code}"
        return marks

    def count(self, view: OpenSnapshot, answer: Answer) -> None:
        """Counts a question to the present snapshot whose answer is not exact, for nights."""
        if view is self.present and answer.match not in (EXACT, INVARIANT):
            DEMAND.asked(answer, db=self._url)
