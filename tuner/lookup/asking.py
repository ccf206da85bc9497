"""Lookups by words: a problem as one writes it, a device as one calls it, a database by its URL."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.declare.catalogue import Catalogue
from tuner.declare.epilogue import WORDS
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import PRECISIONS, Problem
from tuner.devices.detect import find, is_spec
from tuner.devices.settings import setting
from tuner.errors import InputError, NothingFound
from tuner.lookup.device_similarity import known_device
from tuner.lookup.legality import completed
from tuner.lookup.snapshot import Snapshot
from tuner.lookup.stale import builtin_now
from tuner.results.record import ProblemKey

if TYPE_CHECKING:
    from tuner.store import Store


#: Where records are unless ``TUNER_DB`` says otherwise: as for the command line.
DEFAULT_DATABASE = "sqlite:///studies.db"

_STORES: dict[tuple[object, ...], Store] = {}
_OPENING = threading.Lock()


def default_database() -> str:
    """The database that is used where none is named: of ``TUNER_DB``, of ``tuner.toml``, or in this folder."""
    return os.environ.get("TUNER_DB") or str(setting("db") or DEFAULT_DATABASE)


def parse_device(text: str) -> DeviceInfo | str:
    """What a device's name means to a lookup: a device of this machine, or the name of one in the records.

    Raises:
        DeviceTrouble: There is no such device here.
    """
    if is_spec(text):
        return find(text).info
    return text


def opened(url: str = "", patience_s: float = 30.0) -> Store | None:
    """A database to read; None where there is none, or nothing of ours in it.

    Args:
        url: Database; that of ``TUNER_DB``, else ``studies.db`` in this folder, when empty.
        patience_s: Seconds to wait for a process that keeps it locked.

    Raises:
        StoreTrouble: It cannot be used.
    """
    url = url or default_database()
    file = _file(url)
    if file is not None and not file.exists():
        return None  # without loading SQLAlchemy, which takes longer than all else
    from tuner.store import Store

    try:
        return Store.open(url, read_only=True, patience_s=patience_s)
    except NothingFound:
        return None


def kept_open(url: str = "", patience_s: float = 30.0) -> Store | None:
    """As `opened`, but a database stays open for the next question of this process while its file stays."""
    url = url or default_database()
    file = _file(url)
    key = (url, *_which(file)) if file else (url,)
    with _OPENING:
        if key not in _STORES:
            store = opened(url, patience_s)
            if store is None:
                return None
            _STORES[key] = store
        return _STORES[key]


def _file(url: str) -> Path | None:
    """The file of a SQLite database; None for any other."""
    path = url.removeprefix("sqlite:///").partition("?")[0]
    return None if path == url or not path or path.startswith((":memory:", "file:")) else Path(path)


def database_url(url: str = "") -> str:
    """The URL of a database, as a process in any folder may use it.

    Args:
        url: Database; that of `default_database` when empty.
    """
    url = url or default_database()
    file = _file(url)
    return url if file is None or file.is_absolute() else url.replace(str(file), str(file.absolute()), 1)


def _which(file: Path) -> tuple[int, int]:
    """Names a file that is there, whatever its path; another one of that path is another file."""
    try:
        seen = file.stat()
    except OSError:
        return 0, 0
    return seen.st_dev, seen.st_ino


def parse_key(problem: Problem | ProblemKey | str, catalogue: Catalogue | None = None) -> ProblemKey:
    """The key of a problem.

    Args:
        problem: A problem, its key, or words: an operation, its dims, and maybe dtype, layout, precision and
            epilogue, such as ``gemm 4096 4096 4096 float32 nt``.
        catalogue: Operations; the built-in ones when None.

    Raises:
        InputError: The words name no problem.
    """
    if isinstance(problem, ProblemKey):
        return problem
    if isinstance(problem, str):
        problem = _problem_of(problem, catalogue or builtin_now())
    return ProblemKey.of(problem)


def _problem_of(words: str, catalogue: Catalogue) -> Problem:
    name, *rest = words.split() or [""]
    operation = catalogue.operation(name)
    sizes = [int(word) for word in rest if word.isdigit()]
    if len(sizes) != len(operation.dims):
        wanted = " ".join(dim.upper() for dim in operation.dims)
        raise InputError(f"{name} takes {wanted}: {len(operation.dims)} dims, got {len(sizes)} in {words!r}")
    others = [word for word in rest if not word.isdigit()]
    dtype = next((word for word in others if word in operation.dtypes), "")
    precision = next((word for word in others if word in PRECISIONS), "")
    epilogue = next((word for word in others if word.partition("+")[0] in WORDS), "")
    layout = next((word for word in others if word not in (dtype, precision, epilogue)), "")
    if len(others) > sum(each != "" for each in (dtype, layout, precision, epilogue)):
        raise InputError(
            "a problem has one dtype, one layout, one precision and one epilogue, got "
            f"{' '.join(others)} in {words!r}"
        )
    shape = dict(zip(operation.dims, sizes, strict=True))
    return operation.problem(shape, dtype, layout, precision, epilogue)


def device_in_full(words: str, db: str = "") -> DeviceInfo:
    """A device of this machine or of the records, with what is missing of its limits filled in.

    Args:
        words: ``cpu``, ``cuda:0``, or a name such as ``NVIDIA H200``.
        db: URL of the database, as for `tuner.best`.

    Raises:
        UnknownName: There is no record of a device of that name.
        DeviceTrouble: There is no such device here.
        StoreTrouble: The database cannot be used.
    """
    store = opened(db)
    try:
        known, where = Snapshot.open(store).devices(), parse_device(words)
        return completed(known_device(where, known) if isinstance(where, str) else where, known)
    finally:
        if store is not None:
            store.close()
