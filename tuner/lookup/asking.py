"""Lookups by words: a problem as one writes it, a device as one calls it, a database by its URL."""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.declare.catalogue import Catalogue
from tuner.declare.epilogue import WORDS
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import PRECISIONS, Problem
from tuner.devices.detect import find, is_spec, kind_of
from tuner.devices.settings import setting
from tuner.errors import InputError, NothingFound, UnknownName
from tuner.lookup.legality import completed
from tuner.lookup.stale import builtin_now
from tuner.results.record import ProblemKey

if TYPE_CHECKING:
    from tuner.store import Store


#: Where records are unless ``TUNER_DB`` says otherwise: as for the command line.
DEFAULT_DATABASE = "sqlite:///studies.db"
#: What the URL of a file begins with.
_FILE = "sqlite:///"

_STORES: dict[tuple[str, int, int, int], Store] = {}
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
    # A forked process opens its own; another file of a path is another database.
    file, key = _file(url), (url, 0, 0, os.getpid())
    if file is not None:
        try:
            status = file.stat()
        except OSError:
            return None
        key = url, status.st_dev, status.st_ino, os.getpid()
    with _OPENING:
        if key not in _STORES and (store := opened(url, patience_s)) is not None:
            _STORES[key] = store
        return _STORES.get(key)


@functools.cache
def _file(url: str) -> Path | None:
    """The file of a SQLite database; None for any other."""
    path = url.removeprefix(_FILE).partition("?")[0]
    is_file = url.startswith(_FILE) and path and not path.startswith((":memory:", "file:"))
    return Path(path) if is_file else None


def database_url(url: str = "") -> str:
    """The URL of a database, as a process in any folder may use it.

    Args:
        url: Database; that of `default_database` when empty.
    """
    url = url or default_database()
    file = _file(url)
    return url if file is None else "".join([_FILE, str(file.absolute()), *url.partition("?")[1:]])


def parse_key(problem: Problem | ProblemKey | str, catalogue: Catalogue | None = None) -> ProblemKey:
    """The key of a problem.

    Args:
        problem: A problem, its key, or words: an operation, its dims, and maybe dtype, layout, precision and
            epilogue, such as ``gemm 4096 4096 4096 float32 nt``.
        catalogue: Operations; the built-in ones when None.

    Raises:
        InputError: The words name no problem.
    """
    if isinstance(problem, str):
        problem = _problem_of(problem, catalogue or builtin_now())
    return problem if isinstance(problem, ProblemKey) else ProblemKey.of(problem)


def _problem_of(words: str, catalogue: Catalogue) -> Problem:
    name, *rest = words.split() or [""]
    operation = catalogue.operation(name)
    shape = operation.named([int(word) for word in rest if word.isdecimal()])
    kinds = {"dtype": operation.dtypes, "precision": PRECISIONS, "epilogue": WORDS}
    others = [word for word in rest if not word.isdecimal()]
    named: dict[str, str] = {}
    for word in others:
        first = word.partition("+")[0]
        named.setdefault(next((kind for kind, words in kinds.items() if first in words), "layout"), word)
    if len(others) > len(named):
        raise InputError(
            "a problem has one dtype, one layout, one precision and one epilogue, got "
            f"{' '.join(others)} in {words!r}"
        )
    return operation.problem(shape, **named)


def completed_device(device: DeviceInfo | str, known: Sequence[DeviceInfo]) -> DeviceInfo:
    """A device, or the known one of a name, with the limits that are missing.

    Raises:
        NothingFound: As `known_device`.
        UnknownName: As `known_device`.
    """
    return completed(known_device(device, known) if isinstance(device, str) else device, known)


def known_device(name: str, known: Sequence[DeviceInfo]) -> DeviceInfo:
    """The device of a name, whatever its case, or of a uuid, or whose name has all words of the one given.

    Args:
        name: e.g. ``NVIDIA H200``, ``h200``, ``AVX-512``.
        known: The devices that there are records of; of several descriptions of one the last counts.

    Raises:
        NothingFound: None is known.
        UnknownName: No device, or devices of several names, are called that.
    """
    if not known:
        raise NothingFound(f"nothing is tuned yet, so nothing is known of {name!r}; run `tuner tune` first")
    folded = name.casefold()
    exactly = {each.name: each for each in known if folded in (each.name.casefold(), each.uuid.casefold())}
    by_words = {each.name: each for each in known if _words(folded) <= _words(each.name.casefold())}
    for named in (exactly, by_words) if name else ():
        if len(named) == 1:
            return next(iter(named.values()))
    raise UnknownName("device", name, [device.name for device in known])


def _words(name: str) -> set[str]:
    return set(re.findall(r"[\w.+-]+", name)) or {name}


def alike(device: DeviceInfo, others: Iterable[DeviceInfo]) -> tuple[str, list[str]]:
    """The names of devices like one: of its architecture; for CPUs, with vectors as wide.

    Args:
        device: The one.
        others: Others, of any kind.

    Returns:
        What they share, for people, and their names, those first that have most words in common with it.
    """
    kind = kind_of(device.kind)
    likeness, shared = kind.likeness(device)
    names = dict.fromkeys(
        other.name
        for other in others
        if shared and other.kind == device.kind and kind.likeness(other)[1] == shared
    )
    names.pop(device.name, None)
    own = _words(device.name.casefold())
    return likeness, sorted(names, key=lambda name: -len(own & _words(name.casefold())))
