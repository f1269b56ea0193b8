"""Checkpoints on disk: a directory that appears whole or not at all.

    <root>/<group>/000000000007/index.json    settings, counts, and where each array is
                                arrays.bin    the arrays, one after the other

A checkpoint is written under another name, forced to the disk, and then renamed: whatever happens meanwhile, the one
before it is intact. Nothing in it is code: JSON, and arrays of numbers or of bytes. (Structures of items are pickled by
the writers; the server stores those bytes and hands them to samplers, and does not open them here either.)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import numpy.typing as npt

from topology.errors import ReplayError

__all__ = [
    "ArrayReader",
    "ArrayWriter",
    "CheckpointError",
    "CheckpointRoot",
    "dtype_of",
    "is_checkpoint",
    "name_of_dtype",
    "open_arrays",
    "read_index",
    "write_index",
]

VERSION = 1

_INDEX, _ARRAYS = "index.json", "arrays.bin"
_DIGITS = 12
_UNFINISHED, _DOOMED = ".unfinished-", ".doomed-"
_PIECE_BYTES = 16 << 20


class CheckpointError(ReplayError):
    """A checkpoint could not be written, or not be read, or does not fit the tables."""


def name_of_dtype(dtype: np.dtype[Any]) -> Any:
    """A dtype as JSON."""
    if dtype.kind == "V" and dtype.fields is None:
        return dtype.name  # bfloat16 and the like, which numpy knows by name once their package is imported
    return np.lib.format.dtype_to_descr(dtype)


def dtype_of(name: Any) -> np.dtype[Any]:
    """The dtype of that name.

    Raises:
        CheckpointError: it is of a package that is not installed.
    """
    if isinstance(name, list):
        fields: np.dtype[Any] = np.lib.format.descr_to_dtype([_tuples(field) for field in name])
        return fields
    with contextlib.suppress(ImportError):
        import ml_dtypes  # noqa: F401  (it teaches numpy its names)
    try:
        return np.dtype(str(name))
    except TypeError as error:
        raise CheckpointError(f"the checkpoint has arrays of dtype {name!r}: install ml_dtypes to read it") from error


def _tuples(descr: Any) -> Any:
    """Lists from JSON as the tuples that numpy wants, but for lists of fields."""
    name, kind, *shape = descr
    kind = [_tuples(field) for field in kind] if isinstance(kind, list) else kind
    return (name, kind, *(tuple(each) for each in shape))


@final
class ArrayWriter:
    """Puts arrays one after the other into a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._offset = 0

    def put(self, array: npt.NDArray[Any]) -> dict[str, Any]:
        """Writes an array; returns what `ArrayReader.get` needs. Arrays of objects hold bytes, or nothing."""
        if not array.dtype.hasobject:
            return {"dtype": name_of_dtype(array.dtype), "shape": array.shape, **self._write(array)}
        cells = [cell if isinstance(cell, bytes) else b"" for cell in array.ravel()]
        lengths = np.array([len(cell) for cell in cells], np.int64)
        packed = np.frombuffer(b"".join(cells), np.uint8)
        return {"shape": array.shape, "lengths": self.put(lengths), "packed": self.put(packed)}

    def _write(self, array: npt.NDArray[Any]) -> dict[str, int]:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        start, check = self._offset, 0
        for first in range(0, data.size, _PIECE_BYTES):
            piece = data[first : first + _PIECE_BYTES].data
            self._file.write(piece)
            check = zlib.crc32(piece, check)
        self._offset += data.size
        return {"offset": start, "bytes": data.size, "crc32": check}


@final
class ArrayReader:
    """Reads back what an `ArrayWriter` wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._size = path.stat().st_size

    def get(self, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
        """The array of that entry.

        Raises:
            CheckpointError: the file is not what was written.
        """
        shape = tuple(entry["shape"])
        if "lengths" not in entry:
            return self._read(entry).view(dtype_of(entry["dtype"])).reshape(shape)
        packed = self.get(entry["packed"]).tobytes()
        lengths = self.get(entry["lengths"])
        if lengths.sum() != len(packed) or (lengths < 0).any():
            raise CheckpointError(f"{self._path} does not have the text that the index speaks of")
        ends = lengths.cumsum().tolist()
        cells = np.empty(len(ends), object)
        cells[:] = [packed[first:stop] for first, stop in zip([0, *ends], ends, strict=False)]
        return cells.reshape(shape)

    def _read(self, entry: Mapping[str, Any]) -> npt.NDArray[np.uint8]:
        end = entry["offset"] + entry["bytes"]
        if end > self._size:
            raise CheckpointError(f"{self._path} is cut off: it has {self._size} bytes, and should have {end} at least")
        data = np.empty(entry["bytes"], np.uint8)
        self._file.seek(entry["offset"])
        check = 0
        for first in range(0, data.size, _PIECE_BYTES):
            piece = data[first : first + _PIECE_BYTES].data
            if self._file.readinto(piece) != len(piece):
                break
            check = zlib.crc32(piece, check)
        if check != entry["crc32"]:
            raise CheckpointError(
                f"{self._path} is damaged at byte {entry['offset']}; remove its directory to restore the checkpoint "
                "before it, if there is one"
            )
        return data

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


@final
class CheckpointRoot:
    """A directory of checkpoints.

    Args:
        path: made with the first checkpoint.
        keep_latest: older checkpoints are removed once a new one is complete; at least 1.
    """

    def __init__(self, path: Path, keep_latest: int) -> None:
        self.path = path
        self._keep = keep_latest

    def all(self) -> list[Path]:
        """The complete checkpoints, oldest first."""
        names = [child for child in self.path.glob("[0-9]*") if child.name.isdigit()] if self.path.is_dir() else []
        return sorted(names, key=lambda child: int(child.name))

    def below(self) -> list[Path]:
        """Directories in this one that are such as well."""
        children = self.path.iterdir() if self.path.is_dir() else []
        return sorted(child for child in children if child.is_dir() and CheckpointRoot(child, 1).all())

    def begin(self) -> Path:
        """Makes a directory to write the next one in; removes what was left unfinished."""
        self.path.mkdir(parents=True, exist_ok=True)
        for prefix in (_UNFINISHED, _DOOMED):
            for child in self.path.glob(f"{prefix}*"):
                shutil.rmtree(child)
        known = self.all()
        number = int(known[-1].name) + 1 if known else 1
        folder = self.path / f"{_UNFINISHED}{number:0{_DIGITS}d}"
        folder.mkdir()
        return folder

    def finish(self, folder: Path) -> Path:
        """The directory is complete: gives it its name, and removes checkpoints that are too old."""
        _sync(folder)
        final = self.path / folder.name.removeprefix(_UNFINISHED)
        folder.rename(final)
        _sync(self.path)
        for old in self.all()[: -self._keep]:
            doomed = old.rename(self.path / f"{_DOOMED}{old.name}")
            shutil.rmtree(doomed)
        return final

    def abandon(self, folder: Path) -> None:
        """The directory will not be completed."""
        shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_arrays(folder: Path) -> BinaryIO:
    """The file for the arrays of a new checkpoint."""
    return (folder / _ARRAYS).open("wb", buffering=1 << 20)


def is_checkpoint(folder: Path) -> bool:
    """Whether the directory is a checkpoint."""
    return (folder / _INDEX).is_file() and (folder / _ARRAYS).is_file()


def write_index(folder: Path, index: dict[str, Any]) -> None:
    """Writes the index of a new checkpoint, to the disk."""
    whole = {"version": VERSION, **index}
    with (folder / _INDEX).open("w") as file:
        json.dump({**whole, "crc32": _checksum(whole)}, file)
        file.flush()
        os.fsync(file.fileno())


def _checksum(index: dict[str, Any]) -> int:
    """Of the contents, however they are written."""
    return zlib.crc32(json.dumps(index, sort_keys=True).encode())


def read_index(folder: Path) -> tuple[dict[str, Any], ArrayReader]:
    """The index of a checkpoint, and what reads its arrays.

    Raises:
        CheckpointError: it is not one, damaged, or of a later version.
    """
    try:
        index = json.loads((folder / _INDEX).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder} is not a checkpoint of the replay service: {error}") from error
    if not isinstance(index, dict):
        raise CheckpointError(f"{folder} is not a checkpoint of the replay service: its index is no JSON object")
    if index.get("version") != VERSION:
        raise CheckpointError(
            f"{folder} is of version {index.get('version')} of the format; this release reads version {VERSION}"
        )
    if "crc32" in index and index.pop("crc32") != _checksum(index):
        raise CheckpointError(
            f"{folder / _INDEX} is damaged; remove its directory to restore the checkpoint before it, if there is one"
        )
    try:
        return index, ArrayReader(folder / _ARRAYS)
    except OSError as error:
        raise CheckpointError(f"{folder} lacks a part of the checkpoint, the arrays: {error}") from error
