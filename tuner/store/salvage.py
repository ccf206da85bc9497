"""Reads rows from the pages of a SQLite file that SQLite itself cannot read any more.

It reads pages directly, from the file and its write-ahead log, without the tree that leads to them, so a
damaged page costs only its own rows. A row with a checksum is trusted only if it matches. Rows never change, so
an old copy is as good as the latest. The format is described in https://sqlite.org/fileformat.html
"""

from __future__ import annotations

import itertools
import json
import mmap
import struct
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tuner.results.record import Record, Retraction
from tuner.results.survey import Kept
from tuner.store import rows, sound
from tuner.store.rows import SHARED, checksum

_LEAF = 0x0D
_FILE_HEADER, _LOG_HEADER, _FRAME_HEADER = 100, 32, 24
_RECORD = (
    "number", "id", "problem", "device", "kernel", "run", "regime", "role", "outcome", "time_s", "config",
    "samples", "work", "error", "compiled", "stages", "circumstances", "reason", "measured_at", "checksum",
)  # fmt: skip
_CHAMPION = (
    "number", "id", "record", "baseline", "problem", "device", "regime", "speedup", "verdict", "trials",
    "crowned_at", "pairs", "checksum",
)  # fmt: skip
_SURVEY = (
    "number", "id", "device", "run", "operation", "regime", "timings", "data", "measured_at", "checksum",
)  # fmt: skip
#: Columns that the first schema lacks; they stand at the end.
_LATER = {_RECORD: 1, _CHAMPION: 2, _SURVEY: 0}
_RETRACTION = ("number", "id", "of", "reason", "made_at", "checksum")
_SHARED = ("number", "kind", "of", "said", "checksum")
#: Names of shared rows' columns when joined with a record's own.
_JOINED = {"kernel": {"name": "kernel_name"}}
_MAGIC = b"SQLite format 3\0"

Row = dict[str, Any]


class Pages:
    """The pages of a database's file and log."""

    def __init__(self, path: Path) -> None:
        """Opens the file for reading only.

        Args:
            path: File of the database.
        """
        self._main = _content(path)
        self._log = _content(Path(f"{path}-wal"))
        # If the first page is gone, assume the page size of every database made here.
        size = int.from_bytes(self._main[16:18], "big") if self._main[:16] == _MAGIC else 0
        size = 65536 if size == 1 else size
        self.size = size if size >= 512 and size & (size - 1) == 0 else 4096
        reserved = self._main[20] if self._main[:16] == _MAGIC and len(self._main) > 20 else 0
        self.usable = self.size - (reserved if reserved < 64 else 0)
        self._logged = {
            int.from_bytes(self._log[start : start + 4], "big"): start + _FRAME_HEADER
            for start in self._frames()
        }

    def _frames(self) -> Iterator[int]:
        yield from range(_LOG_HEADER, len(self._log) - self.size, _FRAME_HEADER + self.size)

    def every(self) -> Iterator[bytes]:
        """Yields every page: those of the file, then all versions in the log."""
        for start in range(0, len(self._main), self.size):
            yield self._main[start : start + self.size]
        for start in self._frames():
            yield self._log[start + _FRAME_HEADER : start + _FRAME_HEADER + self.size]

    def one(self, number: int) -> bytes:
        """Returns the latest version of a page by its number, counted from 1."""
        if number in self._logged:
            return self._log[self._logged[number] : self._logged[number] + self.size]
        return self._main[(number - 1) * self.size : number * self.size]

    def rows(self) -> Iterator[list[Any]]:
        """Yields the columns of every readable row of every table."""
        for number, page in enumerate(self.every()):
            # Another page, without a file header, may now lie in the place of the first.
            for start in (_FILE_HEADER, 0) if number == 0 else (0,):
                if len(page) > start and page[start] == _LEAF:
                    yield from self._cells(page, start)

    def _cells(self, page: bytes, start: int) -> Iterator[list[Any]]:
        count = int.from_bytes(page[start + 3 : start + 5], "big")
        for cell in range(min(count, self.size // 4)):
            at = start + 8 + 2 * cell
            try:
                yield self._row(page, int.from_bytes(page[at : at + 2], "big"))
            except (LookupError, ValueError, OverflowError, MemoryError, struct.error):
                continue

    def _row(self, page: bytes, at: int) -> list[Any]:
        length, at = _varint(page, at)
        number, at = _varint(page, at)
        most = self.usable - 35
        if length > len(self._main) + len(self._log):
            raise ValueError("a row is longer than its database")
        if length <= most:
            return _columns(page[at : at + length], number)
        least = (self.usable - 12) * 32 // 255 - 23
        local = least + (length - least) % (self.usable - 4)
        local = local if local <= most else least
        payload, following = page[at : at + local], int.from_bytes(page[at + local : at + local + 4], "big")
        seen: set[int] = set()
        while following and len(payload) < length and following not in seen:
            seen.add(following)
            rest = self.one(following)
            payload += rest[4 : self.usable]
            following = int.from_bytes(rest[:4], "big")
        return _columns(payload[:length], number)


def _content(path: Path) -> mmap.mmap | bytes:
    if not path.exists() or path.stat().st_size == 0:
        return b""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(8):
        byte = data[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    return value << 8 | data[at + 8], at + 9


def _columns(payload: bytes, number: int) -> list[Any]:
    end, at = _varint(payload, 0)
    kinds = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    columns: list[Any] = []
    for kind in kinds:
        size = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)[kind] if kind < 12 else (kind - 12) // 2
        data = payload[at : at + size]
        if len(data) < size:
            raise ValueError("a row ends early")
        columns.append(_value(kind, data))
        at += size
    # The table's key is not stored among the columns; its place is empty.
    return [number, *columns[1:]]


def _value(kind: int, data: bytes) -> Any:
    if kind == 7:
        return struct.unpack(">d", data)[0]
    if 1 <= kind <= 6:
        return int.from_bytes(data, "big", signed=True)
    if kind >= 12:
        return data.decode() if kind % 2 else data
    return {8: 0, 9: 1}.get(kind)


class _Shared:
    """Rows that records reference. Several rows may have been found for a number, of which one matches."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, list[Row]]] = {
            name: {} for name in ("problem", "device", "kernel", "run")
        }
        self.champions: list[Row] = []
        self.retractions: dict[str, Retraction] = {}
        #: True if rows have checksums here; a row without one is then damaged, not old.
        self.summed = False

    def see(self, row: Sequence[Any]) -> None:
        """Classifies a row by its columns."""
        self.summed = self.summed or (len(row) == len(_RECORD) and _named(row, _RECORD) is not None)
        champion = _named(row, _CHAMPION)
        if champion and champion not in self.champions:
            self.champions.append(champion)
        retraction = _retraction(row)
        if retraction:
            self.retractions[retraction.id] = retraction
        self._see_copy(row)
        texts = row[1:]
        if not 3 <= len(texts) <= 5 or not all(isinstance(each, str) for each in texts):
            return
        if len(texts) == 3:
            self._add("kernel", row, ("kernel_name", "source_hash", "origin"))
        elif len(texts) == 5 and rows.digest_of(texts[4]) == texts[0]:
            self._add("device", row, ("digest", "kind", "name", "uuid", "info"))
        elif len(texts) == 4 and rows.digest_of(*texts[1:]) == texts[0]:
            self._add("run", row, ("digest", "study", "session", "versions"))
        elif len(texts) == 4 and texts[1].startswith("["):
            self._add("problem", row, ("operation", "shape", "dtype", "layout"))

    def _see_copy(self, row: Sequence[Any]) -> None:
        """Uses the copy of a shared row in its place, because the original may be damaged."""
        if len(row) != len(_SHARED) or row[1] not in rows.SHARED_COLUMNS:
            return
        named = dict(zip(_SHARED, row, strict=True))
        if named["checksum"] != checksum(named, SHARED):
            return
        renamed = _JOINED.get(row[1], {})
        names = [renamed.get(name, name) for name in rows.SHARED_COLUMNS[row[1]]]
        self._add(row[1], (named["of"], *json.loads(named["said"])), names)

    def _add(self, table: str, row: Sequence[Any], names: Sequence[str]) -> None:
        seen = self.tables[table].setdefault(row[0], [])
        named = dict(zip(names, row[1:], strict=True))
        if named not in seen:
            seen.append(named)

    def joined(self, record: Row) -> Iterator[Row]:
        """Yields the record joined with every candidate for its references."""
        refers = [name for name in self.tables if name in record]
        for parts in itertools.product(*(self.tables[name].get(record[name], []) for name in refers)):
            yield {**{key: value for part in parts for key, value in part.items()}, **record}


def _named(row: Sequence[Any], names: tuple[str, ...]) -> Row | None:
    """Returns the row by column names, if their number matches and the UUID has our form."""
    if len(row) not in (len(names), len(names) - _LATER[names]):
        return None
    try:
        # SQLite stores whole numbers as integers, whatever the column's type.
        told = dict(zip(names, row, strict=False))
        # The first schema may lack pairs; without a checksum column there is nothing to match.
        return {**({"pairs": None} if "pairs" in names else {}), **told, "id": str(uuid.UUID(row[1]))}
    except (ValueError, AttributeError, TypeError):
        return None


def _retraction(row: Sequence[Any]) -> Retraction | None:
    if len(row) != len(_RETRACTION):
        return None
    named = dict(zip(_RETRACTION, row, strict=True))
    try:
        ids = {name: str(uuid.UUID(named[name])) for name in ("id", "of")}
    except (ValueError, AttributeError, TypeError):
        return None
    return sound.retraction_of(named | ids)


def salvaged(path: Path) -> Iterator[Kept | None]:
    """Yields retractions, records, surveys, then champions in a database's file; None for damaged ones.

    The same item may appear several times.
    """
    pages, shared = Pages(path), _Shared()
    for row in pages.rows():
        shared.see(row)
    yield from shared.retractions.values()
    numbers = {row[name] for row in shared.champions for name in ("record", "baseline")}
    kept: dict[int, Record] = {}
    for row in pages.rows():
        survey = _named(row, _SURVEY)
        if survey is not None:
            yield next(filter(None, map(sound.survey_of, shared.joined(survey))), None)
            continue
        named = _named(row, _RECORD)
        if named is None or (shared.summed and "checksum" not in named):
            continue
        record = next(filter(None, map(sound.record_of, shared.joined(named))), None)
        yield record
        if record is not None and named["number"] in numbers:
            kept[named["number"]] = record
    for champion in shared.champions:
        record, library = kept.get(champion["record"]), kept.get(champion["baseline"])
        lacks = record is None or (champion["baseline"] is not None and library is None)
        if record is None or lacks or (shared.summed and "checksum" not in champion):
            yield None
        else:
            yield sound.champion_of(champion, record, library)
