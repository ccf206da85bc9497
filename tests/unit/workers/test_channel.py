"""Frames over a socket, whole or refused."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.workers.process import LIMIT_BYTES, MAGIC, Channel, ChannelBroken

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """One end as a channel, the other as a bare socket."""
    ours, theirs = socket.socketpair()
    yield Channel(ours), theirs
    ours.close()
    theirs.close()


@given(st.dictionaries(st.text(), json_values, max_size=5), st.binary(max_size=2000))
def test_what_is_sent_arrives(message: dict[str, object], code: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours).send(message | {"code": code}, limit_s=5)
        assert Channel(theirs).receive(limit_s=5) == message | {"code": code}


@pytest.mark.parametrize(
    "rubbish",
    [
        b"Segmentation fault (core dumped)\n",
        struct.pack("!4sII", MAGIC, LIMIT_BYTES, LIMIT_BYTES),
        struct.pack("!4sII", MAGIC, 4, 0) + b"nope",
        struct.pack("!4sII", MAGIC, 2, 0) + b"[]",
        struct.pack("!4sII", MAGIC, 2, 0) + b"\xff\xfe",
    ],
    ids=["text", "too long", "no JSON", "no object", "no UTF-8"],
)
def test_rubbish_is_refused(pair: tuple[Channel, socket.socket], rubbish: bytes) -> None:
    channel, other = pair
    other.sendall(rubbish)
    with pytest.raises(ChannelBroken, match="rubbish") as caught:
        channel.receive(5)
    assert caught.value.rubbish


@pytest.mark.parametrize("sent", [b"", MAGIC, struct.pack("!4sII", MAGIC, 100, 0) + b"{"])
def test_an_end_in_the_middle_of_a_frame_is_told(pair: tuple[Channel, socket.socket], sent: bytes) -> None:
    channel, other = pair
    other.sendall(sent)
    other.close()
    with pytest.raises(ChannelBroken, match="closed its channel") as caught:
        channel.receive(5)
    assert not caught.value.rubbish


def test_a_frame_that_stops_half_way_does_not_wait_forever(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    other.sendall(struct.pack("!4sII", MAGIC, 100, 0) + b"{")
    with pytest.raises(ChannelBroken, match="no answer"):
        channel.receive(0.05)


def test_a_reader_that_does_not_read_is_not_waited_for(pair: tuple[Channel, socket.socket]) -> None:
    channel, _ = pair
    with pytest.raises(ChannelBroken, match="cannot send"):
        channel.send({"code": bytes(1 << 24)}, limit_s=0.05)
