"""Operators that store experience and replay it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol, final

from topology.nodes.flow.actors import Actor
from topology.nodes.flow.batch import Batch, check_batch
from topology.nodes.flow.checks import check_callable, check_whole
from topology.nodes.flow.events import Signal, Waker
from topology.nodes.flow.gather import GatherAsync
from topology.nodes.flow.inspection import inspecting
from topology.nodes.flow.items import Item
from topology.nodes.flow.local_iterator import LocalIterator
from topology.nodes.flow.metrics import STEPS_SAMPLED_COUNTER, get_shared_metrics
from topology.nodes.flow.parallel_iterator import Source
from topology.nodes.flow.remote_shards import Shard
from topology.nodes.flow.replay_buffers import ReplayBuffer, SimpleReplayBuffer
from topology.nodes.flow.replay_by_policy import LocalReplayBuffer
from topology.nodes.flow.stages import Operator, Outcome, Stage
from topology.nodes.flow.storing import Senders, crew_of

__all__ = ["LocalReplay", "MixInReplay", "Replay", "StoreToReplayBuffer", "WaitUntilTimestepsElapsed"]


class _Stores(Protocol):
    def add_batch(self, batch: Batch) -> None: ...


@final
class StoreToReplayBuffer(Operator):
    """Stores each batch, and hands it on.

    Args:
        local_buffer: where to, in the driver's process; or
        actors: of `ReplayActor`s, one of which is drawn for each batch. While 16 batches are on their way to it,
            nothing new is asked for.
        seed: of the drawing.

    Raises:
        ValueError: both are given, or neither.
    """

    def __init__(
        self,
        local_buffer: _Stores | None = None,
        actors: Sequence[Actor] | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        _one_of(local_buffer, actors, "StoreToReplayBuffer")
        if local_buffer is not None:
            check_callable("add_batch() of local_buffer", getattr(local_buffer, "add_batch", None))
        self._buffer = local_buffer
        self._senders = None if actors is None else Senders(actors, seed)
        self.flow_replays = () if local_buffer is None else (local_buffer,)

    def process(self, item: Item, waker: Waker) -> Any:
        batch = check_batch(item.value, "StoreToReplayBuffer")
        if self._buffer is not None:
            self._buffer.add_batch(batch)
        elif self._senders is not None and not self._senders.try_send(batch, waker):
            return Signal.STALLED
        return batch


def _one_of(local_buffer: object, actors: object, who: str) -> None:
    if (local_buffer is None) == (actors is None):
        raise ValueError(f"{who} takes either local_buffer or actors")
    if actors is not None and not actors and not inspecting():
        raise ValueError(f"{who} was given no actors: the plan has no replay nodes (replay_actors of PlanNode)")


@final
class _LocalReplay(Stage):
    name = "Replay(local)"

    def __init__(self, buffer: LocalReplayBuffer | SimpleReplayBuffer | ReplayBuffer, num_items: int | None) -> None:
        self._buffer = buffer
        self._num_items = num_items
        self.flow_replays = (buffer,)

    def poll(self, waker: Waker) -> Outcome:
        waker.check()
        batch = self._draw()
        if batch is not None:
            return Item(batch)
        if isinstance(self._buffer, LocalReplayBuffer):
            self._buffer.listen(waker)
        return Signal.STALLED

    def _draw(self) -> Any:
        if isinstance(self._buffer, ReplayBuffer):
            assert self._num_items is not None
            return self._buffer.sample(self._num_items) if len(self._buffer) else None
        if isinstance(self._buffer, SimpleReplayBuffer) and not len(self._buffer):
            return None
        return self._buffer.replay()


def Replay(  # noqa: N802 - its name
    *,
    local_buffer: LocalReplayBuffer | SimpleReplayBuffer | None = None,
    actors: Sequence[Actor] | None = None,
    num_async: int = 4,
) -> LocalIterator[Any]:
    """Batches drawn from a buffer, as long as they are asked for.

    While there is not enough to draw from, the turn goes to the other flows of the plan.

    Args:
        local_buffer: a buffer in the driver's process; or
        actors: of `ReplayActor`s. They are the source of what they give, see `zip_with_source_actor`.
        num_async: requests of each actor under way.

    Raises:
        ValueError: both are given, or neither.
    """
    _one_of(local_buffer, actors, "Replay")
    if isinstance(local_buffer, ReplayBuffer):
        raise ValueError(  # noqa: TRY004 - the wrong one of two
            "Replay() draws from a LocalReplayBuffer or a SimpleReplayBuffer; from a ReplayBuffer, which does not know "
            "how much to draw, LocalReplay(buffer, train_batch_size) does"
        )
    if local_buffer is not None:
        return LocalIterator(_LocalReplay(local_buffer, None))
    crew = crew_of(actors or ())
    shards = [Source(actor, crew).open() for actor in actors or ()]
    return LocalIterator(GatherAsync(shards, "Replay(actors)", num_async=num_async, prefetch=True, cold=_when_warm))


def _when_warm(shard: Shard) -> Future[Any]:
    return shard.actor.submit("when_warm")


def LocalReplay(replay_buffer: ReplayBuffer, train_batch_size: int) -> LocalIterator[Any]:  # noqa: N802 - its name
    """Batches of `train_batch_size` steps from a `ReplayBuffer`, from the first store on.

    Raises:
        ValueError: `train_batch_size` below 1.
    """
    check_whole("train_batch_size", train_batch_size, 1)
    return LocalIterator(_LocalReplay(replay_buffer, train_batch_size))


@final
class MixInReplay:
    """Adds old batches to new ones: gives a list of the new batch and, on average, `replay_proportion` old ones.

    Args:
        num_slots: batches kept.
        replay_proportion: old batches for each new one.
        seed: of the drawing.

    Raises:
        ValueError: old batches are wanted, but none are kept; or a negative number.
    """

    def __init__(self, num_slots: int, replay_proportion: float, *, seed: int | None = None) -> None:
        if not replay_proportion >= 0 or (replay_proportion > 0 and not num_slots):
            raise ValueError(
                f"replay_proportion={replay_proportion} needs num_slots above 0, got {num_slots}; both are at least 0"
            )
        self._buffer = SimpleReplayBuffer(num_slots, seed=seed)
        self.flow_replays = (self._buffer,)
        self._proportion = replay_proportion
        self._random = random.Random(seed)

    def __call__(self, batch: Batch) -> list[Batch]:
        """The batch, and old ones."""
        batches = [check_batch(batch, "MixInReplay")]
        self._buffer.add_batch(batch)
        whole = math.floor(self._proportion)
        count = whole + (self._random.random() < self._proportion - whole)
        batches += [self._buffer.replay() for _ in range(count)]
        return batches


@final
class WaitUntilTimestepsElapsed:
    """Lets items pass once more than so many steps were sampled. Use with `filter`."""

    def __init__(self, target_num_timesteps: int) -> None:
        self._target = target_num_timesteps

    def __call__(self, item: Any) -> bool:  # noqa: ARG002 - what passes does not matter
        """Whether it is time."""
        return get_shared_metrics().counters[STEPS_SAMPLED_COUNTER] > self._target
