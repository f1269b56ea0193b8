"""Optional compression of columns, cell by cell.

A cell is packed by the server as it arrives and unpacked whenever it is sampled, so memory is paid for with speed: of
an 84x84 frame, zlib takes about 100 microseconds to pack and 25 to unpack, lz4 and zstd a fraction of that. `zlib` is
always there; `lz4` and `zstd` come with the extra `compression`.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from topology.nodes.replay.structure import Path, show_path

__all__ = ["Codec", "Compression", "find_codec"]


class Codec(NamedTuple):
    """A way to pack bytes and get them back."""

    name: str
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes], bytes]


def find_codec(name: str) -> Codec:
    """The codec of that name: "zlib", "lz4" or "zstd".

    Raises:
        ValueError: there is no such codec.
        ImportError: its package is not installed; the text names the extra.
    """
    if name == "zlib":
        return Codec(name, lambda data: zlib.compress(data, 1), zlib.decompress)
    if name == "lz4":
        block = _package("lz4.block", name)
        return Codec(name, block.compress, block.decompress)
    if name == "zstd":
        zstandard = _package("zstandard", name)
        # Its objects are for one thread at a time, and cheap to make.
        return Codec(
            name,
            lambda data: zstandard.ZstdCompressor(level=1).compress(data),
            lambda data: zstandard.ZstdDecompressor().decompress(data),
        )
    raise ValueError(f"no compression {name!r}: there are zlib, lz4 and zstd")


def _package(module: str, codec: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"compression {codec!r} needs the package {module.partition('.')[0]}: "
            "pip install 'rl-topology[compression]', or use 'zlib'"
        ) from error


class Compression:
    """Which columns are compressed, and how.

    Args:
        codecs: name of a codec by path of a column in the steps, as messages show it ("observation/pixels"). The path
            "*" stands for every column whose cells have 256 bytes or more.

    Raises:
        ValueError, ImportError: see `find_codec`.
    """

    def __init__(self, codecs: Mapping[str, str] | None = None) -> None:
        if codecs is not None and not isinstance(codecs, Mapping):
            raise ValueError(f"compression must say which column has which codec, as {{'*': 'zlib'}}, got {codecs!r}")
        self._codecs = {path: find_codec(name) for path, name in (codecs or {}).items()}

    def codec(self, path: Path, cell_bytes: int) -> Codec | None:
        """The codec of a column; None for most."""
        found = self._codecs.get(show_path(path))
        if found is None and cell_bytes >= 256:
            found = self._codecs.get("*")
        return found
