"""Frames: how a message is laid out in a stream of bytes. No I/O here: bytes in, frames out.

One frame, all integers little-endian::

    offset  size  field
    0       1     magic      0xC7
    1       1     kind       see `Kind`
    2       2     name_size  bytes of `name`
    4       4     n_buffers  number of out-of-band buffers
    8       8     id         chosen by the caller, repeated in the reply
    16      8     body_size  bytes of `body`
    24      8*n   sizes      size of each buffer
    ...           name       UTF-8: the method in a request, else empty
    ...           body       pickle 5 stream without its large buffers
    ...           buffers    one after the other, no padding

A small frame is parsed out of the chunk it came in. For a large one the `Decoder` allocates the final memory of every
buffer as soon as their sizes are known and hands it out as `targets`, so that the socket writes there directly.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

__all__ = [
    "CHUNK_BYTES",
    "JOIN_BYTES",
    "MAX_BUFFERS",
    "Buffer",
    "Decoder",
    "Frame",
    "Kind",
    "WireError",
    "encode",
    "encode_small",
    "payload_bytes",
]

MAGIC = 0xC7
VERSION = 1
CHUNK_BYTES = 1 << 16
"""What one read of small frames asks for. A frame with more than this still to come is received in place."""

_HEADER = struct.Struct("<BBHIQQ")
_HEADER_SIZE = _HEADER.size
_pack, _unpack_from = _HEADER.pack, _HEADER.unpack_from
MAX_BUFFERS = 1 << 16
_MAX_TARGETS = 512  # well below IOV_MAX, which is 1024 on Linux and macOS
JOIN_BYTES = 1 << 15
"""Below this one copy is cheaper than a gathering send."""

Buffer = bytes | bytearray | memoryview


class Kind(enum.IntEnum):
    """What a frame is for. Values are part of the protocol."""

    REQUEST = 1
    REPLY = 2
    ERROR = 3
    CANCEL = 4
    LIST = 5
    HELLO = 16
    CHALLENGE = 17
    PROOF = 18
    WELCOME = 19
    DENIED = 20


_KINDS = frozenset(int(kind) for kind in Kind)


class WireError(Exception):
    """The bytes are not frames of this protocol. The connection cannot be used any more."""


class Frame(NamedTuple):
    """One message. `size` is the bytes of name, body and buffers."""

    kind: int
    id: int
    name: str
    body: Buffer
    buffers: Sequence[Buffer]
    size: int = 0


_make_frame = tuple.__new__  # Frame(...) goes through a function in Python and costs twice as much


def payload_bytes(body: Buffer, buffers: Sequence[Buffer]) -> int:
    """Bytes of a message without its framing."""
    return len(body) + sum(len(buffer) for buffer in buffers) if buffers else len(body)


def encode_small(kind: int, frame_id: int, name: bytes, body: bytes) -> bytes:
    """The frame of a message without buffers whose body is shorter than `JOIN_BYTES`, ready to be sent."""
    return _pack(MAGIC, kind, len(name), 0, frame_id, len(body)) + name + body


def encode(kind: int, frame_id: int, name: bytes, body: Buffer, buffers: Sequence[Buffer] = ()) -> list[Buffer]:
    """Lays a frame out as parts to be sent in order. Small frames are one part; large buffers are not copied."""
    head = _HEADER.pack(MAGIC, kind, len(name), len(buffers), frame_id, len(body))
    if not buffers:
        return [head + name + body] if len(body) < JOIN_BYTES else [head + name, body]
    sizes = [len(buffer) for buffer in buffers]
    head += struct.pack(f"<{len(sizes)}Q", *sizes) + name
    if len(body) + sum(sizes) < JOIN_BYTES:
        return [b"".join((head, body, *buffers))]
    return [head, body, *buffers]


@final
class Decoder:
    """Turns chunks of a stream into frames.

    Feed it what was received with `feed`. While `assembling`, receive into `targets()` instead and tell `filled(n)`.

    Args:
        max_bytes: largest frame accepted.
        allocate: gives writable memory for a buffer of so many bytes.
    """

    __slots__ = ("_allocate", "_assembly", "_max_bytes", "_skip", "_tail", "assembling")

    def __init__(self, max_bytes: int, allocate: Callable[[int], memoryview] | None = None) -> None:
        self._max_bytes = max_bytes
        self._allocate = allocate or _allocate
        self._tail = b""
        self._assembly: _Assembly | None = None
        self._skip = 0
        self.assembling = False

    @property
    def idle(self) -> bool:
        """Whether the stream stands exactly between two frames."""
        return not self._tail and self._assembly is None and not self._skip

    def targets(self) -> list[memoryview]:
        """Memory to receive into, in order; never reaches beyond the current frame."""
        assert self._assembly is not None
        return self._assembly.targets()

    def filled(self, count: int) -> Frame | None:
        """Says that `count` bytes were received into `targets()`; returns the frame when that completed it."""
        assert self._assembly is not None
        if not self._assembly.advance(count):
            return None
        frame = self._assembly.frame()
        self._assembly = None
        self.assembling = False
        return frame

    def feed(self, data: bytes) -> list[Frame]:
        """Takes the next chunk and returns the frames it completed.

        A frame over the limit comes without content, recognised by its `size`; its bytes are skipped.

        Raises:
            WireError: this is not our protocol.
        """
        if self._tail:
            data = self._tail + data
            self._tail = b""
        frames: list[Frame] = []
        end = len(data)
        position = min(self._skip, end)
        self._skip -= position
        while end - position >= _HEADER_SIZE:
            magic, kind, name_size, n_buffers, frame_id, body_size = _unpack_from(data, position)
            size = name_size + body_size
            body_at = position + _HEADER_SIZE + name_size
            stop = body_at + body_size
            if not n_buffers and stop <= end and magic == MAGIC and kind in _KINDS and size <= self._max_bytes:
                # A small call, all there: the usual case, made short.
                name = str(data[body_at - name_size : body_at], "utf-8", "replace") if name_size else ""
                frames.append(_make_frame(Frame, (kind, frame_id, name, data[body_at:stop], (), size)))
                position = stop
                continue
            layout = _layout(data, position, end)
            if layout is None:
                break
            if layout.size > self._max_bytes:
                frames.append(Frame(layout.kind, layout.id, layout.name, b"", (), layout.size))
                position = min(layout.stop, end)
                self._skip = layout.stop - position
            elif layout.stop <= end:
                frames.append(layout.cut(data))
                position = layout.stop
            elif layout.stop - end > CHUNK_BYTES:
                self._assembly = _Assembly(layout, self._allocate)
                self._assembly.copy_in(memoryview(data)[layout.body_at :])
                self.assembling = True
                return frames
            else:
                break
        if position < end:
            self._tail = data[position:]
        return frames


class _Layout(NamedTuple):
    """Where the parts of one frame are in a chunk."""

    kind: int
    id: int
    name: str
    body_at: int
    sizes: Sequence[int]
    size: int
    stop: int

    def cut(self, data: bytes) -> Frame:
        position = self.body_at + self.sizes[0]
        body = data[self.body_at : position]
        if len(self.sizes) == 1:
            return Frame(self.kind, self.id, self.name, body, (), self.size)
        buffers = []
        for length in self.sizes[1:]:
            # Its own memory, not a slice of the chunk: arrays must be writable, aligned, and keep nothing else alive.
            buffers.append(bytearray(data[position : position + length]))
            position += length
        return Frame(self.kind, self.id, self.name, body, buffers, self.size)


def _layout(data: bytes, at: int, end: int) -> _Layout | None:
    """Reads the header at `at`; None when not all of what stands before the body has come."""
    magic, kind, name_size, n_buffers, frame_id, body_size = _HEADER.unpack_from(data, at)
    if magic != MAGIC or kind not in _KINDS or n_buffers > MAX_BUFFERS:
        raise WireError(f"not a frame of the courier protocol: it starts with {bytes(data[at : at + 8])!r}")
    name_at = at + _HEADER_SIZE + 8 * n_buffers
    body_at = name_at + name_size
    if body_at > end:
        return None
    name = str(data[name_at:body_at], "utf-8", "replace") if name_size else ""
    if not n_buffers:
        return _Layout(kind, frame_id, name, body_at, (body_size,), name_size + body_size, body_at + body_size)
    sizes = (body_size, *struct.unpack_from(f"<{n_buffers}Q", data, at + _HEADER_SIZE))
    total = sum(sizes)
    return _Layout(kind, frame_id, name, body_at, sizes, name_size + total, body_at + total)


def _allocate(size: int) -> memoryview:
    return memoryview(bytearray(size))


@final
class _Assembly:
    """A large frame that is being received in place."""

    __slots__ = ("_index", "_layout", "_memory", "_offset")

    def __init__(self, layout: _Layout, allocate: Callable[[int], memoryview]) -> None:
        self._layout = layout
        self._memory = [allocate(size) for size in layout.sizes]
        self._index, self._offset = 0, 0
        self._skip_full()

    def _skip_full(self) -> None:
        while self._index < len(self._memory) and self._offset == len(self._memory[self._index]):
            self._index, self._offset = self._index + 1, 0

    def targets(self) -> list[memoryview]:
        first = self._memory[self._index][self._offset :]
        return [first, *self._memory[self._index + 1 : self._index + _MAX_TARGETS]]

    def advance(self, count: int) -> bool:
        """Moves on by `count` bytes; returns whether the frame is complete."""
        while count:
            step = min(count, len(self._memory[self._index]) - self._offset)
            self._offset += step
            count -= step
            self._skip_full()
        return self._index == len(self._memory)

    def copy_in(self, data: memoryview) -> None:
        while data:
            target = self._memory[self._index][self._offset :]
            step = min(len(data), len(target))
            target[:step] = data[:step]
            data = data[step:]
            self.advance(step)

    def frame(self) -> Frame:
        body, *buffers = self._memory
        layout = self._layout
        return Frame(layout.kind, layout.id, layout.name, body, buffers, layout.size)
