"""Reads rows from the pages of a SQLite file that SQLite itself cannot read any more.

Pages are taken as they lie, in the file and in its write-ahead log, without the tree that leads to them: a
damaged page costs its own rows alone. A row that has a checksum is believed only when it fits; since rows are
never changed, an old copy of one is as good as the last. The format is told in https://sqlite.org/fileformat.html
"""

from __future__ import annotations

import itertools
import mmap
import struct
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tuner.record import Champion, Record
from tuner.store import rows, sound

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
#: Columns that the first schema lacks; they stand at the end.
_LATER = {_RECORD: 1, _CHAMPION: 2}

Row = dict[str, Any]


class Pages:
    """The pages of a database's file and log."""

    def __init__(self, path: Path) -> None:
        """Opens nothing that it would change.

        Args:
            path: File of the database.
        """
        self._main = _content(path)
        self._log = _content(Path(f"{path}-wal"))
        size = int.from_bytes(self._main[16:18], "big")
        size = 65536 if size == 1 else size
        self.size = size if size >= 512 and size & (size - 1) == 0 else 4096
        reserved = self._main[20] if len(self._main) > 20 else 0
        self.usable = self.size - (reserved if reserved < 64 else 0)
        self._logged = {
            int.from_bytes(self._log[start : start + 4], "big"): start + _FRAME_HEADER
            for start in self._frames()
        }

    def _frames(self) -> Iterator[int]:
        yield from range(_LOG_HEADER, len(self._log) - self.size, _FRAME_HEADER + self.size)

    def every(self) -> Iterator[bytes]:
        """Each page: those of the file, then all that the log has of them."""
        for start in range(0, len(self._main), self.size):
            yield self._main[start : start + self.size]
        for start in self._frames():
            yield self._log[start + _FRAME_HEADER : start + _FRAME_HEADER + self.size]

    def one(self, number: int) -> bytes:
        """A page by its number, counted from 1, as written last."""
        if number in self._logged:
            return self._log[self._logged[number] : self._logged[number] + self.size]
        return self._main[(number - 1) * self.size : number * self.size]

    def rows(self) -> Iterator[list[Any]]:
        """The columns of every row that can be read, of every table."""
        for number, page in enumerate(self.every()):
            start = _FILE_HEADER if number == 0 else 0
            if len(page) < self.size or page[start] != _LEAF:
                continue
            cells = int.from_bytes(page[start + 3 : start + 5], "big")
            for cell in range(min(cells, self.size // 4)):
                at = start + 8 + 2 * cell
                try:
                    yield self._row(page, int.from_bytes(page[at : at + 2], "big"))
                except (IndexError, ValueError, struct.error):
                    continue

    def _row(self, page: bytes, at: int) -> list[Any]:
        length, at = _varint(page, at)
        number, at = _varint(page, at)
        most = self.usable - 35
        if length <= most:
            return _columns(page[at : at + length], number)
        least = (self.usable - 12) * 32 // 255 - 23
        local = least + (length - least) % (self.usable - 4)
        local = local if local <= most else least
        payload, following = page[at : at + local], int.from_bytes(page[at + local : at + local + 4], "big")
        while following and len(payload) < length:
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
    # The key of a table is not among the columns: its place is empty.
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
    """What records refer to; a number may have been seen with several rows, of which one fits."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, list[Row]]] = {
            name: {} for name in ("problem", "device", "kernel", "run")
        }
        self.champions: dict[str, Row] = {}

    def see(self, row: Sequence[Any]) -> None:
        """Takes a row for what its columns look like."""
        champion = _named(row, _CHAMPION)
        if champion:
            self.champions.setdefault(champion["id"], champion)
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

    def _add(self, table: str, row: Sequence[Any], names: Sequence[str]) -> None:
        seen = self.tables[table].setdefault(row[0], [])
        named = dict(zip(names, row[1:], strict=True))
        if named not in seen:
            seen.append(named)

    def joined(self, record: Row) -> Iterator[Row]:
        """The record with what it may refer to."""
        for parts in itertools.product(*(self.tables[name].get(record[name], []) for name in self.tables)):
            yield {**parts[0], **parts[1], **parts[2], **parts[3], **record}


def _named(row: Sequence[Any], names: tuple[str, ...]) -> Row | None:
    """The row by its columns' names, where it has as many, and a UUID among them as ours have."""
    if len(row) not in (len(names), len(names) - _LATER[names]):
        return None
    try:
        # SQLite keeps whole numbers as such, whatever the column's type.
        return {**dict.fromkeys(names), **dict(zip(names, row, strict=False)), "id": str(uuid.UUID(row[1]))}
    except (ValueError, AttributeError, TypeError):
        return None


def salvaged(path: Path) -> Iterator[Record | Champion | None]:
    """Records, then champions, that lie in a database's file; None for each that is damaged.

    The same one may come several times.
    """
    pages, shared = Pages(path), _Shared()
    for row in pages.rows():
        shared.see(row)
    numbers = {row[name] for row in shared.champions.values() for name in ("record", "baseline")}
    kept: dict[int, Record] = {}
    for row in pages.rows():
        named = _named(row, _RECORD)
        if named is None:
            continue
        record = next(filter(None, map(sound.record_of, shared.joined(named))), None)
        yield record
        if record is not None and named["number"] in numbers:
            kept[named["number"]] = record
    for champion in shared.champions.values():
        record, library = kept.get(champion["record"]), kept.get(champion["baseline"])
        if record is None or (champion["baseline"] is not None and library is None):
            yield None
        else:
            yield sound.champion_of(champion, record, library)
