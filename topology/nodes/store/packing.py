"""Packing of arrays, where bytes cost more than the time to pack them."""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from topology.errors import StoreDataError

__all__ = ["PACKINGS", "Buffer", "check_packing", "pack", "unpack"]

Buffer: TypeAlias = bytes | bytearray | memoryview

PACKINGS = ("zlib", "lz4", "zstd")
"""Ways to pack arrays; the latter two come with the extra `compression`."""

_SMALL_BYTES = 256  # below it there is nothing to win


class _Packer(NamedTuple):
    pack: Callable[[Buffer], bytes]
    unpack: Callable[[Buffer, int], bytes]  # at most so many bytes come out


def check_packing(packing: str | None) -> str | None:
    """`packing`, if it can be used here.

    Raises:
        ValueError: there is no such packing.
        ImportError: its package is not installed.
    """
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
def _packer(packing: str) -> _Packer:
    if packing == "zlib":
        # One byte more than there should be tells those who have hidden more from those who have not.
        return _Packer(
            lambda data: zlib.compress(data, 1), lambda data, size: zlib.decompressobj().decompress(data, size + 1)
        )
    if packing == "lz4":
        lz4 = _package("lz4.block", packing)
        return _Packer(
            lambda data: lz4.compress(data, store_size=False),
            lambda data, size: lz4.decompress(data, uncompressed_size=size),
        )
    if packing == "zstd":
        zstandard = _package("zstandard", packing)  # its objects are for one thread at a time, and cheap to make
        return _Packer(
            lambda data: zstandard.ZstdCompressor(level=1).compress(data), functools.partial(_unpack_zstd, zstandard)
        )
    raise ValueError(f"no packing {packing!r}: there are {', '.join(PACKINGS)}")


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
