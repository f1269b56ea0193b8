"""Running statistics that all workers share, as a service. What workers do with it is in `statistics_filters`.

    statistics = program.add_node(lp.CourierNode(RunningStatistics))

Each batch counts once, also when it was sent twice because nobody knew whether it had arrived.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple, final

import numpy as np

from topology.nodes.store.codec import Array
from topology.nodes.store.moments import Moments

__all__ = ["Batch", "RunningStatistics"]

_OF, _WORKERS, _SESSIONS, _SEQUENCES = "moments/", "workers", "sessions", "sequences"


class Batch(NamedTuple):
    """What a worker has counted since its batch before.

    Attributes:
        worker: its name.
        session: of the process that counts; another when the worker is started again.
        sequence: number of the batch in its session, from 0.
        name: what was counted, e.g. "observations".
        moments: of the numbers.
    """

    worker: str
    session: str
    sequence: int
    name: str
    moments: Moments


@final
class RunningStatistics:
    """Counts for all. Thread-safe; made to be served by a `CourierNode`.

    Args:
        state: of an earlier one, to go on with.
    """

    def __init__(self, state: Mapping[str, Array] | None = None) -> None:
        self._lock = threading.Lock()
        self._moments: dict[str, Moments] = {}
        self._seen: dict[tuple[str, str], tuple[str, int]] = {}  # the last batch of each worker and name
        if state is not None:
            self.restore(state)

    def add(self, batch: Batch) -> Moments:
        """Counts a batch, unless it was counted before; returns what there is of its name, by all workers.

        Raises:
            ValueError: numbers of that name have another shape.
        """
        key = batch.worker, batch.name
        with self._lock:
            known = self._moments.get(batch.name)
            session, sequence = self._seen.get(key, ("", -1))
            if session == batch.session and batch.sequence <= sequence and known is not None:
                return known
            after = batch.moments if known is None else known.merge(batch.moments)
            self._moments[batch.name] = after
            self._seen[key] = batch.session, batch.sequence
            return after

    def fetch(self, name: str) -> Moments | None:
        """What there is of that name; None when nothing was counted yet."""
        with self._lock:
            return self._moments.get(name)

    def state(self) -> dict[str, Array]:
        """All of it as arrays by name, for a checkpoint."""
        with self._lock:
            arrays: dict[str, Array] = {}
            for name, moments in self._moments.items():
                arrays |= moments.to_arrays(f"{_OF}{name}/")
            if self._seen:
                arrays[_WORKERS] = np.array(list(self._seen), np.str_)  # [N, 2]: worker and name
                arrays[_SESSIONS] = np.array([session for session, _ in self._seen.values()], np.str_)
                arrays[_SEQUENCES] = np.array([sequence for _, sequence in self._seen.values()], np.int64)
            return arrays

    def restore(self, state: Mapping[str, Array]) -> None:
        """Goes on from a state; what was counted here is forgotten.

        Raises:
            ValueError: it is not the state of one of these.
        """
        names = {key[len(_OF) :].rpartition("/")[0] for key in state if key.startswith(_OF)}
        moments = {name: Moments.from_arrays(state, f"{_OF}{name}/") for name in names}
        seen: dict[tuple[str, str], tuple[str, int]] = {}
        if _WORKERS in state:
            rows = zip(state[_WORKERS].tolist(), state[_SESSIONS].tolist(), state[_SEQUENCES].tolist(), strict=True)
            seen = {(worker, name): (session, sequence) for (worker, name), session, sequence in rows}
        with self._lock:
            self._moments, self._seen = moments, seen
