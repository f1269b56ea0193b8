"""Packing of arrays, where bytes cost more than the time to pack them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, final

from topology.errors import StoreDataError

__all__ = ["AUTO", "PACKINGS", "Buffer", "Packer", "check_packing", "pack", "unpack"]

Buffer: TypeAlias = bytes | bytearray | memoryview

PACKINGS = ("zlib", "lz4", "zstd")
"""Ways to pack arrays; the latter two come with the extra `compression`."""

AUTO = "auto"
"""lz4 where its package is installed, for as long as it makes frames smaller."""

_AUTO = "lz4"
_WORTH_IT = 0.7  # of its size
_SKIPPED = 15  # frames between two attempts, where it was not

_SMALL_BYTES = 256  # below it there is nothing to win


@final
class Packer:
    """How the next frame is to be packed. Thread-safe enough: a count that is lost is an attempt more.

    Args:
        packing: of `PACKINGS`, `AUTO`, or None for not at all.

    Raises:
        ValueError: there is no such packing.
        ImportError: its package is not installed.
    """

    def __init__(self, packing: str | None) -> None:
        self._auto = packing == AUTO
        self._packing = check_packing(packing)
        self._skip = 0

    def choose(self) -> str | None:
        """What to pack the next frame with."""
        if self._skip:
            self._skip -= 1
            return None
        return self._packing

    def note(self, plain_bytes: int, frame_bytes: int) -> None:
        """What came of it."""
        if self._auto and frame_bytes > _WORTH_IT * plain_bytes:
            self._skip = self._skip or _SKIPPED


class _Packing(NamedTuple):
    pack: Callable[[Buffer], bytes]
    unpack: Callable[[Buffer, int], bytes]  # at most so many bytes come out


def check_packing(packing: str | None) -> str | None:
    """`packing`, if it can be used here; of `AUTO` what that is here.

    Raises:
        ValueError: there is no such packing.
        ImportError: its package is not installed.
    """
    if packing == AUTO:
        return _AUTO if importlib.util.find_spec(_AUTO) is not None else None
    if packing is not None:
        _packer(packing)
    return packing


def pack(packing: str, memory: Buffer) -> Buffer:
    """`memory` packed, or as it is when that is not smaller.

    Raises:
        ValueError, ImportError: see `check_packing`.
    """
    if len(memory) < _SMALL_BYTES:
        return memory
    packed = _packer(packing).pack(memory)
    return packed if len(packed) < len(memory) else memory


def unpack(packing: str, memory: Buffer, size: int, name: str) -> bytes:
    """The `size` bytes of array `name` that were packed; not one more is ever unpacked.

    Raises:
        StoreDataError: that is not what comes out.
    """
    unpack_ = _packer(packing).unpack
    try:
        data = unpack_(memory, size)
    except Exception as error:  # each package has errors of its own; all of them mean this
        raise StoreDataError(f"array {name!r} cannot be unpacked with {packing}: {error}") from error
    if len(data) != size:
        raise StoreDataError(f"array {name!r} unpacks to {len(data)} bytes with {packing}, not to {size}")
    return data


@functools.cache
def _packer(packing: str) -> _Packing:
    if packing == "zlib":
        # One byte more than there should be tells those who have hidden more from those who have not.
        return _Packing(
            lambda data: zlib.compress(data, 1), lambda data, size: zlib.decompressobj().decompress(data, size + 1)
        )
    if packing == "lz4":
        lz4 = _package("lz4.block", packing)
        return _Packing(
            lambda data: lz4.compress(data, store_size=False),
            lambda data, size: lz4.decompress(data, uncompressed_size=size),
        )
    if packing == "zstd":
        zstandard = _package("zstandard", packing)  # its objects are for one thread at a time, and cheap to make
        return _Packing(
            lambda data: zstandard.ZstdCompressor(level=1).compress(data), functools.partial(_unpack_zstd, zstandard)
        )
    raise ValueError(f"no packing {packing!r}: there are {', '.join((*PACKINGS, AUTO))}")


def _unpack_zstd(zstandard: Any, data: Buffer, size: int) -> bytes:
    # A frame says its own size, and the package believes it rather than the limit it is given.
    if (claimed := zstandard.frame_content_size(data)) != size:
        raise StoreDataError(f"its frame says {claimed} bytes")
    unpacked: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    return unpacked


def _package(module: str, packing: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"packing {packing!r} needs the package {module.partition('.')[0]}: "
            "pip install 'rl-topology[compression]', or use 'zlib'"
        ) from error
