"""Policies as those who play have them: weights and statistics out of a data store."""

from __future__ import annotations

from typing import Any, final

from numpy.typing import NDArray

from topology.agents.core.policy import PolicyOutput
from topology.agents.flow.policy import JaxPolicy
from topology.agents.scaleout.normalising import Normaliser
from topology.agents.scaleout.roles import Follow
from topology.agents.scaleout.trees import flatten, unflatten
from topology.nodes.store.policies import Policy

__all__ = ["Acting", "policy_arrays"]

_WEIGHTS = "weights"


def policy_arrays(policy: JaxPolicy, normaliser: Normaliser) -> dict[str, NDArray[Any]]:
    """All that acting needs, as a data store keeps it."""
    return {**flatten(policy.get_weights(), _WEIGHTS), **normaliser.arrays()}


@final
class Acting:
    """Acts with the policy that was loaded last. For one thread.

    Args:
        policy: gives the network; its first weights are never used.
        normaliser: of observations and rewards.
        before_acting: called before every action of all environments: a place to load a newer policy.
    """

    def __init__(
        self,
        policy: JaxPolicy,
        normaliser: Normaliser,
        *,
        before_acting: Follow = lambda _: None,
    ) -> None:
        self._policy = policy
        self._before_acting = before_acting
        self.normaliser = normaliser
        self.number = -1

    def load(self, policy: Policy) -> None:
        """Acts with this policy from now on.

        Raises:
            ProgramError: it is that of another network.
        """
        self._policy.set_weights(unflatten(self._policy.get_weights(), policy.arrays, _WEIGHTS))
        self.normaliser.load(policy.arrays)
        self.number = policy.number

    def act(self, observations: NDArray[Any], *, greedy: bool = False) -> PolicyOutput:
        """Actions for `[N, ...]`, and what is kept with each step, as numpy arrays."""
        self._before_acting(self)
        return self.ask(observations, greedy=greedy)

    def ask(self, observations: NDArray[Any], *, greedy: bool = False) -> PolicyOutput:
        """The same, with the policy as it is."""
        return self._policy.act(self.normaliser(observations), greedy=greedy)
