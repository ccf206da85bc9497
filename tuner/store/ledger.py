"""A second copy of every record beside a SQLite database: gzipped lines of JSON, append-only.

Everything stored is also written here, in gzip members of a few lines, so that damage to the database (a
flipped page, a truncated file, a log that ends early) loses no data. Writes to it are not synchronised: if a
power cut loses its last seconds, the database, which is synchronised, has them. A gzip file of several members
is a gzip file: ``zcat`` and `tuner records import` read it. A damaged member costs its own lines alone.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import mmap
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tuner.results.survey import Kept, SurveyPart
from tuner.store import lines

#: Largest number of lines in a gzip member: a damaged byte costs all lines of its member.
LINES_OF_A_MEMBER = 20
#: Size of SQLite's pages, unless a database was made otherwise.
PAGE_BYTES = 4096
#: First bytes of a gzip member.
_MEMBER = b"\x1f\x8b\x08"


def ledger_file(database: Path) -> Path:
    """Returns the path of the second copy of a database's file."""
    return database.with_name(f"{database.name}.ledger.jsonl.gz")


class Ledger:
    """The second copy of one database, for the process that writes."""

    def __init__(self, database: Path, identity: str) -> None:
        """Continues an existing copy, or begins one.

        A copy of another, earlier database is renamed, never overwritten.

        Args:
            database: File of the database.
            identity: The database's UUID.
        """
        self._path = ledger_file(database.absolute())  # the process may change its folder
        self._identity = identity
        self._complained = False
        other = identity_in(self._path)
        if other not in ("", identity):
            with contextlib.suppress(OSError):
                self._path.rename(database.with_name(f"{database.name}.{other[:8]}.ledger.jsonl.gz"))

    def append(self, items: Iterable[Kept]) -> None:
        """Appends lines, a few for each member. A failure is reported once; the database has the data."""
        every = list(items)
        self._append([each for each in every if not isinstance(each, SurveyPart)], LINES_OF_A_MEMBER)
        # A part of a survey is as long as many records.
        self._append([each for each in every if isinstance(each, SurveyPart)], 1)

    def _append(self, told: list[Kept], lines_of_a_member: int) -> None:
        texts = [lines.line_of(each) for each in told]
        if not texts:
            return
        try:
            if not self._path.exists():
                self._write([lines.header(database=self._identity)])
            self._write(texts, lines_of_a_member)
        except OSError as error:
            if not self._complained:
                logging.getLogger(__name__).warning("no second copy of the records is kept: %s", error)
            self._complained = True

    def _write(self, texts: list[str], many: int = 1) -> None:
        starts = range(0, len(texts), many)
        told = ("".join(f"{text}\n" for text in texts[at : at + many]) for at in starts)
        members = b"".join(gzip.compress(each.encode(), 6, mtime=0) for each in told)
        # A single write at the end of the file stays whole beside those of other processes.
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if os.write(file, members) < len(members):
                raise OSError(f"{self._path} took a part only; its disk is full")
        finally:
            os.close(file)


def identity_in(path: Path) -> str:
    """Returns the UUID of a copy's database; empty if there is no copy or it has none."""
    try:
        with gzip.open(path, "rb") as file:
            return str(json.loads(file.readline(1000)).get("database", ""))
    except (OSError, EOFError, ValueError, zlib.error, AttributeError):
        return ""


def readable(path: Path) -> Iterator[Kept | None]:
    """Yields the lines of a copy, in order; None for each damaged stretch."""
    with _content(path) as content:
        start, whole = content.find(_MEMBER), 0
        while start >= 0:
            if start != whole:
                yield None
            text, whole = _member(content, start, _gzip_unpacker())
            if text is None:
                yield None
                start = whole = content.find(_MEMBER, start + 1)
                continue
            yield from _items(text)
            start = content.find(_MEMBER, whole)
        if 0 < whole < len(content):
            yield None


def packed_in(path: Path) -> Iterator[Kept | None]:
    """Yields what lies packed in a database's file, whole and wherever: no tree that leads to it is needed.

    Rows never change, so an old page is as good as the latest.
    """
    with _content(path) as content:
        start = content.find(lines.MAGIC)
        while start >= 0:
            text, end = _member(content, start, lines.unpacker())
            yield from _items(text or _spilled(content, start))
            start = content.find(lines.MAGIC, max(end, start + 1))


def _spilled(content: Any, start: int) -> str:
    """The text of a packed line that is longer than a page; empty if it is damaged.

    Where its first page's share ends stands the number of the next page, which begins with that of its next.
    """
    for end in range(start, start - start % PAGE_BYTES + PAGE_BYTES - 3):
        packed, number, numbers = content[start:end], int.from_bytes(content[end : end + 4], "big"), set[int]()
        while 0 < number <= len(content) // PAGE_BYTES and number not in numbers:
            numbers.add(number)
            page = content[(number - 1) * PAGE_BYTES : number * PAGE_BYTES]
            packed, number = packed + page[4:], int.from_bytes(page[:4], "big")
        text, _ = _member(packed, 0, lines.unpacker()) if numbers else (None, 0)
        if text is not None:
            return text
    return ""


@contextlib.contextmanager
def _content(path: Path) -> Iterator[Any]:
    """The bytes of a file; none if it is not there."""
    if not path.exists() or path.stat().st_size == 0:
        yield b""
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


def _member(content: Any, start: int, unpacking: Any) -> tuple[str | None, int]:
    """Returns the text and the end of the member that begins here; no text if it is damaged."""
    at, parts = start, []
    try:
        while not unpacking.eof and at < len(content):
            chunk = content[at : at + (1 << 16)]
            parts.append(unpacking.decompress(chunk))
            at += len(chunk)
        if unpacking.eof:
            return b"".join(parts).decode(), at - len(unpacking.unused_data)
    except (zlib.error, UnicodeDecodeError, MemoryError):
        pass
    return None, start


def _gzip_unpacker() -> Any:
    return zlib.decompressobj(wbits=31)


def _items(text: str) -> Iterator[Kept | None]:
    for line in text.splitlines():
        try:
            item = lines.parsed(line)
        except ValueError:
            yield None
            continue
        if item is not None:
            yield item
