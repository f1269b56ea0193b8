"""Structured writers: items made by fixed patterns, whenever conditions hold. Names are Reverb's.

    step = {"observation": None, "action": None, "reward": None}
    pattern = pattern_from_transform(step, lambda s: {"o": s["observation"][-3:], "a": s["action"][-1]})
    config = create_config(pattern, table="replay", conditions=[Condition.step_index() % 2 == 0])
    with client.structured_writer([config]) as writer:
        writer.append({"observation": ..., "action": ..., "reward": ...})

After every step, each config whose conditions hold and whose pattern finds all its cells makes one item, at most once a
step. Columns that no config uses are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, final

from topology.nodes.replay.conditions import Condition, ConditionBuilder, Situation
from topology.nodes.replay.patterns import (
    Config,
    Pattern,
    PatternNode,
    ReferenceStep,
    create_config,
    create_reference_step,
    infer_signature,
    pattern_from_transform,
    unpack_pattern,
)
from topology.nodes.replay.priorities import TDError, td_error
from topology.nodes.replay.structure import flatten, unflatten

if TYPE_CHECKING:
    from topology.nodes.replay.writers import TrajectoryWriter

__all__ = [
    "Condition",
    "ConditionBuilder",
    "Config",
    "Pattern",
    "PatternNode",
    "ReferenceStep",
    "StructuredWriter",
    "create_config",
    "create_reference_step",
    "infer_signature",
    "pattern_from_transform",
    "td_error",
    "unpack_pattern",
]


@final
class _State:
    """What a writer remembers of one config."""

    __slots__ = ("applied_at", "config", "looked_at", "steps_since_applied")

    def __init__(self, config: Config) -> None:
        self.config = config
        self.steps_since_applied = 0
        self.applied_at = self.looked_at = -1

    def restart(self) -> None:
        self.steps_since_applied = 0
        self.applied_at = self.looked_at = -1


class StructuredWriter:
    """Appends steps and makes items by its configs. For one thread. See `Client.structured_writer`.

    Args:
        writer: what it writes with.
        configs: at least one.
    """

    def __init__(self, writer: TrajectoryWriter, configs: Sequence[Config]) -> None:
        self._writer = writer
        self._states = [_State(config) for config in configs]
        self._used = _columns_used(configs)
        self._num_leaves: int | None = None
        self._latest: dict[int, Any] = {}  # values of the newest step, of the columns that conditions look at

    @staticmethod
    def num_keep_alive_refs(configs: Sequence[Config]) -> int:
        """How many steps back the patterns reach.

        Raises:
            ValueError: there is no config.
        """
        if not configs:
            raise ValueError("a structured writer needs at least one config, got none")
        return max(node.age for config in configs for node in config.nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: object) -> None:
        self._writer.__exit__(kind, value, traceback)

    @property
    def step_is_open(self) -> bool:
        """Whether the last `append` was a partial step."""
        return self._writer.step_is_open

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Appends a step, and makes the items for which it is time. None at a leaf: the step does not have it.

        Args:
            data: the step; every step has the same structure.
            partial_step: the step stays open, and the next `append` adds to it.

        Raises:
            ValueError: the structure, a dtype or a shape differs from earlier steps.
        """
        leaves, _ = flatten(data)
        if self._num_leaves is None:
            if max(self._used) >= len(leaves):
                raise ValueError(
                    f"a config uses leaf {max(self._used)} of the steps, but they have {len(leaves)} leaves"
                )
            self._num_leaves = len(leaves)
        if len(leaves) != self._num_leaves:
            raise ValueError(
                f"every step must have the same structure: the first had {self._num_leaves} leaves, this one has "
                f"{len(leaves)}"
            )
        if not self.step_is_open:
            self._latest.clear()
        # A tuple, by number: columns that nobody uses are left out.
        step = tuple(leaf if i in self._used else None for i, leaf in enumerate(leaves))
        self._writer.append(step, partial_step=partial_step)
        self._latest.update((i, leaf) for i, leaf in enumerate(step) if leaf is not None)
        self._apply(ends_episode=False)

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """See `TrajectoryWriter.flush`."""
        self._writer.flush(block_until_num_items, timeout_ms)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Makes the items that wait for the end of an episode. For the rest see `TrajectoryWriter.end_episode`."""
        if self._latest:
            self._apply(ends_episode=True)
        try:
            self._writer.end_episode(clear_buffers, timeout_ms)
        finally:
            self._latest.clear()
            for state in self._states:
                state.applied_at = state.looked_at = -1
                if clear_buffers:
                    state.restart()

    def close(self) -> None:
        """See `TrajectoryWriter.close`."""
        self._writer.close()

    def _apply(self, *, ends_episode: bool) -> None:
        step = self._writer.episode_steps - (not self._writer.step_is_open)
        for state in self._states:
            if state.applied_at == step:
                continue
            if state.looked_at != step:
                state.looked_at = step
                state.steps_since_applied += 1
            situation = Situation(step, state.steps_since_applied, ends_episode, self._latest)
            if all(condition.holds(situation) for condition in state.config.conditions) and self._create(state.config):
                state.applied_at = step
                state.steps_since_applied = 0

    def _create(self, config: Config) -> bool:
        """Makes an item, if every cell of the pattern is there."""
        history = self._writer.history
        leaves, shape = flatten(config.pattern)
        columns = []
        for node in leaves:
            column = history[node.flat_source_index]
            if node.age > len(column):
                return False
            try:
                columns.append(column[node.index])
            except ValueError:  # a step does not have that cell
                return False
        priority = config.priority
        if isinstance(priority, TDError):
            priority = self._td_error(priority, leaves)
        self._writer.create_item(config.table, priority, unflatten(shape, columns))
        return True

    def _td_error(self, priority: TDError, nodes: Sequence[PatternNode]) -> float:
        """The priority over the steps from the oldest to the newest that the item uses."""
        oldest, newest = max(node.age for node in nodes), max(node.last for node in nodes)
        return priority.of(self._writer.history[priority.column][-oldest : newest or None].numpy())


def _columns_used(configs: Sequence[Config]) -> frozenset[int]:
    patterns = {node.flat_source_index for config in configs for node in config.nodes}
    conditions = {c.column for config in configs for c in config.conditions if c.column is not None}
    priorities = {config.priority.column for config in configs if isinstance(config.priority, TDError)}
    return frozenset(patterns | conditions | priorities)
