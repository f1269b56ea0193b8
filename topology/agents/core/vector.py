"""Several environments in one actor: one call of the policy for all of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import dm_env
import jax
import numpy as np

from topology.agents.core.loop import EnvironmentLoop, EpisodeResult
from topology.agents.core.policy import ActingPolicy, Policy
from topology.agents.core.policy_actor import Seat
from topology.agents.core.types import Adder

__all__ = ["VectorLoop"]


@final
class VectorLoop:
    """Plays several environments in step; each has episodes, a recurrent state and an adder of its own.

    Args:
        environments: `N` of them, at least one.
        adders: get the steps, one for each environment.
        agent: says what the recurrent states are.
        policy: chooses the actions.
        exploration: what the graph gave this actor; None for nothing.
        observations: spec of what each environment shows; None for whatever it is.
    """

    def __init__(
        self,
        environments: Sequence[dm_env.Environment],
        adders: Sequence[Adder],
        *,
        agent: Policy,
        policy: ActingPolicy,
        exploration: float | None = None,
        observations: Any = None,
    ) -> None:
        self._policy = policy
        self._seats = [Seat(agent, policy, adder) for adder in adders]
        pairs = zip(environments, self._seats, strict=True)
        self._loops = [EnvironmentLoop(*pair, observations=observations) for pair in pairs]
        self._explorations = np.full(len(environments), 0.0 if exploration is None else exploration, np.float32)

    @property
    def num_environments(self) -> int:
        """`N`: the steps that a call of `run_steps` makes."""
        return len(self._loops)

    def run_steps(self) -> list[EpisodeResult]:
        """Takes one action in each environment; the results of the episodes that end with it."""
        observations = _stack([loop.begin().observation for loop in self._loops])
        states = _stack([seat.state for seat in self._seats])
        output = self._policy(observations, states, self._explorations)
        results = []
        for index, (loop, seat) in enumerate(zip(self._loops, self._seats, strict=True)):
            seat.planned = _row(output, index)
            if (result := loop.run_step()) is not None:
                results.append(result)
        return results


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _row(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)
