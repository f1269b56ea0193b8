"""DQN: what its policy learns by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from topology.agents.core.policy import PolicyOutput
from topology.agents.dqn.actor import make_policy
from topology.agents.dqn.losses import double_q_loss
from topology.agents.dqn.networks import QNetwork
from topology.agents.flow.config import DQNConfig
from topology.agents.flow.learning import Loss, Rows
from topology.agents.flow.policy import JaxPolicy, Schedule
from topology.environments.specs import EnvironmentSpec, is_image, num_discrete_actions
from topology.nodes.flow import SampleBatch

__all__ = ["QLearning", "make_q_policy"]

DISCOUNTS = "discounts"
"""Column of the discounts of transitions, over all their steps."""

_COLUMNS = (
    SampleBatch.OBS,
    SampleBatch.NEXT_OBS,
    SampleBatch.ACTIONS,
    SampleBatch.REWARDS,
    DISCOUNTS,
    SampleBatch.WEIGHTS,
)


@final
@dataclass(frozen=True, kw_only=True)
class QLearning:
    """See `Algorithm`.

    Attributes:
        network: values of the actions.
        observation_shape: of one observation.
        observation_dtype: name of its type.
        max_gradient_norm: see `Algorithm`.
        huber_delta: see `double_q_loss`.
    """

    network: QNetwork
    observation_shape: tuple[int, ...]
    observation_dtype: str
    max_gradient_norm: float
    huber_delta: float

    def init(self, key: jax.Array) -> Any:
        return self.network.init(key, np.zeros((1, *self.observation_shape), self.observation_dtype))

    @property
    def fragment_length(self) -> int:
        """Transitions are learned from in any order."""
        return 1

    @property
    def initial_state(self) -> None:
        """Nothing is remembered."""

    def act(
        self, params: Any, key: jax.Array, observations: Any, states: Any, epsilon: Any, greedy: bool
    ) -> PolicyOutput:
        del states
        epsilons = jnp.broadcast_to(0.0 if greedy else epsilon, len(observations))
        output = make_policy(self.network).act(params, key, observations, None, epsilons)
        return output._replace(action=output.action.astype(jnp.int32))

    def loss(self, params: Any, target: Any, rows: Rows, settings: Rows) -> Loss:
        del settings
        result = double_q_loss(
            q_tm1=self._values(params, rows[SampleBatch.OBS]),
            a_tm1=rows[SampleBatch.ACTIONS],
            r_t=rows[SampleBatch.REWARDS],
            discount_t=rows[DISCOUNTS],
            q_t_value=self._values(target, rows[SampleBatch.NEXT_OBS]),
            q_t_selector=self._values(params, rows[SampleBatch.NEXT_OBS]),
            weights=rows.get(SampleBatch.WEIGHTS, jnp.ones(len(rows[SampleBatch.REWARDS]))),
            huber_delta=self.huber_delta,
        )
        size = jnp.abs(result.td_error)
        return Loss(result.loss, {"mean_td_error": jnp.mean(size)}, size)

    def _values(self, params: Any, observations: Any) -> jax.Array:
        values = self.network.apply(params, observations)
        assert isinstance(values, jax.Array)  # not a pair: no collection is mutable
        return values


def make_q_policy(
    config: DQNConfig, spec: EnvironmentSpec, seed: int, *, exploration: NDArray[np.float32] | float = 0.0
) -> JaxPolicy:
    """The policy of DQN for an environment.

    Args:
        config: settings.
        spec: of the environment.
        seed: see `JaxPolicy`.
        exploration: epsilon for each observation it acts on, or for all.

    Raises:
        ProgramError: the environment's actions are not discrete.
    """
    observations = spec.observations
    algorithm = QLearning(
        network=QNetwork(
            num_actions=num_discrete_actions(spec, agent="DQN"),
            hidden_sizes=tuple(config.hidden_sizes),
            is_image=is_image(observations),
        ),
        observation_shape=tuple(observations.shape),
        observation_dtype=np.dtype(observations.dtype).name,
        max_gradient_norm=config.max_gradient_norm,
        huber_delta=config.huber_delta,
    )
    rate = Schedule(config.learning_rate, config.final_learning_rate, config.max_actor_steps, config.constant_rate_part)
    return JaxPolicy(algorithm, seed=seed, schedules={"learning_rate": rate}, columns=_COLUMNS, exploration=exploration)
