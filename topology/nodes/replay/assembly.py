"""From what a server sends to what a program gets: samples in the structure that their writers gave them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, final

from topology.errors import ReplayError
from topology.nodes.replay.info import ReplaySample, SampleInfo
from topology.nodes.replay.messages import SampleBatch, SampleGroup
from topology.nodes.replay.structure import Shape, paths, show_path, unflatten

__all__ = ["Assembler", "first_item", "steps_of"]


@final
class Assembler:
    """Puts leaves into structures; knows each structure after the first time."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, Shape] = {}

    def batch(self, batch: SampleBatch) -> ReplaySample:
        """The batch as one sample: fields of info [B], leaves [B, ...].

        Raises:
            ReplayError: its items are of several kinds.
        """
        if len(batch.groups) > 1:
            kinds = "; ".join(self._show(group) for group in batch.groups)
            raise ReplayError(
                f"the {batch.keys.size} items drawn do not make one batch, they are of {len(batch.groups)} kinds: "
                f"{kinds}. Give the items of a table one structure and one length, or use sample()"
            )
        (group,) = batch.groups
        return ReplaySample(_info(batch), unflatten(self._shape(group), group.leaves))

    def _show(self, group: SampleGroup) -> str:
        leaves = zip(paths(self._shape(group)), group.leaves, strict=True)
        return ", ".join(f"{show_path(path)} {leaf.dtype}{list(leaf.shape[1:])}" for path, leaf in leaves)

    def _shape(self, group: SampleGroup) -> Shape:
        shape = self._shapes.get(group.structure)
        if shape is None and group.structure not in self._shapes:
            shape = self._shapes[group.structure] = pickle.loads(group.structure)
        return shape


def _info(batch: SampleBatch) -> SampleInfo:
    return SampleInfo(batch.keys, batch.probabilities, batch.table_sizes, batch.priorities, batch.times_sampled)


def first_item(batch: SampleBatch) -> tuple[SampleInfo, list[Any]]:
    """Info, as Python numbers, and flat leaves of the first item."""
    return SampleInfo(*(field[0].item() for field in _info(batch))), [leaf[0] for leaf in batch.groups[0].leaves]


def steps_of(table: str, leaves: Sequence[Any]) -> list[list[Any]]:
    """The leaves of an item, step by step.

    Raises:
        ValueError: it is not a sequence of steps.
    """
    lengths = {leaf.shape[:1] for leaf in leaves}
    if len(lengths) != 1 or lengths == {()}:
        raise ValueError(
            f"table {table!r}: an item with leaves of shapes {[leaf.shape for leaf in leaves]} is not a "
            "sequence of steps: use emit_timesteps=False"
        )
    return [[leaf[t] for leaf in leaves] for t in range(len(leaves[0]))]
