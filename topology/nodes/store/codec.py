"""Arrays and plain data to bytes and back: for what is kept where others can write.

A frame is a prefix of 16 bytes (magic, lengths of the two texts that follow), the layout of the arrays as JSON, the
rest of what is known about them as JSON, then the memory of each array as it is, aligned to 64 bytes. Nothing is ever
unpickled: bytes that nobody of ours has written can be refused, and can do no more. Every size is checked against what
is there before memory is given to it.

The layout is a text of its own because it is the same for message after message: each side parses it once.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from topology.errors import StoreDataError
from topology.nodes.store.dtypes import dtype_of, text_of
from topology.nodes.store.packing import PACKINGS, Buffer, pack, unpack

__all__ = [
    "MAX_BYTES",
    "Array",
    "Buffer",
    "Decoded",
    "Plain",
    "check_meta",
    "decode",
    "encode",
    "encode_bytes",
    "size_of",
]

Plain: TypeAlias = str | int | float | bool | None
"""What may stand beside arrays. Integers have at most 64 bits."""

Array: TypeAlias = npt.NDArray[Any]

MAX_BYTES = 1 << 30
"""Most bytes of memory that a frame may ask for when it is decoded, unless the caller allows more."""

_MAGIC = b"tpf1"
_PREFIX = struct.Struct("<4sIII")  # magic, bytes of the layout, bytes of the rest, 0
_ALIGNMENT = 64
_SMALL_BYTES = 4096  # parts below it are joined: cheaper than a part of their own
_MAX_TEXT_BYTES = 16 << 20
_MAX_DIMENSIONS = 32
_MAX_CACHED_BYTES = 1 << 16  # of a layout; larger ones are parsed each time
_to_json = json.JSONEncoder(separators=(",", ":")).encode  # made once: `dumps` makes one for each call
_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})


class Decoded(NamedTuple):
    """What a frame holds. The arrays are views of it where they were not packed: writable if it is."""

    arrays: dict[str, Array]
    meta: dict[str, Plain]


class _Entry(NamedTuple):
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int


def encode(
    arrays: Mapping[str, npt.ArrayLike], meta: Mapping[str, Plain] | None = None, *, packing: str | None = None
) -> list[Buffer]:
    """The frame of `arrays` and `meta`, in parts to be sent or written one after the other.

    The parts of large arrays are views of the caller's memory: send them before it changes.

    Args:
        arrays: by name; any shape, any dtype without Python objects and fields.
        meta: plain data; numpy's numbers are taken as Python's.
        packing: one of `PACKINGS`; arrays that it does not make smaller are left as they are.

    Raises:
        TypeError: an array has no dtype of plain numbers, dates or text, or a value of `meta` is not plain.
        ValueError: a name is not text, an integer has more than 64 bits, or there is no such packing.
        ImportError: the package of that packing is not installed.
    """
    memories: list[Buffer] = []
    layout: list[tuple[str, str, tuple[int, ...]]] = []
    for name, value in arrays.items():
        array = np.asarray(value)
        layout.append((_check_name(name), text_of(array.dtype, name), array.shape))
        memories.append(_memory(array))
    stored: list[int] | None = None
    if packing is not None:
        memories = [pack(packing, memory) for memory in memories]
        stored = [len(memory) for memory in memories]
    layout_text = _layout_text(tuple(layout))
    rest = [check_meta(meta), packing, stored] if packing is not None else [check_meta(meta)]
    rest_text = _to_json(rest).encode()
    head = b"".join((_PREFIX.pack(_MAGIC, len(layout_text), len(rest_text), 0), layout_text, rest_text))
    return _parts(head, memories)


def encode_bytes(
    arrays: Mapping[str, npt.ArrayLike], meta: Mapping[str, Plain] | None = None, *, packing: str | None = None
) -> bytes:
    """The frame in one piece: a copy. See `encode`."""
    return b"".join(encode(arrays, meta, packing=packing))


def decode(data: Buffer, *, max_bytes: int = MAX_BYTES, copy: bool = False) -> Decoded:
    """What `encode` was given.

    Args:
        data: the whole frame.
        max_bytes: most bytes that the arrays may have, unpacked and taken together.
        copy: whether the arrays get memory of their own, which is writable and does not hold `data`.

    Raises:
        StoreDataError: these bytes are no frame, or one that is cut off, damaged, or larger than `max_bytes`.
        ImportError: the package of its packing is not installed.
    """
    memory = memoryview(data).cast("B")
    entries, rest, start = _head(memory)
    meta, packing, stored = _rest(rest, entries)
    if (total := sum(entry.nbytes for entry in entries)) > max_bytes:
        raise StoreDataError(f"a frame asks for {total} bytes of arrays; at most {max_bytes} are allowed here")
    arrays: dict[str, Array] = {}
    for entry, size in zip(entries, stored, strict=True):
        begin = _aligned(start)
        start = begin + size
        if start > len(memory):
            raise StoreDataError(
                f"array {entry.name!r} ends at byte {start} of a frame of {len(memory)}: it is cut off"
            )
        piece: Buffer = memory[begin:start]
        if size != entry.nbytes:
            assert packing is not None  # `_rest` has compared the sizes
            piece = unpack(packing, piece, entry.nbytes, entry.name)
        array: Array = np.ndarray(entry.shape, entry.dtype, piece)
        arrays[entry.name] = array.copy() if copy else array
    if start != len(memory):
        raise StoreDataError(f"a frame of {start} bytes is followed by {len(memory) - start} that do not belong to it")
    return Decoded(arrays, meta)


def size_of(parts: Sequence[Buffer]) -> int:
    """Bytes of a frame."""
    return sum(map(len, parts))


def check_meta(meta: Mapping[str, Plain] | None) -> dict[str, Plain]:
    """`meta` as a dict of Python's own values.

    Raises:
        TypeError: a value is not plain.
        ValueError: a key is not text, or an integer has more than 64 bits.
    """
    return {} if not meta else {_check_name(key): _plain(key, value) for key, value in meta.items()}


# --- frames -----------------------------------------------------------------------------------------------------------


def _parts(head: bytes, memories: Sequence[Buffer]) -> list[Buffer]:
    parts: list[Buffer] = []
    joined: list[Buffer] = [head]
    end = len(head)
    for memory in memories:
        joined.append(bytes(_aligned(end) - end))
        end = _aligned(end) + len(memory)
        if len(memory) < _SMALL_BYTES:
            joined.append(memory)
        else:
            parts += (b"".join(joined), memory)
            joined = []
    if joined:
        parts.append(b"".join(joined))
    return parts


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _head(memory: memoryview) -> tuple[tuple[_Entry, ...], bytes, int]:
    """The layout, the text of the rest, and where both end."""
    if len(memory) < _PREFIX.size:
        raise StoreDataError(f"{len(memory)} bytes are no frame: it begins with {_PREFIX.size}")
    magic, layout_bytes, rest_bytes, zero = _PREFIX.unpack_from(memory)
    if magic != _MAGIC or zero:
        raise StoreDataError(f"these bytes are no frame: they begin with {bytes(memory[:8])!r}, not with {_MAGIC!r}")
    end = _PREFIX.size + layout_bytes + rest_bytes
    if max(layout_bytes, rest_bytes) > _MAX_TEXT_BYTES or end > len(memory):
        raise StoreDataError(f"the head of a frame of {len(memory)} bytes claims to have {end}")
    middle = _PREFIX.size + layout_bytes
    parse = _layout if layout_bytes <= _MAX_CACHED_BYTES else _layout.__wrapped__
    return parse(bytes(memory[_PREFIX.size : middle])), bytes(memory[middle:end]), end


@functools.lru_cache(maxsize=256)
def _layout_text(layout: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    return _to_json(layout).encode()


@functools.lru_cache(maxsize=256)
def _layout(text: bytes) -> tuple[_Entry, ...]:
    layout = _json(text)
    if not isinstance(layout, list):
        raise StoreDataError(f"the layout of a frame is no list: {text[:100]!r}")
    entries = tuple(map(_entry, layout))
    if len({entry.name for entry in entries}) != len(entries):
        raise StoreDataError(f"two arrays of a frame have one name: {text[:200]!r}")
    return entries


def _entry(item: Any) -> _Entry:
    if not (isinstance(item, list) and len(item) == 3 and isinstance(item[0], str) and isinstance(item[1], str)):
        raise StoreDataError(f"an array of a frame is described by {item!r:.200}, not by name, dtype and shape")
    name, text, shape = item
    dtype = dtype_of(text)
    fits = isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS
    if not fits or not all(type(size) is int and 0 <= size < 1 << 48 for size in shape):
        raise StoreDataError(f"array {name!r} of a frame has the shape {shape!r:.200}")
    nbytes = math.prod(shape) * dtype.itemsize
    # Numpy refuses shapes whose sizes overflow, also those with a 0 in them.
    if math.prod(size or 1 for size in shape) * max(dtype.itemsize, 1) >= 1 << 62:
        raise StoreDataError(f"array {name!r} of a frame has the shape {shape!r:.200}, which no memory holds")
    return _Entry(name, dtype, tuple(shape), nbytes)


def _rest(text: bytes, entries: Sequence[_Entry]) -> tuple[dict[str, Plain], str | None, list[int]]:
    """Meta, packing and the stored size of each array."""
    rest = _json(text)
    if not (isinstance(rest, list) and len(rest) in {1, 3} and isinstance(rest[0], dict)):
        raise StoreDataError(f"what follows the layout of a frame is {text[:100]!r}, not meta and sizes")
    try:
        meta = check_meta(rest[0])
    except (TypeError, ValueError) as error:
        raise StoreDataError(f"a frame has meta that is not plain: {error}") from None
    sizes = [entry.nbytes for entry in entries]
    if len(rest) == 1:
        return meta, None, sizes
    packing, stored = rest[1:]
    if packing not in PACKINGS:
        raise StoreDataError(f"a frame is packed with {packing!r:.50}; known are {', '.join(PACKINGS)}")
    if not isinstance(stored, list) or len(stored) != len(sizes):
        raise StoreDataError(f"a frame has {len(sizes)} arrays and the stored sizes {stored!r:.200}")
    if not all(type(size) is int and 0 <= size <= full for size, full in zip(stored, sizes, strict=True)):
        raise StoreDataError(f"a frame has arrays of {sizes!r:.200} bytes and the stored sizes {stored!r:.200}")
    return meta, packing, stored


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreDataError(f"the head of a frame is damaged: {error}") from None


# --- arrays and plain data --------------------------------------------------------------------------------------------


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"names of arrays and of meta are text, got {name!r}")
    return name


def _plain(key: str, value: Any) -> Plain:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"meta {key!r}: an integer has at most 64 bits, got {value!r:.50}...")
    # Subclasses, such as enumerations, would not come back as what they were.
    if type(value) in _PLAIN_TYPES:
        plain: Plain = value
        return plain
    raise TypeError(
        f"meta {key!r}: str, int, float, bool or None, got {type(value).__name__}; arrays go to the columns"
    )


def _memory(array: Array) -> Buffer:
    if not array.nbytes:
        return b""
    if not array.flags.c_contiguous:
        array = array.copy("C")
    # Via bytes: numpy exports no buffer of dates and of extension types such as bfloat16.
    memory: memoryview = memoryview(array.reshape(-1).view("u1"))  # type: ignore[arg-type]  # a buffer, before 3.12 untold
    return memory
