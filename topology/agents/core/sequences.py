"""Steps of an episode as sequences of one length, and their way into replay."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import dm_env
import numpy as np
from dm_env import specs

from topology.agents.core.transitions import action_signature, stored_action
from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay.writers import TrajectoryWriter

__all__ = ["SequenceAdder", "StepSequence", "sequence_signature"]


class StepSequence(NamedTuple):
    """`T` steps in order, of one episode or of several in turn; a batch has a leading axis in every field.

    Row t has what was seen, what was done there, and what that gave: `reward[t]` and `discount[t]` lead to
    `observation[t + 1]`. The last row of an episode has its last observation and no action: `mask` is 0 there, and in
    the rows of zeros after it that fill the sequence. A row with `mask` 1 after one with 0 begins an episode.

    Attributes:
        observation: `[T, ...]`.
        action: `[T, ...]`.
        reward: float32 `[T]`; `[T, ...]` where each step has several, say one for each agent.
        discount: alike, the environment's, times the agent's factor; 0 where the episode terminated.
        mask: float32 `[T]`; 1 where an action was taken.
        extras: what the actor kept of each step, a tree of `[T, ...]`.
        state: the recurrent state before the first step, a tree without the axis T.
    """

    observation: Any
    action: Any
    reward: Any
    discount: Any
    mask: Any
    extras: Any = ()
    state: Any = ()


def sequence_signature(spec: EnvironmentSpec, length: int, *, extras: Any = (), state: Any = ()) -> StepSequence:
    """The specs of a sequence.

    Args:
        spec: of the environment.
        length: `T`.
        extras: specs of the extras of one step, a tree.
        state: specs of a recurrent state, a tree.
    """

    def over_time(leaf: Any) -> specs.Array:
        return specs.Array((length, *leaf.shape), leaf.dtype)

    number = specs.Array((), np.float32)
    numbers = specs.Array(spec.rewards.shape, np.float32)
    return StepSequence(
        observation=_map(over_time, spec.observations),
        action=over_time(action_signature(spec.actions)),
        reward=over_time(numbers),
        discount=over_time(numbers),
        mask=over_time(number),
        extras=_map(over_time, extras),
        state=state,
    )


def _map(function: Any, tree: Any) -> Any:
    """`jax.tree.map` for what the nodes without JAX need: tuples and dicts."""
    if isinstance(tree, dict):
        return {name: _map(function, leaf) for name, leaf in tree.items()}
    if isinstance(tree, tuple):
        leaves = [_map(function, leaf) for leaf in tree]
        return type(tree)(*leaves) if hasattr(tree, "_fields") else tuple(leaves)
    return function(tree)


@final
class SequenceAdder:
    """Writes the episodes of one actor into a replay table as sequences of `length`, one every `period` steps.

    A sequence stays within its episode. The last ones are filled with zeros, and there are as many as it takes for each
    action of the episode to be in one. Steps are stored once however many sequences share them; the recurrent state is
    stored where a sequence begins.

    With `spans_episodes` the next episode follows in the same sequence instead, so that nothing is filled and every
    sequence holds as many steps, however short the episodes are.

    Args:
        writer: keeps at least `num_keep_alive_refs(length)` steps.
        table: name of the table.
        length: rows of a sequence; actions of it that can be learned from are one fewer, unless the episode ends.
        period: steps from the beginning of one sequence to the next.
        discount: factor for each step, on top of the environment's own discount.
        max_in_flight: sequences that may be on their way to the table before the actor waits for it.
        priority: of new sequences.
        spans_episodes: whether a sequence goes on where an episode ends.

    Raises:
        ValueError: a length below 2, or a period that leaves steps out.
    """

    def __init__(
        self,
        writer: TrajectoryWriter,
        *,
        table: str,
        length: int,
        period: int,
        discount: float,
        max_in_flight: int = 32,
        priority: float = 1.0,
        spans_episodes: bool = False,
    ) -> None:
        if length < 2 or not 1 <= period <= length - 1:
            raise ValueError(
                f"a sequence needs a length of at least 2 and a period from 1 to length - 1, got {length} and {period}"
            )
        self._writer = writer
        self._table = table
        self._length = length
        self._period = period
        self._discount = discount
        self._max_in_flight = max_in_flight
        self._priority = priority
        self._spans_episodes = spans_episodes
        self._observation: Any = None
        self._in_episode = False
        self._rows = 0
        self._has_extras = self._has_state = False

    @staticmethod
    def num_keep_alive_refs(length: int) -> int:
        """How many steps the writer must keep."""
        return length

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Begins an episode. What is left of one that did not end is dropped."""
        if self._in_episode:
            self._forget()
        self._observation = _map(_copy, timestep.observation)

    def observe(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = None, state: Any = None) -> None:
        """Adds a step. Blocks while replay lets nothing in.

        Raises:
            ReplayError, CourierError: what the replay server or the connection reported.
        """
        self._has_extras, self._has_state = extras is not None, state is not None
        row = {
            "observation": self._observation,
            "action": stored_action(action),
            "reward": np.float32(next_timestep.reward),
            "discount": np.float32(self._discount * next_timestep.discount),
            "mask": np.float32(1),
        }
        if extras is not None:
            row["extras"] = extras
        self._append(row, state)
        self._observation = _map(_copy, next_timestep.observation)
        self._in_episode = not next_timestep.last()
        if next_timestep.last():
            self._end(row, state)
        self._writer.flush(block_until_num_items=self._max_in_flight)

    def close(self) -> None:
        """Sends what is left; does not wait for it."""
        self._writer.close()

    def _append(self, row: dict[str, Any], state: Any = None) -> None:
        if state is not None and self._rows % self._period == 0:
            row = row | {"state": state}
        self._writer.append(row)
        self._rows += 1
        if self._rows >= self._length and (self._rows - self._length) % self._period == 0:
            self._create()

    def _end(self, row: dict[str, Any], state: Any) -> None:
        """The last observation and, where the sequence ends too, rows of zeros until each action is in one."""
        actions = self._rows
        nothing = {name: _map(_zeros, leaf) for name, leaf in row.items()}
        last = nothing | {"observation": self._observation}
        if self._spans_episodes:
            # A sequence may begin here. It needs a state, whatever it is: the next row begins an episode.
            self._append(last, state)
            return
        self._append(last)
        while self._covered() < actions:
            self._append(nothing)
        self._forget()

    def _forget(self) -> None:
        """The next row begins a sequence of its own."""
        self._writer.end_episode()
        self._rows = 0

    def _covered(self) -> int:
        """Actions, from the episode's first on, whose next observation is in a sequence that is written."""
        if self._rows < self._length:
            return 0
        return (self._rows - self._length) // self._period * self._period + self._length - 1

    def _create(self) -> None:
        history, length = self._writer.history, self._length

        def latest(column: Any) -> Any:
            return column[-length:]

        trajectory = StepSequence(
            observation=_map(latest, history["observation"]),
            action=latest(history["action"]),
            reward=latest(history["reward"]),
            discount=latest(history["discount"]),
            mask=latest(history["mask"]),
            extras=_map(latest, history["extras"]) if self._has_extras else (),
            state=_map(lambda column: column[-length], history["state"]) if self._has_state else (),
        )
        self._writer.create_item(self._table, self._priority, trajectory)


def _copy(leaf: Any) -> Any:
    return np.array(leaf)  # an environment may write the next observation into the same array


def _zeros(leaf: Any) -> Any:
    return np.zeros_like(leaf)
