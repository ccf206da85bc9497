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

from tuner.results.survey import Kept, SurveyPart
from tuner.store import lines

#: Largest number of lines in a gzip member: a damaged byte costs all lines of its member.
LINES_OF_A_MEMBER = 20
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

    def append(self, told: Iterable[Kept]) -> None:
        """Appends lines, a few for each member. A failure is reported once; the database has the data."""
        every = list(told)
        self._append([each for each in every if not isinstance(each, SurveyPart)], LINES_OF_A_MEMBER)
        # A part of a survey is as long as many records.
        self._append([each for each in every if isinstance(each, SurveyPart)], 1)

    def _append(self, told: list[Kept], lines_of_a_member: int) -> None:
        texts = [lines.line_of(each) for each in told]
        if not texts:
            return
        try:
            if not self._path.exists():
                self._write([lines.header(lines.FORMAT, database=self._identity)])
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
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.find(_MEMBER)
        if start != 0:
            yield None
        while 0 <= start < len(content):
            text, end = _member(content, start)
            if text is None:
                yield None
                start = content.find(_MEMBER, start + 1)
                continue
            yield from _told(text)
            if end < len(content) and content[end : end + 3] != _MEMBER:
                yield None
                end = content.find(_MEMBER, end)
            start = end


def _member(content: mmap.mmap, start: int) -> tuple[str | None, int]:
    """Returns the text and the end of the member that begins here; no text if it is damaged."""
    unpacking, at, parts = zlib.decompressobj(wbits=31), start, []
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


def _told(text: str) -> Iterator[Kept | None]:
    for line in text.splitlines():
        try:
            told = lines.parsed(line)
        except ValueError:
            yield None
            continue
        if told is not None:
            yield told
