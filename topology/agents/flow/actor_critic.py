"""A2C, PPO and IMPALA: what their policies learn by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import jax
import jax.numpy as jnp
import numpy as np
import rlax
from numpy.typing import NDArray

from topology.agents.core.policy import PolicyOutput
from topology.agents.flow.config import A2CConfig, ActorCriticConfig, IMPALAConfig, PPOConfig
from topology.agents.flow.learning import Loss, Rows
from topology.agents.flow.policy import JaxPolicy, Schedule
from topology.agents.impala.losses import action_log_probability, vtrace
from topology.agents.impala.networks import PolicyValueNetwork
from topology.agents.impala.replay import initial_state
from topology.environments.specs import EnvironmentSpec, is_image, num_discrete_actions
from topology.nodes.flow import SampleBatch

__all__ = ["ActorCritic", "add_advantages", "make_actor_critic"]

_COLUMNS = (
    SampleBatch.OBS,
    SampleBatch.NEXT_OBS,
    SampleBatch.ACTIONS,
    SampleBatch.REWARDS,
    SampleBatch.TERMINATEDS,
    SampleBatch.TRUNCATEDS,
    SampleBatch.ACTION_DIST_INPUTS,
    SampleBatch.ADVANTAGES,
    SampleBatch.VALUE_TARGETS,
    SampleBatch.STATE_IN,
)


@final
@dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """See `Algorithm`.

    Attributes:
        kind: which loss.
        network: policy and value.
        observation_shape: of one observation.
        observation_dtype: name of its type.
        max_gradient_norm: see `Algorithm`.
        value_cost: weight of the error of the value.
        clip_ratio: of PPO.
        fragment_length: see `Algorithm`; above 1 for IMPALA, where they are of one environment.
        discount: of IMPALA, whose targets are made where it learns.
        max_ratio: of IMPALA.
        trace_decay: of IMPALA.
        standardize_advantages: of IMPALA.
    """

    kind: Literal["a2c", "ppo", "impala"]
    network: PolicyValueNetwork
    observation_shape: tuple[int, ...]
    observation_dtype: str
    max_gradient_norm: float
    value_cost: float
    clip_ratio: float = 0.0
    fragment_length: int = 1
    discount: float = 1.0
    max_ratio: float = 1.0
    trace_decay: float = 1.0
    standardize_advantages: bool = False

    def init(self, key: jax.Array) -> Any:
        observations = np.zeros((1, 1, *self.observation_shape), self.observation_dtype)
        states = jax.tree.map(lambda leaf: leaf[None], self.initial_state)
        return self.network.init(key, observations, np.zeros((1, 1), bool), states)

    @property
    def initial_state(self) -> Any:
        return initial_state(self.network.lstm_size)

    def act(
        self, params: Any, key: jax.Array, observations: Any, states: Any, epsilon: Any, greedy: bool
    ) -> PolicyOutput:
        del epsilon
        logits, values, states = self._apply(params, observations, states)
        actions = jnp.argmax(logits, axis=-1) if greedy else jax.random.categorical(key, logits)
        return PolicyOutput(actions.astype(jnp.int32), {"logits": logits, "values": values}, states)

    def loss(self, params: Any, target: Any, rows: Rows, settings: Rows) -> Loss:
        del target
        logits, values, next_values = self._outputs(params, rows)
        log_pi = action_log_probability(logits, rows[SampleBatch.ACTIONS])
        before = action_log_probability(rows[SampleBatch.ACTION_DIST_INPUTS], rows[SampleBatch.ACTIONS])
        ratio = jnp.exp(log_pi - before)
        if self.kind == "impala":
            advantages, targets = self._vtrace(rows, values, next_values, ratio)
            if self.standardize_advantages:
                advantages = (advantages - jnp.mean(advantages)) / jnp.maximum(jnp.std(advantages), 1e-4)
        else:
            advantages, targets = rows[SampleBatch.ADVANTAGES], rows[SampleBatch.VALUE_TARGETS]
        if self.kind == "ppo":
            clipped = jnp.clip(ratio, 1 - self.clip_ratio, 1 + self.clip_ratio)
            policy_loss = -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
        else:
            policy_loss = -jnp.mean(log_pi * advantages)
        value_loss = jnp.mean(rlax.l2_loss(values, targets))
        log_policy = jax.nn.log_softmax(logits)
        entropy = -jnp.mean(jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1))
        loss = policy_loss + self.value_cost * value_loss - settings["entropy_cost"] * entropy
        metrics = {"policy_loss": policy_loss, "vf_loss": value_loss, "entropy": entropy}
        return Loss(loss, metrics | {"kl": jnp.mean(before - log_pi), "ratio": jnp.mean(ratio)})

    def _outputs(self, params: Any, rows: Rows) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Logits `[N, A]` and values `[N]` of rows, and values of the observations after them where these are given."""
        if self.network.lstm_size is not None:
            return self._unroll(params, rows)
        logits, values, _ = self._apply(params, rows[SampleBatch.OBS])
        later = rows.get(SampleBatch.NEXT_OBS)
        return logits, values, None if later is None else self._apply(params, later)[1]

    def _unroll(self, params: Any, rows: Rows) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The same with a memory, of fragments one after the other; each begins with the memory it was played with.

        What follows a row is asked with the memory after it, also where an episode was cut off: what the next row
        remembers may be of another episode.
        """

        def by_time(leaf: jax.Array) -> jax.Array:
            return jnp.swapaxes(leaf.reshape(-1, self.fragment_length, *leaf.shape[1:]), 0, 1)

        def by_row(leaf: jax.Array) -> jax.Array:
            return jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:])

        def step(states: Any, inputs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Any, Any]:
            observations, next_observations, ends = inputs
            logits, values, states = self._apply(params, observations, states)
            next_values = self._apply(params, next_observations, states)[1]
            return jax.tree.map(lambda leaf: jnp.where(ends[:, None], 0.0, leaf), states), (logits, values, next_values)

        ends = rows[SampleBatch.TERMINATEDS] | rows[SampleBatch.TRUNCATEDS]
        first = by_time(rows[SampleBatch.STATE_IN])[0]
        inputs = by_time(rows[SampleBatch.OBS]), by_time(rows[SampleBatch.NEXT_OBS]), by_time(ends)
        _, outputs = jax.lax.scan(step, (first[:, 0], first[:, 1]), inputs)
        logits, values, next_values = map(by_row, outputs)
        return logits, values, next_values

    def _apply(self, params: Any, observations: Any, states: Any = None) -> tuple[jax.Array, jax.Array, Any]:
        """Logits `[N, A]` and values `[N]` of observations `[N, ...]`, and the recurrent states after them."""
        begins = jnp.zeros((1, len(observations)), bool)
        output: Any = self.network.apply(params, observations[None], begins, states)
        return output[0][0], output[1][0], output[2]

    def _vtrace(
        self, rows: Rows, values: jax.Array, next_values: jax.Array | None, ratio: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Advantages and targets of the values, both `[N]`, of rows in fragments one after the other."""
        assert next_values is not None  # IMPALA's rows have what follows them
        next_values = jax.lax.stop_gradient(next_values)
        ends = rows[SampleBatch.TERMINATEDS] | rows[SampleBatch.TRUNCATEDS]
        # An episode that is cut off ends like one that terminated, with the value of what would have followed added to
        # its last reward: so nothing reaches over into the next episode, which follows in the same fragment.
        cut = self.discount * next_values * rows[SampleBatch.TRUNCATEDS]
        rewards, discounts = rows[SampleBatch.REWARDS] + cut, self.discount * (1.0 - ends)

        def by_time(leaf: jax.Array) -> jax.Array:
            return leaf.reshape(-1, self.fragment_length).T

        corrected = vtrace(
            v_tm1=by_time(jax.lax.stop_gradient(values)),
            v_t=by_time(next_values),
            r_t=by_time(rewards),
            discount_t=by_time(discounts),
            ratio_tm1=by_time(jax.lax.stop_gradient(ratio)),
            mask_tm1=jnp.ones((self.fragment_length, 1)),
            max_ratio=self.max_ratio,
            max_policy_ratio=self.max_ratio,
            trace_decay=self.trace_decay,
        )
        return corrected.advantages.T.reshape(-1), corrected.targets.T.reshape(-1)


def make_actor_critic(config: ActorCriticConfig, spec: EnvironmentSpec, seed: int) -> JaxPolicy:
    """The policy of an agent for an environment.

    Raises:
        ProgramError: its actions are not discrete.
    """
    observations = spec.observations
    network = PolicyValueNetwork(
        num_actions=num_discrete_actions(spec, agent=type(config).__name__.removesuffix("Config")),
        hidden_sizes=tuple(config.hidden_sizes),
        lstm_size=config.lstm_size if isinstance(config, IMPALAConfig) else None,
        shared_layers=is_image(observations),
        observation_rank=len(observations.shape),
        is_image=is_image(observations),
    )
    algorithm = ActorCritic(
        kind=_kind(config),
        network=network,
        observation_shape=tuple(observations.shape),
        observation_dtype=np.dtype(observations.dtype).name,
        max_gradient_norm=config.max_gradient_norm,
        value_cost=config.value_cost,
        clip_ratio=config.clip_ratio if isinstance(config, PPOConfig) else 0.0,
        fragment_length=config.fragment_length if isinstance(config, IMPALAConfig) else 1,
        discount=config.discount,
        max_ratio=config.max_ratio if isinstance(config, IMPALAConfig) else 1.0,
        trace_decay=config.trace_decay,
        standardize_advantages=config.standardize_advantages,
    )
    steps = config.max_actor_steps
    schedules = {
        "learning_rate": Schedule(config.learning_rate, config.final_learning_rate, steps, config.constant_rate_part),
        "entropy_cost": Schedule(config.entropy_cost, config.final_entropy_cost, steps),
    }
    return JaxPolicy(algorithm, seed=seed, schedules=schedules, columns=_COLUMNS)


def _kind(config: ActorCriticConfig) -> Literal["a2c", "ppo", "impala"]:
    if isinstance(config, PPOConfig):
        return "ppo"
    return "a2c" if isinstance(config, A2CConfig) else "impala"


def add_advantages(
    *,
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    next_values: NDArray[np.float32],
    terminateds: NDArray[np.bool_],
    truncateds: NDArray[np.bool_],
    discount: float,
    trace_decay: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Generalized advantages of fragments `[B, T]`, and the targets of their values.

    Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2016,
    arXiv:1506.02438.

    Args:
        rewards: of the steps.
        values: of the observations before them.
        next_values: of those after them, also where an episode ends.
        terminateds: whether an episode terminated with the step.
        truncateds: whether it was cut off there: its last observation keeps its value.
        discount: factor for each step.
        trace_decay: lambda.
    """
    errors = rewards + discount * next_values * ~terminateds - values
    goes_on = discount * trace_decay * ~(terminateds | truncateds)
    advantages = np.zeros_like(errors)
    later = np.zeros(len(errors), np.float32)
    for t in reversed(range(errors.shape[1])):
        later = errors[:, t] + goes_on[:, t] * later
        advantages[:, t] = later
    return advantages, advantages + values
