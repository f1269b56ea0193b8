"""Replay of several policies, in the driver's process or in a node of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Literal, final

import numpy.typing as npt

from topology.context import get_context
from topology.nodes.courier.methods import asynchronous
from topology.nodes.flow.batch import Batch, MultiAgentBatch, SampleBatch, check_batch
from topology.nodes.flow.checkpoints import files_of_node
from topology.nodes.flow.checks import check_whole
from topology.nodes.flow.events import Waker
from topology.nodes.flow.replay_buffers import OURS, ReplayBuffer
from topology.nodes.flow.shards import Forever, ParallelIteratorWorker

__all__ = ["LocalReplayBuffer", "ReplayActor"]


@final
class LocalReplayBuffer:
    """A `ReplayBuffer` for each policy, with a threshold below which nothing is drawn.

    Args:
        num_shards: of how many buffers this is one: capacity and threshold are divided by it.
        learning_starts: environment steps to store before anything is drawn.
        capacity: steps kept of each policy.
        replay_batch_size: steps of a batch that is drawn.
        prioritized_replay_alpha: see `ReplayBuffer`.
        prioritized_replay_beta: see `ReplayBuffer`.
        replay_mode: "independent", or "lockstep" for the same steps of all policies, which then are in every batch with
            one row for each environment step.
        replay_sequence_length: see `ReplayBuffer`.
        seed: of the drawing.

    Raises:
        ValueError: another mode, or sizes that make no sense.
    """

    def __init__(
        self,
        num_shards: int = 1,
        learning_starts: int = 1000,
        capacity: int = 10_000,
        replay_batch_size: int = 32,
        prioritized_replay_alpha: float = 0.6,
        prioritized_replay_beta: float = 0.4,
        replay_mode: Literal["independent", "lockstep"] = "independent",
        replay_sequence_length: int = 1,
        *,
        seed: int | None = None,
    ) -> None:
        if replay_mode not in ("independent", "lockstep"):
            raise ValueError(f"replay_mode must be 'independent' or 'lockstep', got {replay_mode!r}")
        check_whole("num_shards", num_shards, 1)
        check_whole("learning_starts", learning_starts, 0)
        check_whole("replay_batch_size", replay_batch_size, 1)
        check_whole("replay_sequence_length", replay_sequence_length, 1)
        check_whole("capacity", capacity, num_shards * replay_sequence_length)
        if not prioritized_replay_alpha >= 0 or not prioritized_replay_beta >= 0:
            raise ValueError(
                "prioritized_replay_alpha and prioritized_replay_beta must be at least 0, got "
                f"{prioritized_replay_alpha} and {prioritized_replay_beta}"
            )
        self._starts = learning_starts // num_shards
        self._draws = max(1, replay_batch_size // replay_sequence_length)
        self._lockstep = replay_mode == "lockstep"
        self._settings: dict[str, Any] = {
            "size": capacity // num_shards,
            "alpha": prioritized_replay_alpha,
            "beta": prioritized_replay_beta,
            "sequence_length": replay_sequence_length,
        }
        self._seed = seed
        self.buffers: dict[str, ReplayBuffer] = {}
        self.num_added = 0
        self._listeners: set[Waker] = set()

    def add_batch(self, batch: Batch) -> None:
        """Keeps the steps of a batch, as copies."""
        several = check_batch(batch, "a LocalReplayBuffer").as_multi_agent()
        if self._lockstep:
            self._buffer(_ALL).add_batch(_join(several))
        else:
            for name, part in several.policy_batches.items():
                self._buffer(name).add_batch(part)
        self.num_added += batch.env_steps()
        for waker in self._listeners:
            waker.wake()
        self._listeners.clear()

    @property
    def is_warm(self) -> bool:
        """Whether there is enough to draw from."""
        return bool(self.buffers) and self.num_added >= self._starts

    def replay(self) -> MultiAgentBatch | None:
        """A batch of each policy; None while there is not enough to draw from."""
        if not self.is_warm:
            return None
        samples = {name: buffer.sample(self._draws) for name, buffer in self.buffers.items()}
        if self._lockstep:
            samples = _split(samples[_ALL])
        return MultiAgentBatch(samples, max(sample.count for sample in samples.values()))

    def update_priorities(self, priorities: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
        """Sets priorities, by policy id: the column `batch_indexes` of a sample, and the new values."""
        for name, (indexes, values) in priorities.items():
            self._buffer(_ALL if self._lockstep else name).update_priorities(indexes, values)

    def listen(self, waker: Waker) -> None:
        """Wakes it when something is stored."""
        self._listeners.add(waker)

    def stats(self) -> dict[str, Any]:
        """Steps in each policy's buffer, and those ever added."""
        sizes = {name: len(buffer) for name, buffer in self.buffers.items()}
        return {"sizes": sizes, "num_added": self.num_added}

    def get_state(self) -> dict[str, Any]:
        """All that is in it, as plain data."""
        return {
            "num_added": self.num_added,
            "buffers": {name: buffer.get_state() for name, buffer in self.buffers.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes `get_state` back."""
        self.num_added = state["num_added"]
        for name, part in state["buffers"].items():
            self._buffer(name).set_state(part)

    def close(self) -> None:
        """Frees what it holds. Idempotent."""
        for buffer in self.buffers.values():
            buffer.close()

    def _buffer(self, name: str) -> ReplayBuffer:
        if name not in self.buffers:
            seed = None if self._seed is None else self._seed + len(self.buffers)
            self.buffers[name] = ReplayBuffer(**self._settings, seed=seed)
        return self.buffers[name]


_ALL = "all policies"
_SEPARATOR = "\t"


def _join(batch: MultiAgentBatch) -> SampleBatch:
    """The columns of all policies side by side."""
    columns = {
        f"{policy}{_SEPARATOR}{name}": column
        for policy, part in batch.policy_batches.items()
        for name, column in part.items()
    }
    return SampleBatch(columns)


def _split(joined: SampleBatch) -> dict[str, SampleBatch]:
    shared = {name: joined[name] for name in OURS}
    parts: dict[str, dict[str, Any]] = {}
    for name, column in joined.items():
        if name not in OURS:
            policy, _, rest = name.partition(_SEPARATOR)
            parts.setdefault(policy, dict(shared))[rest] = column
    return {policy: SampleBatch(columns) for policy, columns in parts.items()}


class ReplayActor(ParallelIteratorWorker):
    """A `LocalReplayBuffer` of its own place, whose items are batches; None while there is not enough.

    Args:
        *args: as for `LocalReplayBuffer`.
        checkpoint_period_s: seconds from one state on disk to the next, when something is stored; one more is saved
            when the program stops. They are kept under `checkpoints/replay` of the run directory; a node that is begun
            where there is one goes on from it. None for none.
        **kwargs: as for `LocalReplayBuffer`.

    Raises:
        ValueError: see `LocalReplayBuffer`; or a period that is not above 0, or of a run without a run directory.
    """

    def __init__(self, *args: Any, checkpoint_period_s: float | None = None, **kwargs: Any) -> None:
        super().__init__(Forever(self.replay))
        self._buffer = LocalReplayBuffer(*args, **kwargs)
        self._turn = threading.Lock()  # the buffer is for one thread at a time
        self._lock = threading.Lock()
        self._waiting: list[Future[None]] = []
        self._files = files_of_node("replay", checkpoint_period_s)
        state = None if self._files is None else self._files.newest()
        if state is not None:
            self._buffer.set_state(state)

    def run(self) -> None:
        """Until the program stops; then it saves, where it keeps states."""
        get_context().stop.wait()
        self._save()

    def _save(self) -> None:
        if self._files is not None:
            with self._turn:
                self._files.save(self._buffer.get_state())

    def add_batch(self, batch: Batch) -> None:
        """Keeps the steps of a batch."""
        with self._turn:
            self._buffer.add_batch(batch)
        if self._files is not None and self._files.due:
            self._save()
        if self._buffer.is_warm:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            for future in waiting:
                if future.set_running_or_notify_cancel():
                    future.set_result(None)

    @asynchronous
    def when_warm(self) -> Future[None]:
        """Done when there is enough to draw from."""
        future: Future[None] = Future()
        with self._lock:
            if not self._buffer.is_warm:
                self._waiting.append(future)
                return future
        future.set_result(None)
        return future

    def replay(self) -> MultiAgentBatch | None:
        """A batch; None while there is not enough."""
        with self._turn:
            return self._buffer.replay()

    def update_priorities(self, priorities: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
        """See `LocalReplayBuffer`."""
        with self._turn:
            self._buffer.update_priorities(priorities)

    def stats(self) -> dict[str, Any]:
        """See `LocalReplayBuffer`."""
        return self._buffer.stats()

    def get_state(self) -> dict[str, Any]:
        """All that is in it, as plain data."""
        return self._buffer.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes `get_state` back."""
        self._buffer.set_state(state)

    def _drop_all(self) -> None:
        super()._drop_all()
        self._buffer.close()
