"""Everything that is kept as lines of JSON: in files, in the database, and in the second copy beside it.

Each line is self-contained: a champion's line includes its records. So files of lines can be joined, split and
sorted. Reading returns exactly what was written; NaN and infinities, which JSON cannot express, are texts.

The database has the same lines, packed (`packed`). Beside a SQLite file lies a second copy (`Ledger`): gzip
members of a few lines, only ever appended to. So damage to the database (a flipped page, a truncated file, a
log that ends early) loses no data. Writes to the copy are not synchronised: if a power cut loses its last
seconds, the database, which is synchronised, has them. ``zcat`` and `tuner records import` read it.
"""

import contextlib
import gzip
import json
import logging
import math
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tuner.errors import InputError
from tuner.results import codec
from tuner.results.record import Champion, Record, Retraction
from tuner.results.survey import Kept, SurveyPart
from tuner.results.verdict import Crown
from tuner.version import __version__

#: Version of the line format; files of a higher version are refused. The second added retractions, the third
#: parts of surveys, the fourth the crown log.
FORMAT = 4
#: Key of a line -> what it holds.
KINDS: Mapping[str, type] = {
    "record": Record, "champion": Champion, "crown": Crown, "survey": SurveyPart, "retraction": Retraction,
}  # fmt: skip
_KEYS = {kind: key for key, kind in KINDS.items()}
#: A line unpacks to at most so many bytes: a damaged row must not fill the memory.
MOST_BYTES = 1 << 26
#: What lines have in common, which shortens packed ones to a third. It is part of the packed form: never change
#: it. Fields that came later only take a few bytes more.
_COMMON = Path(__file__).with_name("lines.zdict").read_bytes()
#: First bytes of a packed line: zlib's header and the sum of `_COMMON`.
_MAGIC = b"\x78\xf9" + zlib.adler32(_COMMON).to_bytes(4, "big")
#: Largest size of SQLite's pages.
_PAGE_BYTES = 1 << 16
#: Bytes of the sum behind a packed line.
_SUM_BYTES = 4
#: Largest number of lines in a gzip member: a damaged byte costs all lines of its member.
LINES_OF_A_MEMBER = 20
#: First bytes of a gzip member.
_MEMBER = b"\x1f\x8b\x08"


def header(**more: str) -> str:
    """The first line of a file."""
    return json_text({"tile_tuner": "records", "format": FORMAT, "made_by": __version__, **more})


def line_of(item: Kept) -> str:
    """Returns what is kept as a line, without the newline."""
    kind: Any = type(item)
    write, _ = codec.converters(kind)
    return json_text({_KEYS[kind]: write(item)})


def parsed(line: str) -> Kept | None:
    """Reads a line; None for a header.

    Raises:
        ValueError: The line is invalid; the message says why.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    try:
        for key, kind in KINDS.items():
            if key in data:
                _, read = codec.converters(kind)
                return cast(Kept, read(data[key]))
        form = data["format"] if data["tile_tuner"] == "records" else 0
    except KeyError as error:
        raise ValueError(f"it lacks {error}") from None
    except (TypeError, AttributeError, ValueError, IndexError, OverflowError, InputError) as error:
        raise ValueError(f"it is no record: {error}") from None
    if form > FORMAT:
        raise ValueError(f"it begins a file of form {form}, and this version knows forms up to {FORMAT}")
    return None


def json_text(data: Any, *, sort_keys: bool = False) -> str:
    """Returns JSON without spaces; converts NumPy's scalars, and writes NaN and infinities as texts."""
    try:
        return json.dumps(data, sort_keys=sort_keys, separators=(",", ":"), default=_plain, allow_nan=False)
    except ValueError:
        return json_text(_named(data), sort_keys=sort_keys)


def _plain(scalar: Any) -> Any:
    """NumPy's scalars become Python's."""
    return scalar.item()


def _named(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, Mapping):
        return {key: _named(value) for key, value in data.items()}
    return [_named(value) for value in data] if isinstance(data, list | tuple) else data


# --- in the database -----------------------------------


def packed(item: Kept) -> bytes:
    """Returns what is kept as it lies in the database: a compressed line, and a CRC-32 behind it.

    The sum that zlib has itself, Adler-32, misses some changes of a single bit.
    """
    packing = zlib.compressobj(9, zdict=_COMMON)
    data = packing.compress(line_of(item).encode()) + packing.flush()
    return data + zlib.crc32(data).to_bytes(_SUM_BYTES, "big")


def unpacked(data: bytes) -> Kept:
    """Reads the output of `packed`; rows of before there was a CRC-32 have none.

    Raises:
        ValueError: It is damaged.
    """
    unpacking = zlib.decompressobj(zdict=_COMMON)
    try:
        text = unpacking.decompress(data, MOST_BYTES)
        item = parsed(text.decode()) if unpacking.eof else None
    except (zlib.error, TypeError, ValueError) as error:
        raise ValueError(f"stored data is damaged: {error}") from error
    if item is None:
        raise ValueError("stored data is damaged: it ends early")
    rest = unpacking.unused_data
    if rest and rest != zlib.crc32(data[: -len(rest)]).to_bytes(_SUM_BYTES, "big"):
        raise ValueError("stored data is damaged: its sum is another")
    return item


def packed_in(path: Path) -> Iterator[Kept]:
    """Yields what lies packed and whole on a page of a database's file: no table has to lead to it.

    Rows never change, so an old page is as good as the latest.
    """
    with _mapped(path) as content:
        start = content.find(_MAGIC)
        while start >= 0:
            data, unpacking = content[start : start + _PAGE_BYTES], zlib.decompressobj(zdict=_COMMON)
            with contextlib.suppress(ValueError, zlib.error):
                unpacking.decompress(data, MOST_BYTES)
                end = len(data) - len(unpacking.unused_data) + _SUM_BYTES
                if unpacking.eof and end <= len(data):
                    yield unpacked(data[:end])
            start = content.find(_MAGIC, start + 1)


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[Any]:
    """The bytes of a file; none if it is not there."""
    if not path.exists() or path.stat().st_size == 0:
        yield b""
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


# --- the second copy -----------------------------------


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
        other = _identity_in(self._path)
        if other not in ("", identity):
            with contextlib.suppress(OSError):
                self._path.rename(database.with_name(f"{database.name}.{other[:8]}.ledger.jsonl.gz"))

    def append(self, items: Sequence[Kept]) -> None:
        """Appends lines. A failure is reported once; the database has the data."""
        if not items:
            return
        try:
            begun = [] if self._path.exists() else [header(database=self._identity)]
            self._write([*begun, *map(line_of, items)])
        except OSError as error:
            if not self._complained:
                logging.getLogger(__name__).warning("no second copy of the records is kept: %s", error)
            self._complained = True

    def _write(self, texts: Sequence[str]) -> None:
        groups = (texts[at : at + LINES_OF_A_MEMBER] for at in range(0, len(texts), LINES_OF_A_MEMBER))
        members = b"".join(gzip.compress("\n".join([*group, ""]).encode(), 6, mtime=0) for group in groups)
        # A single write at the end of the file stays whole beside those of other processes.
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if os.write(file, members) < len(members):
                raise OSError(f"{self._path} took a part only; its disk is full")
        finally:
            os.close(file)


def _identity_in(path: Path) -> str:
    """Returns the UUID of a copy's database; empty if there is no copy or it has none."""
    try:
        with gzip.open(path, "rb") as file:
            return str(json.loads(file.readline(1000)).get("database", ""))
    except (OSError, EOFError, ValueError, zlib.error, AttributeError):
        return ""


def readable(path: Path) -> Iterator[Kept | None]:
    """Yields the lines of a copy, in order; None for each damaged stretch."""
    with _mapped(path) as content:
        end, start = 0, content.find(_MEMBER)
        while start >= 0:
            text, after = _member(content, start)
            if text is None:
                start = content.find(_MEMBER, start + 1)
                continue
            if start > end:
                yield None
            yield from _items(text)
            end, start = after, content.find(_MEMBER, after)
        if end < len(content):
            yield None


def _member(content: Any, start: int) -> tuple[str | None, int]:
    """Returns the text and the end of the gzip member that begins here; no text if it is damaged."""
    unpacking, at, parts = zlib.decompressobj(wbits=31), start, []
    with contextlib.suppress(zlib.error, UnicodeDecodeError, MemoryError):
        while not unpacking.eof and at < len(content):
            chunk = content[at : at + (1 << 16)]
            parts.append(unpacking.decompress(chunk))
            at += len(chunk)
        if unpacking.eof:
            return b"".join(parts).decode(), at - len(unpacking.unused_data)
    return None, start


def _items(text: str) -> Iterator[Kept | None]:
    """What the lines of a member hold; None for each that is damaged."""
    for line in text.splitlines():
        try:
            item = parsed(line)
        except ValueError:
            yield None
            continue
        if item is not None:
            yield item
