"""Flows side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

from topology.nodes.flow.local_iterator import LocalIterator, join
from topology.nodes.flow.union import Weight

__all__ = ["Concurrently"]


def Concurrently(  # noqa: N802 - its name
    ops: Sequence[LocalIterator[Any]],
    *,
    mode: Literal["round_robin", "async"] = "round_robin",
    output_indexes: Collection[int] | None = None,
    round_robin_weights: Sequence[Weight] | None = None,
    strict: bool = False,
    seed: int | None = None,
) -> LocalIterator[Any]:
    """One flow of several, which share their counters from then on. All run in the driver's thread, none at a time.

    Args:
        ops: the flows, at least two.
        mode: "round_robin" reads them in turn and waits for each; a flow that cannot go on before another one acts (a
            replay buffer that is not filled yet, a full or an empty queue) loses the rest of its turn. "async" reads
            whichever has something, fairly; where none has, it waits for the first.
        output_indexes: flows whose items are handed on; all are read. None for all.
        round_robin_weights: items a turn, for each flow; fractions are right on average. "*" for a flow that is read as
            far as it has something, at most 100 times a turn, and never waited for.
        strict: whether the end of one flow is the end of all; otherwise the others go on.
        seed: of the rounding of weights.

    Raises:
        ValueError: fewer than two flows, another mode, an index or weights that make no sense.
    """
    if mode not in ("round_robin", "async"):
        raise ValueError(f"mode must be 'round_robin' or 'async', got {mode!r}")
    return join(
        list(ops),
        in_turn=mode == "round_robin",
        weights=round_robin_weights,
        outputs=output_indexes,
        strict=strict,
        seed=seed,
    )
