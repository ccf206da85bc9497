"""Snapshots of a database: the present one, which is replaced when something changes, and earlier ones."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from tuner.declare.catalogue import Catalogue
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.devices.settings import cache_root
from tuner.errors import NothingFound, TunerError
from tuner.lookup import Answer, answer
from tuner.lookup.answers import EXACT, PREDICTED, UNMEASURED, declared_problem
from tuner.lookup.demand import COLD, DEMAND, CallCount
from tuner.lookup.snapshot import ANSWER, Snapshot
from tuner.lookup.stale import builtin_now
from tuner.results.record import ProblemKey
from tuner.service import manifests
from tuner.service.manifests import Manifest
from tuner.store import Store, retracting
from tuner.store.published import tuned_folder
from tuner.version import __version__

#: Size of the dims of the problem that is asked first.
WARM_SIZE = 1001
#: Matches of answers that rest on records of other problems.
FROM_ELSEWHERE = ("similar-device", "default")
#: A snapshot is followed by the next after this many times as long as it took to open, at the least; but a
#: rollback answers within 5 s.
REST, MOST_REST_S = 10.0, 3.5
#: Earlier snapshots that are kept open.
KEPT_OPEN = 3

#: What the name of a device means on this machine.
Naming = Callable[[str], DeviceInfo | str]


@dataclass(frozen=True)
class LookupRequest:
    """A question to a lookup.

    Attributes:
        problem: What is to be computed.
        device: A name, a uuid, or a device of the node that answers; empty for that node's own.
        regime: How time is taken.
        kernel: Only this kernel; any if empty.
        confirmed: True for champions only that won again in a fresh process, or were published.
    """

    problem: ProblemKey
    device: str = ""
    regime: str = "cold"
    kernel: str = ""
    confirmed: bool = False


def json_bytes(data: Any) -> bytes:
    """Compact JSON; NaN and infinities, for which it has no words, are null."""
    return to_json(data, inf_nan_mode="null")


# --- the files that answers rest on --------------------


@functools.lru_cache(maxsize=4)
def _digest(folder: Path, files: tuple[tuple[Path, int, int], ...]) -> str:
    """Digest of the names and contents of files, each with the time of its change and its size."""
    whole = hashlib.sha256()
    for path, _, _ in files:
        content = path.read_bytes()
        whole.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def _files(folder: Path, *patterns: str) -> tuple[tuple[Path, int, int], ...]:
    paths = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)


def code() -> str:
    """Version of tile-tuner, and a digest of the kernels' files."""
    folder = kernels_folder()
    files = tuple(file for file in _files(folder, "**/*") if file[0].suffix != ".pyc")
    return f"{__version__}+{_digest(folder, files)[:16]}"


def published() -> str:
    """Digest of the published results and models as they are; a copy of them is kept under it."""
    folder = tuned_folder()
    digest = _digest(folder, _files(folder, "*/*.json", "*/models/*.json"))
    copy = _copy_of(digest)
    if not copy.is_dir():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=copy.parent, prefix=".new-") as fresh:
            shutil.copytree(folder, Path(fresh) / digest)
            with contextlib.suppress(OSError):  # another server was quicker
                Path(fresh, digest).rename(copy)
    return digest


def _copy_of(digest: str) -> Path:
    return cache_root() / "service" / "published" / digest


# --- an open snapshot ----------------------------------


@dataclass(frozen=True)
class AnswerBody:
    """An answer as it is sent.

    Attributes:
        text: JSON in bytes, without the number of the snapshot and the closing brace.
        answer: What it was made of.
        tally: Counts how often it was asked; None for an exact answer, and for an earlier snapshot.
    """

    text: bytes
    answer: Answer
    tally: CallCount | None = None


@dataclass
class OpenSnapshot:
    """A snapshot, open for questions from several threads.

    Attributes:
        manifest: What it rests on.
        store: The database as it was then.
        published: Published results as they were then.
        naming: What the name of a device means on this machine.
        differs: What is not as it was when the snapshot was taken, in words; empty if answers repeat exactly.
        demand: Database in which questions without an exact answer are counted; empty to count none.
        snapshot: What lookups read, with the answers that were given.
    """

    manifest: Manifest
    store: Store
    published: Path
    naming: Naming
    differs: str
    demand: str
    snapshot: Snapshot = field(init=False)

    def __post_init__(self) -> None:
        """Begins with nothing read."""
        self.snapshot = Snapshot(self.store, self.published, ("snapshot", self.manifest.number))

    def answer(self, asked: LookupRequest, catalogue: Catalogue | None = None) -> Answer:
        """What a lookup answers.

        Raises:
            NothingFound: No config is legal.
            UnknownName: The device is unknown.
        """
        return answer(
            self.snapshot, asked.problem, self.naming(asked.device), asked.regime, asked.kernel or None,
            catalogue, confirmed=asked.confirmed,
        )  # fmt: skip

    def known(self, asked: LookupRequest) -> AnswerBody | None:
        """The answer to a question that was answered before; else None."""
        body: AnswerBody | None = self.snapshot.known((ANSWER, asked))
        return body

    def is_quick(self, asked: LookupRequest) -> bool:
        """Whether an answer takes a look at records only, and no model or search for similar ones."""
        of = asked.problem, asked.regime
        return of in self._crowned or self.snapshot.has_published(*of)

    @functools.cached_property
    def _crowned(self) -> set[tuple[ProblemKey, str]]:
        return self.store.crowned()

    def body(self, asked: LookupRequest) -> AnswerBody:
        """The answer to a question, ready to be sent.

        Raises:
            NothingFound: As `answer`.
            UnknownName: As `answer`.
        """

        def made() -> AnswerBody:
            answer = self.answer(asked)
            keys = answer.to_json()
            del keys["age_days"]  # it would differ from one moment to the next
            return AnswerBody(json_bytes(keys)[:-1], answer, self._tally(asked, answer))

        return self.snapshot.once((ANSWER, asked), made)

    def _tally(self, asked: LookupRequest, answer: Answer) -> CallCount | None:
        """What counts a question whose answer is not exact, where that is of use to nights."""
        if not self.demand or answer.match == EXACT or answer.question is None:
            return None
        problem = declared_problem(answer.question, builtin_now())
        if asked.regime != COLD or asked.kernel or asked.confirmed or problem is None:
            return None
        return DEMAND.count(problem, answer.question.device, answer, self.demand)

    def warm(self) -> None:
        """Reads what the first questions need: champions, kernels, models and what is worked out from them."""
        _ = self._crowned
        for operation in builtin_now().operations.values():
            with contextlib.suppress(TunerError):  # a question will tell
                for dtype in operation.dtypes:
                    for model in self.snapshot.models(operation.name, COLD, dtype):
                        for _, layout in (trait for trait in model.traits if trait[0] == dtype):
                            problem = operation.problem(dict.fromkeys(operation.dims, WARM_SIZE), dtype, layout)
                            answer(self.snapshot, ProblemKey.of(problem), self.naming(model.device.name))

    def inherit(self, earlier: OpenSnapshot, changed: set[ProblemKey]) -> None:
        """Takes over what an earlier snapshot has read and answered about problems that have not changed.

        Whatever else it had read is read again now, so that no question has to wait for that.
        """
        operations = {problem.operation for problem in changed}

        def holds(key: tuple[Any, ...], body: Any) -> bool:
            if not isinstance(body, AnswerBody):
                return False
            problem, answer = key[1].problem, body.answer
            by_records = answer.match == PREDICTED and answer.expected_loss >= UNMEASURED
            if answer.match in FROM_ELSEWHERE or by_records:
                return problem.operation not in operations
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
        self.present = self._open(manifests.take(store, published(), code()), url)

    def view(self, number: int | None = None) -> OpenSnapshot:
        """A snapshot; the present one without a number.

        Raises:
            NothingFound: There is none of that number, or its published results are no longer on this machine.
        """
        present = self.present
        return present if number in (None, present.manifest.number) else self._earlier(number)

    def _open_earlier(self, number: int) -> OpenSnapshot:
        manifest = manifests.manifest(self._store, number)
        if manifest is None:
            raise NothingFound(
                f"a snapshot has a number of this database, 1 to {self.present.manifest.number}, got {number}; "
                "an answer without one tells the present number"
            )
        return self._open(manifest)

    def refresh(self) -> None:
        """Looks for changes, and opens the next snapshot if there are any.

        Raises:
            StoreTrouble: The database cannot be used; the present snapshot stays.
        """
        if time.monotonic() < self._rest_until_s:
            return
        before, now = self.present, (manifests.positions(self._store), published(), code())
        self.looked_s = begun_s = time.monotonic()
        then = before.manifest
        if now == (then.positions, then.published, then.code):
            return
        after = self._open(manifests.take(self._store, *now[1:]), self._url)
        if (changed := _changed(before, after)) is not None:
            after.inherit(before, changed)
        after.warm()
        self.present = after
        now_s = time.monotonic()
        self._rest_until_s = now_s + min(REST * (now_s - begun_s), MOST_REST_S)

    def retraction(self, view: OpenSnapshot, answer: Answer) -> dict[str, str]:
        """What marks an answer of an earlier snapshot whose record was retracted since; else empty."""
        now, champion = self.present.manifest.positions["tuner_retractions"], answer.champion
        if champion is None or now == view.manifest.positions.get("tuner_retractions"):
            return {}
        library = [champion.baseline.id] if champion.baseline else []
        named = [champion.id, champion.record.id, *library]
        gone = retracting.retracted(self.present.store, named)
        first = next((gone[name] for name in named if name in gone), None)
        return {"id": first.of, "made_at": first.made_at, "reason": first.reason} if first else {}

    def _open(self, manifest: Manifest, demand: str = "") -> OpenSnapshot:
        copy = _copy_of(manifest.published)
        if not copy.is_dir():
            raise NothingFound(
                f"snapshot {manifest.number} rests on published results that are not kept on this machine (the "
                "cache was cleared, or another machine took it); ask without a snapshot"
            )
        differs = "" if manifest.code == code() else f"the code is {code()} and was {manifest.code}"
        view = OpenSnapshot(manifest, manifests.as_of(self._url, manifest), copy, self._naming, differs, demand)
        weakref.finalize(view, view.store.close)  # once no request uses it any more
        return view


def _changed(before: OpenSnapshot, after: OpenSnapshot) -> set[ProblemKey] | None:
    """The problems on which more was measured or ruled; None if other answers may have changed, too."""
    then, now = before.manifest, after.manifest
    others = [
        table
        for table in ("tuner_retractions", "tuner_models")
        if then.positions.get(table) != now.positions.get(table)
    ]
    if others or (then.published, then.code) != (now.published, now.code):
        return None
    if before.snapshot.devices() != after.snapshot.devices():
        return None
    return manifests.changed_problems(after.store, then.positions)
