"""Snapshots of a database: the present one, noticed in the background, and earlier ones on demand."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import math
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tuner.declare.catalogue import Catalogue
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.devices.settings import cache_root
from tuner.errors import NothingFound, StoreTrouble, TunerError
from tuner.lookup import Answer, answer_within
from tuner.lookup.answers import EXACT, PREDICTED, UNMEASURED, declared_problem
from tuner.lookup.asking import parse_device
from tuner.lookup.demand import COLD, DEMAND, CallCount
from tuner.lookup.snapshot import Snapshot
from tuner.lookup.stale import builtin_now
from tuner.results.record import ProblemKey
from tuner.service.questions import LookupRequest
from tuner.store import Store, models, retracting, snapshots, tables
from tuner.store.models import StoredModel
from tuner.store.published import tuned_folder
from tuner.store.reading import Reader
from tuner.store.snapshots import FrozenStore, Manifest, positions
from tuner.version import __version__

#: Name, time of change and size of files.
_State = tuple[tuple[str, int, int], ...]


#: File with the models of the database, beside the copies of the published ones.
STORED = "stored-models.json"


def _told(found: Sequence[StoredModel]) -> bytes:
    """Models as text; empty without any."""
    if not found:
        return b""
    told = [each._replace(text=base64.b64encode(each.text).decode()) for each in found]  # type: ignore[arg-type]
    return json.dumps(sorted(told)).encode()


def stored_models(folder: Path) -> list[StoredModel]:
    """The models of the database, as they were when a folder of copies was made."""
    told = (folder / STORED).read_bytes() if (folder / STORED).is_file() else b""
    return [StoredModel._make((*named, base64.b64decode(text))) for *named, text in json.loads(told or b"[]")]


class PublishedCopies:
    """Digests of files, which are read again only when one of them has changed."""

    def __init__(self, store: Reader, published: Path | None = None, kept: Path | None = None) -> None:
        """Names the folders.

        Args:
            store: The database, which has models, too.
            published: Folder of published results; the project's own when None.
            kept: Folder of the copies; one in the cache when None.
        """
        self._store = store
        self._models: tuple[int, bytes] = -1, b""
        self._published = published or tuned_folder()
        self._kept = kept or cache_root() / "service" / "published"
        self._known: dict[str, tuple[_State, str]] = {}

    def published(self) -> str:
        """Digest of the published results and models; they are copied where they are new."""
        files = sorted([*self._published.glob("*/*.json"), *self._published.glob("*/models/*.json")])
        newest = positions(self._store)[tables.models.name]
        if self._models[0] != newest:
            self._models = newest, _told(models.every(self._store))
        told = self._models[1]
        of_files = self._digest("published", self._published, files)
        digest = hashlib.sha256(of_files.encode() + told).hexdigest() if told else of_files
        if self.copy_of(digest) is None:
            self._copy(files, told, digest)
        return digest

    def code(self) -> str:
        """Version of tile-tuner, and a digest of the kernels' files."""
        folder = kernels_folder()
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
        return f"{__version__}+{self._digest('code', folder, files)[:16]}"

    def copy_of(self, digest: str) -> Path | None:
        """Folder with the published results of a digest; None if there is no copy on this machine."""
        folder = self._kept / digest
        return folder if folder.is_dir() else None

    def _digest(self, name: str, folder: Path, files: Sequence[Path]) -> str:
        seen = [(path, path.stat()) for path in files]
        state = tuple((str(path), each.st_mtime_ns, each.st_size) for path, each in seen)
        if self._known.get(name, (None, ""))[0] != state:
            whole = hashlib.sha256()
            for path in files:
                told = path.read_bytes()
                whole.update(f"{path.relative_to(folder)}\0{len(told)}\0".encode() + told)
            self._known[name] = state, whole.hexdigest()
        return self._known[name][1]

    def _copy(self, files: Sequence[Path], told: bytes, digest: str) -> None:
        """Copies whole or not at all, whoever else does the same."""
        self._kept.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=self._kept, prefix=".new-"))
        try:
            for path in files:
                place = fresh / path.relative_to(self._published)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, place)
            (fresh / STORED).write_bytes(told)
            fresh.chmod(0o755)
            fresh.rename(self._kept / digest)
        except OSError:
            if self.copy_of(digest) is None:
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def told_as_json(data: Any) -> str:
    """Compact JSON; what it has no words for, NaN and infinities, is null."""
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(finite(data), separators=(",", ":"))


def finite(data: Any) -> Any:
    """The same data with null for every number that is not finite."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    return [finite(value) for value in data] if isinstance(data, list | tuple) else data


T = TypeVar("T")

#: Answers that a view remembers.
MOST_ANSWERS = 20_000
#: Size of the dims of the problem that is asked first.
WARM_SIZE = 1001
#: Matches of answers that rest on records of other problems.
FROM_ELSEWHERE = ("similar-device", "default")


@dataclass(frozen=True)
class AnswerBody:
    """An answer as it is sent.

    Attributes:
        text: JSON, without the number of the snapshot and the closing brace.
        answer: What it was made of.
        tally: Counts how often it was asked; None for an exact answer, and for an earlier snapshot.
    """

    text: str
    answer: Answer
    tally: CallCount | None = None

    def count(self) -> None:
        """Counts a question."""
        if self.tally is not None:
            self.tally.hits[0] += 1

    def with_number(self, number: int, more: str = "") -> bytes:
        """The whole JSON text of a snapshot."""
        return f'{self.text},"snapshot":{number}{more}}}'.encode()


@dataclass(frozen=True)
class ChangedProblems:
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


class OpenSnapshot:
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
        self._bodies: dict[LookupRequest, AnswerBody] = {}
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

    def answer(self, asked: LookupRequest, catalogue: Catalogue | None = None) -> Answer:
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

    def known(self, asked: LookupRequest) -> AnswerBody | None:
        """The answer to a question that was answered before; else None."""
        return self._bodies.get(asked)

    def is_quick(self, asked: LookupRequest) -> bool:
        """Whether an answer takes a look at records only, and no model or search for similar ones."""
        of = asked.problem, asked.regime
        return self._store.has_champion(*of) or self.snapshot.has_published(*of)

    def body(self, asked: LookupRequest) -> AnswerBody:
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
            known = AnswerBody(told_as_json(told)[:-1], found, self._tally(asked, found))
            if len(self._bodies) >= MOST_ANSWERS:
                self._bodies.clear()
            self._bodies[asked] = known
        return known

    def _tally(self, asked: LookupRequest, found: Answer) -> CallCount | None:
        """What counts a question whose answer is not exact, where that is of use to nights."""
        if not self._demand or found.match == EXACT or found.question is None:
            return None
        if asked.regime != COLD or asked.kernel or asked.confirmed:
            return None
        problem = declared_problem(found.question, builtin_now())
        if problem is None:
            return None
        tally = CallCount()
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

    def inherit(self, earlier: OpenSnapshot, touched: ChangedProblems) -> None:
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


def manifest_json(view: OpenSnapshot) -> dict[str, Any]:
    """A snapshot as a JSON object."""
    return view.manifest.to_json() | {"differs": view.differs}


def retraction_json(of: str, made_at: str, reason: str) -> str:
    """What marks an answer whose record was retracted after the snapshot, as more JSON text."""
    return f',"retracted":{json.dumps({"id": of, "made_at": made_at, "reason": reason})}'


#: Seconds between two looks at database and files.
LOOK_EVERY_S = 0.5
#: A snapshot is followed by the next after this many times as long as it took to open, at the least; but a
#: rollback answers within 5 s.
REST, MOST_REST_S = 10.0, 3.5
#: Earlier snapshots that are kept open.
KEPT_OPEN = 3


class SnapshotCache:
    """Opens snapshots; safe to use from several threads.

    The present snapshot is replaced by `refresh`, which a thread of its own calls: a question never waits for
    it, and costs no look at the database.

    Attributes:
        present: The present snapshot.
        looked_s: When the database was last looked at with success, by `time.monotonic`.
    """

    def __init__(
        self, store: Store, url: str, *, published: Path | None = None, kept: Path | None = None,
        here: Callable[[str], DeviceInfo | str] = parse_device,
    ) -> None:  # fmt: skip
        """Opens the present snapshot.

        Args:
            store: The database, for writing.
            url: Its URL.
            published: Folder of published results; the project's own when None.
            kept: Folder for copies of published results; one in the cache when None.
            here: What the name of a device means on this machine.

        Raises:
            StoreTrouble: The database cannot be used.
        """
        self._store, self._url, self._here = store, url, here
        self._content = PublishedCopies(store, published, kept)
        self._earlier: OrderedDict[int, OpenSnapshot] = OrderedDict()
        self._lock = threading.Lock()
        self._rest_until_s = 0.0
        self.looked_s = time.monotonic()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.present = self._open(self._take(), self._url)
        self.present.warm(layouts=1)

    def start(self) -> None:
        """Starts looking for changes."""
        self._thread = threading.Thread(target=self._watch, name="snapshots", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops looking, and ends all connections but the store's own."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        for view in (*self._earlier.values(), self.present):
            view.close()

    def view(self, number: int | None = None) -> OpenSnapshot:
        """A snapshot; the present one without a number.

        Raises:
            NothingFound: There is none of that number, or its published results are no longer on this machine.
        """
        present = self.present
        if number is None or number == present.manifest.number:
            return present
        with self._lock:
            if number in self._earlier:
                self._earlier.move_to_end(number)
                return self._earlier[number]
            manifest = snapshots.manifest(self._store, number)
            if manifest is None:
                raise NothingFound(
                    f"a snapshot has a number of this database, 1 to {present.manifest.number}, got {number}; "
                    "an answer without one tells the present number"
                )
            found = self._earlier[number] = self._open(manifest)
            while len(self._earlier) > KEPT_OPEN:
                self._earlier.popitem(last=False)[1].close()
            return found

    def refresh(self) -> bool:
        """Looks for changes, and opens the next snapshot if there are any.

        Returns:
            True if there is a new snapshot.

        Raises:
            StoreTrouble: The database cannot be used; the present snapshot stays.
        """
        before = self.present
        now = snapshots.positions(self._store), self._content.published(), self._content.code()
        self.looked_s = time.monotonic()
        manifest = before.manifest
        if now == (manifest.positions, manifest.published, manifest.code):
            return False
        begun_s = time.monotonic()
        after = self._open(self._take(), self._url)
        touched = self._touched(before, after)
        if touched is not None:
            after.inherit(before, touched)
        after.warm()
        self.present = after
        with self._lock:
            self._earlier[manifest.number] = before
            while len(self._earlier) > KEPT_OPEN:
                self._earlier.popitem(last=False)[1].close()
        now_s = time.monotonic()
        self._rest_until_s = now_s + min(REST * (now_s - begun_s), MOST_REST_S)
        return True

    def retracted(self, view: OpenSnapshot, asked: LookupRequest) -> str:
        """What marks an answer of an earlier snapshot whose record was retracted since; else empty."""
        now = self.present.manifest.positions["tuner_retractions"]
        champion = view.body(asked).answer.champion
        if champion is None or now == view.manifest.positions.get("tuner_retractions"):
            return ""
        library = [champion.baseline.id] if champion.baseline else []
        named = [champion.id, champion.record.id, *library]
        gone = retracting.retracted(self.present.store, named)
        for each in named:
            if each in gone:
                return retraction_json(each, gone[each].made_at, gone[each].reason)
        return ""

    def _take(self) -> snapshots.Manifest:
        return snapshots.take(self._store, self._content.published(), self._content.code())

    def _open(self, manifest: snapshots.Manifest, demand: str = "") -> OpenSnapshot:
        published = self._content.copy_of(manifest.published)
        if published is None:
            raise NothingFound(
                f"snapshot {manifest.number} rests on published results that are not kept on this machine (the "
                "cache was cleared, or another machine took it); ask without a snapshot"
            )
        code = self._content.code()
        differs = "" if manifest.code == code else f"the code is {code} and was {manifest.code}"
        store = snapshots.as_of(self._url, manifest)
        store.kept_models = stored_models(published)
        try:
            store.warm()
        except BaseException:
            store.close()
            raise
        return OpenSnapshot(manifest, store, published, self._here, differs, demand)

    def _touched(self, before: OpenSnapshot, after: OpenSnapshot) -> ChangedProblems | None:
        """What has come since; None if more than records, champions, and rulings on those of a problem."""
        then, now = before.manifest, after.manifest
        same = (then.published, then.code) == (now.published, now.code)
        others = ("tuner_retractions", "tuner_models")
        if not same or any(then.positions.get(name) != now.positions.get(name) for name in others):
            return None
        if not _only_strangers(before.snapshot.devices(), after.snapshot.devices()):
            return None
        came = snapshots.problems_since(after.store, then.positions)
        if came.ruled_for_all:
            return None
        return ChangedProblems(came.recorded, came.crowned)

    def _watch(self) -> None:
        complained = ""
        self.present.warm()
        while not self._stopped.wait(LOOK_EVERY_S):
            if time.monotonic() < self._rest_until_s:
                continue
            try:
                self.refresh()
                complained = ""
            except (TunerError, OSError) as error:
                if not isinstance(error, StoreTrouble) or str(error) != complained:
                    complained = str(error)
                    logging.getLogger(__name__).warning("the last snapshot goes on answering: %s", error)


def _only_strangers(before: Sequence[DeviceInfo], after: Sequence[DeviceInfo]) -> bool:
    """True if no device that came has name or architecture of an earlier one, and so changes no answer."""
    known = {(each.kind, each.name) for each in before} | {(each.kind, each.architecture) for each in before}
    came = [each for each in after if each not in before]
    return all(each in after for each in before) and not any(
        (each.kind, each.name) in known or (each.kind, each.architecture) in known for each in came
    )
