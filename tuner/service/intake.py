"""Records that arrive as a stream of bytes: lines of `tuner records export`, plain or compressed by zstd."""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

import zstandard

from tuner.errors import InputError
from tuner.store import Store
from tuner.store.exchange import BATCH, Counts, content_of, taken

#: Refused lines that are told one by one.
TOLD = 100
#: Bytes of a line, of all lines, and of the window of a compressed stream, at the most.
LONGEST_LINE_BYTES = 32 << 20
MOST_BYTES = 8 << 30
WINDOW_BYTES = 128 << 20
#: First bytes of a zstd frame, and of gzip.
ZSTD, GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
#: Bytes that are unpacked at a time: they may become 32,768 times as many.
AT_ONCE_BYTES = 1 << 10


@dataclass
class Taken:
    """What became of the lines.

    Attributes:
        lines: Lines read.
        records: New records.
        champions: New champions.
        retractions: New retractions.
        surveys: New parts of surveys.
        known: Lines whose content was stored already.
        refused: Lines that were refused.
        reasons: Number and reason of the first `TOLD` of these.
    """

    lines: int = 0
    records: int = 0
    champions: int = 0
    retractions: int = 0
    surveys: int = 0
    known: int = 0
    refused: int = 0
    reasons: list[dict[str, Any]] = field(default_factory=list)

    def add(self, counts: Counts) -> None:
        """Adds the counts of a batch."""
        for name in ("records", "champions", "retractions", "surveys", "known"):
            setattr(self, name, getattr(self, name) + getattr(counts, name))

    def refuse(self, number: int, why: str) -> None:
        """Counts a line that is refused."""
        self.refused += 1
        if len(self.reasons) < TOLD:
            self.reasons.append({"line": number, "reason": why[:500]})

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


class Intake:
    """Takes a stream in, piece by piece, and stores it in batches.

    What was stored stays if the stream breaks off; the same stream can be sent again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rest = bytearray()
        self._waiting: list[tuple[int, Any]] = []
        self._bytes = 0
        self._unpack: Any = None
        self._start: bytes | None = b""
        self.taken = Taken()

    def feed(self, data: bytes) -> None:
        """Takes the next bytes.

        Raises:
            InputError: The stream is no lines of records, or too long.
            StoreTrouble: The database cannot be written.
        """
        if self._start is not None:
            self._start += data
            if len(self._start) < len(ZSTD):
                return
            data, self._start = self._start, None
            self._begin(data)
        if self._unpack is None:
            self._take(data)
            return
        for at in range(0, len(data), AT_ONCE_BYTES):
            self._take(self._unpacked(data[at : at + AT_ONCE_BYTES]))

    def finish(self) -> Taken:
        """Stores what is left, after the last bytes.

        Raises:
            InputError: The stream ended early.
            StoreTrouble: The database cannot be written.
        """
        if self._start:
            data, self._start = self._start, None
            self._take(data)
        if self._unpack is not None and not self._unpack.eof:
            self._store_waiting()
            raise InputError("the compressed stream ends early; send it again, nothing is stored twice")
        if self._rest:
            self._line(bytes(self._rest))
            self._rest.clear()
        self._store_waiting()
        return self.taken

    def _begin(self, data: bytes) -> None:
        if data.startswith(GZIP):
            raise InputError("records are sent plain or compressed by zstd, got gzip; compress them by zstd")
        if data.startswith(ZSTD):
            self._unpack = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()

    def _unpacked(self, data: bytes) -> bytes:
        whole = b""
        try:
            while data:
                if self._unpack.eof:
                    self._unpack = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()
                whole += self._unpack.decompress(data)
                data = self._unpack.unused_data
        except (zstandard.ZstdError, zlib.error) as error:
            raise InputError(f"the compressed stream is damaged ({error}); send it again") from error
        return whole

    def _take(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            raise InputError(f"records of {MOST_BYTES} bytes at the most are sent at once; send them in parts")
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._line(bytes(self._rest) + line)
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > LONGEST_LINE_BYTES:
            raise InputError(f"a line has {LONGEST_LINE_BYTES} bytes at the most; it is no line of records")

    def _line(self, line: bytes) -> None:
        self.taken.lines += 1
        try:
            told = content_of(line.decode())
        except UnicodeDecodeError as error:
            told = f"it is not UTF-8 text: {error}"
        if isinstance(told, str):
            self.taken.refuse(self.taken.lines, told)
        elif told is not None:
            self._waiting.append((self.taken.lines, told))
            if len(self._waiting) >= BATCH:
                self._store_waiting()

    def _store_waiting(self) -> None:
        if not self._waiting:
            return
        try:
            self.taken.add(taken(self._store, self._waiting))
        except InputError:
            self._one_by_one()
        self._waiting.clear()

    def _one_by_one(self) -> None:
        """Finds the lines of a batch that the store refuses."""
        for number, told in self._waiting:
            try:
                self.taken.add(taken(self._store, [(number, told)]))
            except InputError as error:
                self.taken.refuse(number, str(error))
