"""The rows of a node as event files for TensorBoard, without TensorFlow.

    tensorboard --logdir <run directory>/tensorboard

An event file is a list of records: length, its checksum, a serialized message, its checksum. So a row is appended like
a line of text, and nothing is to be closed, or lost when the node is killed.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, SupportsFloat, final

from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import LaunchError, ProgramError

__all__ = ["EventWriter", "check_installed"]

_STEPS = ("actor_steps", "learner_steps")
_VERSION = "brain.Event:2"  # of the format; the first record of a file says so


def check_installed() -> None:
    """Raises `ProgramError` when what writes event files is not installed."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise ProgramError(
            "tensorboard=True needs tensorboardX: pip install 'rl-topology[tensorboard]', or leave it out: the same "
            "rows are in the metrics of the run directory"
        ) from error


@final
class EventWriter:
    """Appends rows to an event file of its own. For one thread at a time.

    The step of a row is its `actor_steps`, else its `learner_steps`, else its number.

    Args:
        directory: made at the first row. A run that goes on adds a file to it.
        clock: gives the time of a row, in seconds since the epoch.

    Raises:
        ProgramError: see `check_installed`.
    """

    def __init__(self, directory: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        check_installed()
        self._directory = directory
        self._clock = clock
        self._path: Path | None = None
        self._rows = 0

    def write(self, **values: SupportsFloat) -> None:
        """Appends a row. Values that are not finite are left out.

        Raises:
            LaunchError: the file cannot be written, e.g. on a full disk.
        """
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        now, self._rows = self._clock.time(), self._rows + 1
        numbers = {name: float(value) for name, value in values.items()}
        step = next((int(numbers[name]) for name in _STEPS if name in numbers), self._rows)
        scalars = [
            Summary.Value(tag=name, simple_value=number) for name, number in numbers.items() if math.isfinite(number)
        ]
        records = [Event(wall_time=now, step=step, summary=Summary(value=scalars))]
        if self._path is None:
            self._path = self._directory / f"events.out.tfevents.{int(now)}.{os.getpid()}"
            records.insert(0, Event(wall_time=now, file_version=_VERSION))
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(b"".join(map(_framed, records)))
        except OSError as error:
            raise LaunchError(
                f"The event file {self._path} cannot be written: {error.strerror or error}. Make room there, or run "
                "without tensorboard."
            ) from error


def _framed(event: Any) -> bytes:
    from tensorboardX.record_writer import masked_crc32c

    data: bytes = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join([length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))])
