"""Frames survive any way of cutting the stream; what is no frame is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.nodes.courier.wire import CHUNK_BYTES, Decoder, Frame, Kind, WireError, encode

frames = st.builds(
    Frame,
    kind=st.sampled_from([int(kind) for kind in Kind]),
    id=st.integers(0, 2**64 - 1),
    name=st.text(max_size=20),
    body=st.binary(max_size=100),
    buffers=st.lists(st.binary(max_size=100) | st.just(b"x" * 3 * CHUNK_BYTES), max_size=4),
)


def to_bytes(frame):
    return b"".join(encode(frame.kind, frame.id, frame.name.encode(), frame.body, frame.buffers))


def content(frame):
    return frame.kind, frame.id, frame.name, bytes(frame.body), [bytes(buffer) for buffer in frame.buffers]


def decode(decoder, stream, cuts):
    """Plays a socket: chunks of the given sizes, in place where the decoder asks for it."""
    got, position = [], 0
    while position < len(stream):
        size = next(cuts)
        if decoder.assembling:
            target = decoder.targets()[0]
            size = min(size, len(target), len(stream) - position)
            target[:size] = stream[position : position + size]
            frame = decoder.filled(size)
            got += [] if frame is None else [frame]
        else:
            chunk = stream[position : position + size]
            size = len(chunk)
            got += decoder.feed(chunk)
        position += size
    return got


@given(st.lists(frames, max_size=5), st.lists(st.integers(1, 2 * CHUNK_BYTES), min_size=1))
def test_any_frames_come_out_of_any_chunks(sent, cuts):
    stream = b"".join(map(to_bytes, sent))

    def sizes():
        while True:
            yield from cuts
            yield CHUNK_BYTES  # or single bytes would take for ever

    decoder = Decoder(1 << 30)
    got = decode(decoder, stream, sizes())
    assert [content(frame) for frame in got] == [content(frame) for frame in sent]
    assert decoder.idle


@given(st.lists(frames, min_size=1, max_size=5), st.integers(1, 200))
def test_frames_over_the_limit_come_without_content_and_others_as_they_are(sent, limit):
    stream = b"".join(map(to_bytes, sent))
    got = decode(Decoder(limit), stream, iter(lambda: CHUNK_BYTES, None))
    for frame, original in zip(got, sent, strict=True):
        size = len(original.name.encode()) + len(original.body) + sum(map(len, original.buffers))
        assert frame.size == size
        assert (frame.kind, frame.id, frame.name) == (original.kind, original.id, original.name)
        if size > limit:
            assert (frame.body, frame.buffers) == (b"", ())
        else:
            assert content(frame) == content(original)


@given(st.binary(min_size=24))
def test_strangers_are_refused_or_not_understood_but_never_crash(data):
    with contextlib.suppress(WireError):
        for frame in Decoder(1 << 20).feed(data):
            assert frame.kind in set(Kind)


def test_http_is_refused():
    with pytest.raises(WireError, match="GET /"):
        Decoder(1 << 20).feed(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def test_a_header_alone_takes_no_memory():
    taken = []

    def allocate(size):
        taken.append(size)
        return memoryview(bytearray(8))

    huge = to_bytes(Frame(Kind.REQUEST, 1, "m", b"", []))[:16] + (1 << 40).to_bytes(8, "little")
    (frame,) = Decoder(1 << 30, allocate).feed(huge + b"m")
    assert frame.size == (1 << 40) + 1
    assert taken == []


def test_large_buffers_are_received_in_place():
    memory = []

    def allocate(size):
        memory.append(memoryview(bytearray(size)))
        return memory[-1]

    sent = Frame(Kind.REPLY, 7, "", b"body", [b"a" * (CHUNK_BYTES * 2), b"", b"b"])
    decoder = Decoder(1 << 30, allocate)
    (got,) = decode(decoder, to_bytes(sent), iter(lambda: 1000, None))
    assert content(got) == content(sent)
    assert got.buffers[0].obj is memory[1].obj
