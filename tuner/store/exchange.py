"""Files of records: JSON lines, written from a store and taken into one.

A file holds JSON lines (see `tuner.store.lines`), compressed by its name's ending: ``.gz``, ``.zst`` or none.
Records and champions are identified by UUID and only ever added, so files can be read in any order and
repeatedly, with the same result.
"""

import contextlib
import gzip
import io
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard

from tuner.errors import InputError
from tuner.results.record import Champion, Record, Retraction
from tuner.results.survey import Kept, SurveyPart
from tuner.store import Store, lines, listing
from tuner.store.listing import SURVEYS_AT_ONCE, Selection

#: Lines stored in one transaction.
BATCH = 500
#: Number of broken lines that are reported one by one.
TOLD = 20

#: Bytes of a file read at a time; of a compressed one, which may become 32,768 times as many.
CHUNK_BYTES, PACKED_BYTES = 1 << 16, 1 << 10
#: Bytes of a line, and of the window of a compressed file, at the most.
LONGEST_LINE_BYTES, WINDOW_BYTES = 32 << 20, 128 << 20
#: First bytes of a compressed file -> what unpacks a member or frame of it.
_PACKINGS: Mapping[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"\x28\xb5\x2f\xfd": lambda: zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj(),
}


@dataclass(frozen=True)
class Counts:
    """Counts of an export or import.

    Attributes:
        records: Records; on import, new ones.
        champions: Champions; on import, new ones.
        known: On import, records and champions that were already stored.
        broken: The first few unreadable lines: number, and what is wrong.
        broken_lines: Number of unreadable lines.
        retractions: Retractions; on import, new ones.
        surveys: Parts of surveys; on import, new ones.
        timings: On export, the timings in them.
    """

    records: int = 0
    champions: int = 0
    known: int = 0
    broken: tuple[tuple[int, str], ...] = ()
    broken_lines: int = 0
    retractions: int = 0
    surveys: int = 0
    timings: int = 0


def export(store: Store, path: Path | None, wanted: Selection | None = None) -> Counts:
    """Writes retractions, records, champions, then surveys, each ordered by id: equal records make equal text.

    Retracted items are left out, but their retractions are written, so that other databases retract them, too.

    Args:
        store: The store to read.
        path: The file; an existing one is replaced once all is written. None for stdout.
        wanted: Which records; all if None.
    """
    if path is None:
        return _written(store, wanted, sys.stdout)
    fresh = path.with_name(f".{path.name}.part")
    try:
        with _writer(fresh, path.suffix) as out:
            counts = _written(store, wanted, out)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return counts


def _written(store: Store, wanted: Selection | None, out: IO[str]) -> Counts:
    print(lines.header(), file=out)
    counts, timings = Counter[type](), 0
    for item in listing.everything(store, wanted):
        print(lines.line_of(item), file=out)
        counts[type(item)] += 1
        timings += len(item.timings) if isinstance(item, SurveyPart) else 0
    return _counts(counts, timings=timings)


def _counts(by_kind: Counter[type], **more: Any) -> Counts:
    return Counts(
        by_kind[Record], by_kind[Champion], retractions=by_kind[Retraction], surveys=by_kind[SurveyPart], **more
    )


@contextlib.contextmanager
def _writer(path: Path, ending: str) -> Iterator[IO[str]]:
    with path.open("wb") as raw, contextlib.ExitStack() as stack:
        packed: Any = raw
        if ending == ".gz":
            packed = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
        elif ending == ".zst":
            # With a checksum, like gzip; without it a flipped bit may read as another number.
            compressor = zstandard.ZstdCompressor(level=6, write_checksum=True)
            packed = stack.enter_context(compressor.stream_writer(raw, closefd=False))
        with io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text:
            yield text


def take(store: Store, path: Path, *, skip_broken: bool = False) -> Counts:
    """Adds everything in a file that the store lacks.

    The file is read to its end before anything is stored, so a broken one changes nothing. It is stored in
    batches, so that other writers get their turn; run an interrupted import again.

    Args:
        store: The store to add to.
        path: The file; its first bytes show its compression.
        skip_broken: True to store all good lines, in one pass, and list the bad ones.

    Raises:
        InputError: There is no such file, or a line is broken; then nothing of the file is stored.
    """
    file = LinesFile(path)
    if not skip_broken:
        for number, content in file.contents():
            if isinstance(content, str):
                raise InputError(
                    f"a line of records must be what `tuner records export` writes, line {number} of {path} is "
                    f"not: {content}. Nothing of the file was imported; mend it, or take what is good with "
                    f"--skip-broken"
                )
    return taken(store, file.contents())


def merge(store: Store, source: Store) -> Counts:
    """Adds everything in another store that this one lacks; both may be written to meanwhile.

    Items retracted there are retracted here, and are not copied.

    Args:
        store: The store to add to.
        source: The store to read.
    """
    return taken(store, enumerate(listing.everything(source)))


def taken(store: Store, contents: Iterable[tuple[int, Kept | str | None]]) -> Counts:
    """Adds numbered contents of lines, as `LinesFile.contents` yields them, that the store lacks."""
    waiting, new = defaultdict[type, list[Kept]](list), Counter[type]()
    broken: list[tuple[int, str]] = []
    read = broken_lines = 0
    for number, content in contents:
        if isinstance(content, str):
            broken_lines += 1
            broken += [(number, content)] if len(broken) < TOLD else []
        elif content is not None:
            read += 1
            kind, batch = type(content), waiting[type(content)]
            batch.append(content)
            if len(batch) >= (SURVEYS_AT_ONCE if kind is SurveyPart else BATCH):
                new[kind] += store.add(batch)
                batch.clear()
    for kind in lines.KINDS.values():
        new[kind] += store.add(waiting[kind])
    return _counts(new, known=read - new.total(), broken=tuple(broken), broken_lines=broken_lines)


@dataclass
class LinesFile:
    """A file of lines, which may be read more than once.

    Attributes:
        path: Where.
        most_bytes: Bytes of all lines, unpacked, beyond which the file counts as damaged.
        damage: What keeps the file from being read to its end; empty if nothing does.
    """

    path: Path
    most_bytes: int = 1 << 40
    damage: str = ""

    def contents(self) -> Iterator[tuple[int, Kept | str | None]]:
        """Yields number and content of each line: a text says what is wrong with it; None is a header.

        Raises:
            InputError: There is no such file.
        """
        number = 0
        try:
            with self.path.open("rb") as raw:
                for number, line in enumerate(self._lines(_unpacked(raw)), 1):
                    yield number, _content_of(line)
        except (EOFError, zlib.error, zstandard.ZstdError) as error:
            self.damage = f"the file is damaged from here on ({error})"
            yield number + 1, self.damage
        except (FileNotFoundError, IsADirectoryError) as error:
            raise InputError(f"a file to import must exist, got {self.path}: {error.strerror}") from error

    def _lines(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Yields lines.

        Raises:
            EOFError: A line is longer than it may be, or all of them are.
        """
        rest, size = b"", 0
        for part in parts:
            size += len(part)
            *whole, rest = (rest + part).split(b"\n")
            if size > self.most_bytes or len(rest) > LONGEST_LINE_BYTES:
                raise EOFError(f"it has up to {self.most_bytes} bytes, and a line {LONGEST_LINE_BYTES}")
            yield from whole
        yield from [rest] if rest else []


def _unpacked(raw: io.BufferedReader) -> Iterator[bytes]:
    """Yields the bytes of a file, whose first bytes show its compression: gzip members, zstd frames or none.

    Raises:
        EOFError: The last member or frame is incomplete, which zstd's own reader would not report.
    """
    start = raw.peek(4)
    begun = next((begun for magic, begun in _PACKINGS.items() if start.startswith(magic)), None)
    if begun is None:
        yield from iter(lambda: raw.read(CHUNK_BYTES), b"")
        return
    unpacking = begun()
    while packed := raw.read(PACKED_BYTES):
        while packed:
            if unpacking.eof:
                unpacking = begun()
            yield unpacking.decompress(packed)
            packed = unpacking.unused_data
    if not unpacking.eof:
        raise EOFError("it ends early")


def _content_of(line: bytes) -> Kept | str | None:
    """What a line says: a text tells what is wrong with it; None is a header or an empty line."""
    if not line.strip():
        return None
    try:
        return lines.parsed(line.decode())
    except (ValueError, InputError) as error:
        return str(error)
