"""A record that is replaced only by its successor, where all there is are files that can be made once.

    records/000000000041     made once each: whoever makes 42 has replaced the record
    records/000000000042
    record                   a copy of the newest, written over: where readers look first

Making the file is the moment of truth. A writer that dies between it and the copy has published: readers look from the
copy onwards for later files. Where the copy is missing or damaged, the latest file counts, and the next writer makes
the copy anew. Old files are removed, the newest `KEPT` stay, so that nobody makes the file of a revision that is long
past and takes it for the next one.
"""

from __future__ import annotations

import abc
from typing import Final, final

from topology.errors import StoreDataError

__all__ = ["COPY", "KEPT", "RECORDS", "Chain", "Files"]

RECORDS: Final = "records"
COPY: Final = "record"
KEPT: Final = 64

_DIGITS = 12


class Files(abc.ABC):
    """What the chain needs: small files by name."""

    @abc.abstractmethod
    def read_file(self, name: str) -> bytes | None:
        """Its bytes; None when it is not there."""

    @abc.abstractmethod
    def make_file(self, name: str, data: bytes) -> bool:
        """Makes it, whole and safe; False, and nothing changed, when it is there already."""

    @abc.abstractmethod
    def write_file(self, name: str, data: bytes) -> None:
        """Makes it or replaces it, whole."""

    @abc.abstractmethod
    def remove_file(self, name: str) -> None:
        """Removes it, if it is there."""

    @abc.abstractmethod
    def list_files(self, folder: str) -> list[str]:
        """Names of the files in a folder, without it; in any order."""


@final
class Chain:
    """The record. Holds no state: two of them over the same files are one.

    Args:
        files: where it is kept.
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self) -> bytes | None:
        """The newest record; None when there is none."""
        revision, record = self._copy() or self._latest()
        while (later := self._files.read_file(_name(revision + 1))) is not None:
            revision, record = revision + 1, later
        return record

    def write(self, revision: int, record: bytes) -> bool:
        """Makes `record` the one of `revision`, unless another is."""
        if not self._files.make_file(_name(revision), record):
            return False
        copy = self._copy()
        newest, _ = copy or self._latest()
        if newest >= revision + KEPT // 2:
            # Ours is of the past: the file that was there had been removed. Nobody reads what is behind the copy.
            self._files.remove_file(_name(revision))
            return False
        if copy is None or copy[0] < revision:
            self._files.write_file(COPY, b"%d\n" % revision + record)
        if revision > KEPT:
            self._files.remove_file(_name(revision - KEPT))
        return True

    def _copy(self) -> tuple[int, bytes] | None:
        """Its revision and record; None where it is missing or damaged."""
        number, newline, record = (self._files.read_file(COPY) or b"").partition(b"\n")
        return (int(number), record) if newline and number.isdigit() else None

    def _latest(self) -> tuple[int, bytes | None]:
        """The latest of the files; 0 and None where there is none.

        Raises:
            StoreDataError: there is none, and a copy that is not one.
        """
        numbers = sorted((int(name) for name in self._files.list_files(RECORDS) if _is_number(name)), reverse=True)
        for number in numbers:
            if (record := self._files.read_file(_name(number))) is not None:  # not removed meanwhile
                return number, record
        if data := self._files.read_file(COPY):
            raise StoreDataError(f"the file {COPY!r} of a data store begins with {data[:40]!r}, not with a number")
        return 0, None


def _is_number(name: str) -> bool:
    return len(name) == _DIGITS and name.isdigit()


def _name(revision: int) -> str:
    return f"{RECORDS}/{revision:0{_DIGITS}d}"
