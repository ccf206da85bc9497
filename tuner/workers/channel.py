"""Frames of JSON and bytes over a socket between a study and its worker processes.

A frame is a magic word, two lengths, a JSON object and a binary part. JSON rather than pickle: bytes that a
broken or hostile kernel writes into the channel can be refused, and never run.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

MAGIC = b"TTF1"
_HEADER = struct.Struct("!4sII")
#: A longer frame counts as rubbish.
LIMIT_BYTES = 1 << 30


class ChannelBroken(Exception):
    """The other side closed the channel, wrote rubbish, or stopped in the middle of a frame.

    Attributes:
        rubbish: True if bytes arrived that are not a frame.
    """

    def __init__(self, reason: str, rubbish: bool = False) -> None:
        super().__init__(reason)
        self.rubbish = rubbish


class Channel:
    """One end of a socket that carries frames."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any], blob: bytes = b"", limit_s: float | None = None) -> None:
        """Sends a frame.

        Args:
            message: JSON object.
            blob: Binary part.
            limit_s: Seconds to wait for the other side to read.

        Raises:
            ChannelBroken: The other side does not read.
        """
        text = json.dumps(message).encode()
        try:
            self._socket.settimeout(limit_s)
            self._socket.sendall(_HEADER.pack(MAGIC, len(text), len(blob)) + text + blob)
        except OSError as error:
            raise ChannelBroken(f"cannot send: {error}") from error

    def receive(self, limit_s: float | None = None) -> tuple[dict[str, Any], bytes]:
        """Waits for a frame.

        Args:
            limit_s: Seconds for the whole frame; None waits forever.

        Raises:
            ChannelBroken: Closed, rubbish, or too slow.
        """
        until = None if limit_s is None else time.monotonic() + limit_s
        magic, text_length, blob_length = _HEADER.unpack(self._read(_HEADER.size, until))
        if magic != MAGIC or text_length + blob_length > LIMIT_BYTES:
            raise ChannelBroken("wrote rubbish into its channel", rubbish=True)
        text, blob = self._read(text_length, until), self._read(blob_length, until)
        try:
            message = json.loads(text)
        except ValueError:
            raise ChannelBroken("wrote rubbish into its channel", rubbish=True) from None
        if not isinstance(message, dict):
            raise ChannelBroken("wrote rubbish into its channel", rubbish=True)
        return message, blob

    def _read(self, length: int, until: float | None) -> bytes:
        parts, missing = [], length
        while missing:
            try:
                self._socket.settimeout(None if until is None else max(until - time.monotonic(), 1e-3))
                part = self._socket.recv(min(missing, 1 << 20))
            except OSError as error:
                raise ChannelBroken(f"no answer: {error}") from error
            if not part:
                raise ChannelBroken("closed its channel")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()
