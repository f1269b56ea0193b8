"""Whole episodes, and their way into replay."""

from __future__ import annotations

from typing import Any, final

import dm_env

from topology.agents.core.sequences import SequenceAdder
from topology.errors import ProgramError
from topology.nodes.replay.writers import TrajectoryWriter

__all__ = ["EpisodeAdder"]


@final
class EpisodeAdder:
    """Writes each episode of one actor into a replay table as one item, filled up to `max_steps`.

    The item is a `StepSequence` of `length(max_steps)` rows, of which `mask` says which have an action; its signature
    is that of `sequence_signature`. An episode that does not end is not written.

    Args:
        writer: keeps at least `num_keep_alive_refs(max_steps)` steps.
        table: name of the table.
        max_steps: actions of the longest episode.
        discount: factor for each step, on top of the environment's own discount.
        max_in_flight: episodes that may be on their way to the table before the actor waits for it.
        priority: of new episodes.

    Raises:
        ValueError: `max_steps` is below 1.
    """

    def __init__(
        self,
        writer: TrajectoryWriter,
        *,
        table: str,
        max_steps: int,
        discount: float,
        max_in_flight: int = 32,
        priority: float = 1.0,
    ) -> None:
        if max_steps < 1:
            raise ValueError(f"the longest episode has at least 1 step, got max_steps={max_steps}")
        # The sequence is full only in the row that follows the last action of the longest episode.
        self._adder = SequenceAdder(
            writer,
            table=table,
            length=self.length(max_steps),
            period=max_steps,
            discount=discount,
            max_in_flight=max_in_flight,
            priority=priority,
        )
        self._max_steps = max_steps
        self._steps = 0

    @staticmethod
    def length(max_steps: int) -> int:
        """Rows of an item: one for each action, and one for the last observation."""
        return max_steps + 1

    @staticmethod
    def num_keep_alive_refs(max_steps: int) -> int:
        """How many steps the writer must keep."""
        return SequenceAdder.num_keep_alive_refs(EpisodeAdder.length(max_steps))

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Begins an episode. What is left of one that did not end is dropped."""
        self._steps = 0
        self._adder.observe_first(timestep)

    def observe(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = None, state: Any = None) -> None:
        """Adds a step. Blocks while replay lets nothing in.

        Raises:
            ProgramError: the episode has more than `max_steps`.
            ReplayError, CourierError: what the replay server or the connection reported.
        """
        self._steps += 1
        if self._steps > self._max_steps:
            raise ProgramError(
                f"an episode has more than {self._max_steps} steps, which is all that an item of the table holds: "
                "raise max_steps, or give the environment a time limit of that"
            )
        self._adder.observe(action, next_timestep, extras, state)

    def close(self) -> None:
        """Sends what is left; does not wait for it."""
        self._adder.close()
