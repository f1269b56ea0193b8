"""Pieces of the compiled updates that agents share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from topology.agents.core.sequences import StepSequence

__all__ = ["by_time", "falling_rate", "importance_weights"]

_MOST_UPDATES = 2**31 - 1
"""More cannot be counted in the int32 of an optimizer's state."""


def falling_rate(initial: float, final: float, num_updates: int | None, constant_part: float = 0.0) -> optax.Schedule:
    """A learning rate that falls linearly over a run.

    A schedule in any case, so that the state of an optimizer fits also a run of another length.

    Args:
        initial: rate at the beginning.
        final: rate at the end.
        num_updates: of the run; None when nobody can know: the rate stays as it is.
        constant_part: part of the updates before the rate begins to fall.
    """
    if num_updates is None:
        return optax.constant_schedule(initial)
    num_updates = min(num_updates, _MOST_UPDATES)
    constant = int(num_updates * constant_part)
    falling = max(1, num_updates - constant)
    return optax.linear_schedule(initial, final, transition_steps=falling, transition_begin=constant)


def by_time(sequence: StepSequence) -> StepSequence:
    """Sequences `[B, T, ...]` as `[T, B, ...]`; the state has no axis T."""
    moved: StepSequence = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), sequence._replace(state=()))
    return moved._replace(state=sequence.state)


def importance_weights(probability: jax.Array, exponent: float) -> jax.Array:
    """Weights that undo prioritized sampling, the largest of them 1; `[B]` to `[B]`.

    Source: Schaul et al., "Prioritized Experience Replay", 2016, arXiv:1511.05952, section 3.4.
    """
    weights = (1.0 / probability) ** exponent
    return weights / jnp.max(weights)
