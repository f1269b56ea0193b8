"""A data store in a directory, of a local disk or shared over NFS.

    DIRECTORY/record             what readers look at: a copy of the newest record
    DIRECTORY/records/...        the last records; making the next one is what publishes
    DIRECTORY/policies/...       bytes of policies and states, never changed

Every file is written beside its place, forced to the disk, and put there whole; the record comes last. Nothing is ever
locked: of two writers, one makes the next record's file, with a hard link, which NFS does at the server. Readers look
again after a while; notification by the kernel does not reach over NFS.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import unquote, urlsplit

from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable
from topology.nodes.store.codec import Buffer
from topology.nodes.store.policies import DEFAULT_KEEP, DataStore
from topology.nodes.store.policy_medium import BlobMissing, Medium
from topology.nodes.store.policy_patience import patient
from topology.nodes.store.policy_waits import Wait, check_pauses
from topology.nodes.store.record_chain import RECORDS, Chain, Files
from topology.nodes.store.record_store import RecordStore

__all__ = ["DirectoryMedium", "open_directory_store"]

_POLICIES: Final = "policies"
_ASIDE: Final = ".unfinished"
_POLL_S: Final = (0.002, 0.05)  # a look opens two files: cheap, also over NFS
_MOST_STALE: Final = 8  # times that a file may be replaced while it is read, before it is taken for something worse

_REASONS = {
    errno.ENOSPC: "the disk is full: make room there, keep fewer policies, or take another directory",
    errno.EDQUOT: "the quota is used up: make room there, keep fewer policies, or take another directory",
    errno.EACCES: "this user may not: change its permissions, or take another directory",
    errno.EPERM: "the file system does not allow it (it must know hard links): take another directory",
    errno.EROFS: "the file system is read-only: mount it for writing, or take another directory",
    errno.ENOTDIR: "there is a file where the directory should be: remove it, or take another directory",
    errno.EEXIST: "there is a file where the directory should be: remove it, or take another directory",
    errno.ESTALE: "the NFS server does not know it any more: mount it anew, or take another directory",
    errno.ETIMEDOUT: "its server does not answer",
    errno.EHOSTDOWN: "its server does not answer",
    errno.EHOSTUNREACH: "its server cannot be reached",
}

_FULL = {errno.ENOSPC, errno.EDQUOT}
_AWAY = {errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH}  # of file servers
_LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}  # however often it is tried again


def open_directory_store(
    url: str,
    *,
    keep: int = DEFAULT_KEEP,
    clock: Clock = SYSTEM_CLOCK,
    poll_s: tuple[float, float] = _POLL_S,
    patience_s: float = 0.0,
) -> DataStore:
    """See `open_data_store`. The directory is made with the first thing that is written.

    `patience_s` is for a disk that is full, and for a file server that is away.

    Raises:
        ValueError: a url of another machine.
        StoreError: there is a file, or a directory that may not be read.
    """
    medium = patient(DirectoryMedium(_path(url), poll_s=poll_s), patience_s, clock)
    store = RecordStore(medium, keep=keep, clock=clock)
    store.check()
    return store


def _path(url: str) -> Path:
    if not url.startswith("file:"):
        return Path(url).expanduser().absolute()
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"}:
        raise ValueError(f"{url!r} names the machine {parts.netloc!r}; a directory is file:///PATH, with three slashes")
    return Path(unquote(parts.path)).absolute()


@final
class DirectoryMedium(Medium, Files):
    """See `Medium`.

    Args:
        root: the directory.
        poll_s: shortest and longest pause between two looks, in seconds.
    """

    def __init__(self, root: Path, *, poll_s: tuple[float, float] = _POLL_S) -> None:
        self._root = root
        self._poll_s = check_pauses(poll_s)
        self._chain = Chain(self)

    def __repr__(self) -> str:
        return str(self._root)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._root, self._poll_s)

    def check(self) -> None:
        with self._explained("opened"):
            if self._root.exists() and not self._root.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "is a file", str(self._root))

    def read(self) -> bytes | None:
        return self._chain.read()

    def write(self, revision: int, record: bytes, blobs: Sequence[str]) -> bool:
        if missing := [name for name in blobs if not (self._root / _POLICIES / name).exists()]:
            raise BlobMissing(f"{missing} is gone from {self._root}")
        return self._chain.write(revision, record)

    def wait_changed(self, revision: int, wait: Wait, most_s: float = math.inf) -> None:  # noqa: ARG002 - it looks itself
        wait.pause_growing(self._poll_s, most_s)

    def close(self) -> None:
        """Nothing is held."""

    # --- bytes of policies --------------------------------------------------------------------------------------------

    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        self._write_over(f"{_POLICIES}/{name}", parts)

    def get(self, name: str) -> Buffer:
        data = self._read(f"{_POLICIES}/{name}")
        if data is None:
            raise BlobMissing(f"{name} is not in {self._root}")
        return data

    def delete(self, names: Iterable[str]) -> None:
        with self._explained("cleaned up"):
            for name in names:
                (self._root / _POLICIES / name).unlink(missing_ok=True)

    def leftovers(self) -> list[str]:
        with self._explained("read"):
            for child in self._root.glob(f"*{_ASIDE}"):
                child.unlink(missing_ok=True)
            for child in (self._root / RECORDS).glob(f"*{_ASIDE}"):
                child.unlink(missing_ok=True)
            return self.list_files(_POLICIES)

    # --- files --------------------------------------------------------------------------------------------------------

    def read_file(self, name: str) -> bytes | None:
        data = self._read(name)
        return None if data is None else bytes(data)

    def make_file(self, name: str, data: bytes) -> bool:
        with self._explained("written"), self._aside(name, [data]) as aside:
            try:
                os.link(aside, self._root / name)
            except FileExistsError:
                # NFS may ask its server twice, and be told the second time that it is there.
                if os.stat(aside).st_nlink != 2:
                    return False
            _sync(aside.parent)
            return True

    def write_file(self, name: str, data: bytes) -> None:
        self._write_over(name, [data])

    def remove_file(self, name: str) -> None:
        with self._explained("cleaned up"):
            (self._root / name).unlink(missing_ok=True)

    def list_files(self, folder: str) -> list[str]:
        with self._explained("read"):
            place = self._root / folder
            children = list(place.iterdir()) if place.is_dir() else []
            # What was removed while somebody reads it lives on in NFS under a name like that, and cannot be removed.
            return [child.name for child in children if child.is_file() and not child.name.startswith(".nfs")]

    def _read(self, name: str) -> bytearray | None:
        with self._explained("read"):
            for attempt in itertools.count(1):
                try:
                    with open(self._root / name, "rb", buffering=0) as file:
                        data = bytearray(os.fstat(file.fileno()).st_size)
                        _read_into(file, memoryview(data))
                        return data
                except FileNotFoundError:
                    return None
                except OSError as error:
                    # NFS: replaced while we opened it; what is there now can be opened.
                    if error.errno != errno.ESTALE or attempt == _MOST_STALE:
                        raise
            raise AssertionError("unreachable")

    def _write_over(self, name: str, parts: Sequence[Buffer]) -> None:
        with self._explained("written"), self._aside(name, parts) as aside:
            os.replace(aside, self._root / name)
            _sync(aside.parent)

    @contextlib.contextmanager
    def _aside(self, name: str, parts: Sequence[Buffer]) -> Iterator[Path]:
        """A file beside the place of `name`, on the disk; gone afterwards, wherever it failed."""
        place = self._root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = place.with_name(f"{place.name}.{secrets.token_hex(4)}{_ASIDE}")
        try:
            with open(aside, "xb", buffering=0) as file:
                for part in parts:
                    _write_all(file.fileno(), memoryview(part).cast("B"))
                os.fsync(file.fileno())
            yield aside
        finally:
            aside.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, "see the reason of the system")
            raise _kind(error)(f"the data store in {self._root} cannot be {what}: {error}; {reason}") from error


def _kind(error: OSError) -> type[StoreError]:
    kinds = ((_FULL, StoreFull), (_AWAY, StoreUnavailable), (_LASTING, StoreDenied))
    return next((kind for numbers, kind in kinds if error.errno in numbers), StoreError)


def _rebuild(root: Path, poll_s: tuple[float, float]) -> DirectoryMedium:
    return DirectoryMedium(root, poll_s=poll_s)


def _read_into(file: Any, memory: memoryview) -> None:
    while memory and (count := file.readinto(memory)):
        memory = memory[count:]


def _write_all(descriptor: int, memory: memoryview) -> None:
    while memory:
        memory = memory[os.write(descriptor, memory) :]


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
