"""How experience gets into the tables of a replay service: room first, then the experience."""

from __future__ import annotations

import os
import secrets
from typing import Any, final

import numpy as np

from topology.errors import ReplayDeadlineExceeded
from topology.nodes import replay
from topology.nodes.store.parcel import Parcel
from topology.nodes.store.replay_items import Packed, pack

__all__ = ["ReplayWriter"]

_LEAST_S = 0.1  # what the confirmation of room may take, however little time there is for it to come


@final
class ReplayWriter:
    """For one thread at a time.

    Args:
        client: of the replay server.
        name: of the memory.
    """

    def __init__(self, client: replay.Client, name: str) -> None:
        self._client = client
        self._name = name
        self._ids = secrets.token_hex(6)
        self._number = 0
        self._room: replay.TrajectoryWriter | None = None
        self._reserved = 0  # steps for which room was asked for, and that are not written
        self._data: replay.TrajectoryWriter | None = None
        self._form: tuple[Any, ...] = ()

    def reserve(self, steps: int, timeout_s: float) -> bool:
        """Takes room for so many steps; whether it came in that time. What was asked for in vain counts next time."""
        if self._room is None:
            self._room = self._client.trajectory_writer(1)
        more = steps - self._reserved
        if more > 0:
            self._room.append_batch({"step": np.zeros(more, "u1")})
            self._room.create_items(f"{self._name}.room", [0.0] * more, {"step": self._room.history["step"][-1:]})
            self._reserved = steps
        try:
            self._room.flush(self._reserved - steps, timeout_ms=int(1000 * max(_LEAST_S, timeout_s)))
        except ReplayDeadlineExceeded:
            return False
        return True

    def write(self, parcel: Parcel) -> str:
        """Writes what room was taken for; its id, when the server has it."""
        self._number += 1
        id_ = f"{self._ids}-{os.getpid()}-{self._number}"  # a fork counts on from here, too
        packed = pack(parcel, id_)
        if self._data is None or self._form != packed.form:
            if self._data is not None:
                self._data.close()
            self._data, self._form = self._client.trajectory_writer(2), packed.form
        self._append(self._data, packed)
        self._reserved -= parcel.steps
        return id_

    def _append(self, writer: replay.TrajectoryWriter, packed: Packed) -> None:
        writer.append({"head": packed.head})
        writer.append_batch({"columns": packed.columns})
        head = writer.history["head"][-packed.steps - 1]
        columns = {name: writer.history["columns"][name][-packed.steps :] for name in packed.columns}
        writer.create_item(self._name, 0.0, {"head": head, "columns": columns})
        writer.create_item(f"{self._name}.bell", 0.0, {"head": head})
        writer.flush()
