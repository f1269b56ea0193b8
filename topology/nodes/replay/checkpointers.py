"""Checkpointers: where the tables of a server are saved, and restored from when it starts.

    Server(tables, checkpointer=DefaultCheckpointer("/data/replay"))    # restores the newest, if there is one
    client.checkpoint()                                                 # saves

Saving holds up each table only while its indices are copied; the bytes are written while the server goes on. Steps that
items share are stored once. What a checkpoint holds: items with keys, priorities, times sampled and order; counts of
the rate limiters; how many items of each writer were taken; the state of the random generators. Not: calls that wait,
samples that are on their way.

Of the settings, those the server is started with win: selectors, `max_size` (a smaller one removes items as inserts
would), `max_times_sampled` (items that have reached a smaller one are removed), and the rate limiter (whose counts go
on). The signature must admit every stored item.
"""

from __future__ import annotations

import abc
import logging
import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import final

from topology.clock import SYSTEM_CLOCK
from topology.nodes.replay import checkpoint_files as files
from topology.nodes.replay.checkpoint_files import CheckpointError, CheckpointRoot
from topology.nodes.replay.checks import check_count
from topology.nodes.replay.layouts import Store
from topology.nodes.replay.snapshots import restore, save
from topology.nodes.replay.table import Table

__all__ = ["CheckpointError", "CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer", "default_checkpointer"]

_logger = logging.getLogger(__name__)


class CheckpointerBase(abc.ABC):
    """What a server needs of a checkpointer."""

    @abc.abstractmethod
    def save(self, tables: Mapping[str, Table]) -> str:
        """Saves the tables; returns the path of the checkpoint. Blocks until it is on the disk.

        Raises:
            CheckpointError: it could not be written. Checkpoints from before are as they were.
        """

    @abc.abstractmethod
    def load_latest(self, tables: Mapping[str, Table], store: Store) -> str | None:
        """Restores the newest checkpoint into tables that are empty; returns its path, or None when there is none.

        Raises:
            CheckpointError: it is damaged, or does not fit the tables.
        """


class DefaultCheckpointer(CheckpointerBase):
    """Keeps checkpoints in a directory of a local or shared file system.

    Args:
        path: directory of the checkpoints: the one above them, not one of them.
        group: a directory below `path`, to tell servers apart that share it.
        fallback_checkpoint_path: restored when there is no checkpoint in `path` yet: a checkpoint, or a directory of
            them. Never written to.
        keep_latest: checkpoints kept; older ones are removed when a new one is complete.

    Raises:
        ValueError: `keep_latest` is below 1, or `path` is itself a checkpoint.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        group: str = "",
        fallback_checkpoint_path: str | os.PathLike[str] | None = None,
        *,
        keep_latest: int = 1,
    ) -> None:
        keep_latest = check_count("keep_latest", keep_latest)
        root = Path(path).expanduser().absolute() / group
        if files.is_checkpoint(root):
            raise ValueError(f"{root} is a checkpoint: give the directory above it, {root.parent}")
        self._root = CheckpointRoot(root, keep_latest)
        self._fallback = None if fallback_checkpoint_path is None else Path(fallback_checkpoint_path).expanduser()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._root.path}>"

    @property
    def path(self) -> str:
        """The directory of the checkpoints, group included."""
        return str(self._root.path)

    def save(self, tables: Mapping[str, Table]) -> str:
        with self._lock:
            folder = None
            try:
                folder = self._root.begin()
                save(tables, folder, SYSTEM_CLOCK.time())
                return str(self._root.finish(folder))
            except (OSError, MemoryError) as error:
                if folder is not None:
                    self._root.abandon(folder)
                known = self._root.all()
                kept = f"; the checkpoint before it, {known[-1]}, is intact" if known else ""
                raise CheckpointError(f"no checkpoint was written to {self._root.path}: {error}{kept}") from error

    def load_latest(self, tables: Mapping[str, Table], store: Store) -> str | None:
        known = self._root.all()
        if known:
            found = known[-1]
        elif self._fallback is not None:
            found = self._find_fallback(self._fallback)
        else:
            self._report_none()
            return None
        with self._lock:
            restore(tables, store, found)
        _logger.info("replay: the tables are restored from %s", found)
        return str(found)

    def _report_none(self) -> None:
        """Nothing is there to restore; says so aloud where it looks like a mistake."""
        below = ", ".join(map(str, self._root.below()))
        if below:
            _logger.warning(
                "replay: no checkpoint in %s, but in %s: give that path, or its last part as group. The tables begin "
                "empty",
                self._root.path,
                below,
            )
        else:
            _logger.info("replay: no checkpoint in %s: the tables begin empty", self._root.path)

    @staticmethod
    def _find_fallback(path: Path) -> Path:
        if files.is_checkpoint(path):
            return path
        known = CheckpointRoot(path, 1).all()
        if not known:
            raise CheckpointError(f"fallback_checkpoint_path={str(path)!r} is no checkpoint, nor are there any in it")
        return known[-1]


@final
class TempDirCheckpointer(DefaultCheckpointer):
    """Keeps the newest checkpoint in a fresh temporary directory, for as long as the machine keeps that."""

    def __init__(self, group: str = "") -> None:
        super().__init__(tempfile.mkdtemp(prefix="replay-"), group)


def default_checkpointer() -> CheckpointerBase:
    """A checkpointer for those who have no wish of their own."""
    return TempDirCheckpointer()
