"""The learning side of IMPALA: a compiled function that makes updates."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from topology.agents.core.learner import UpdateOutput
from topology.agents.core.parallel import split_updates
from topology.agents.core.sequences import StepSequence
from topology.agents.core.updates import by_time, falling_rate
from topology.agents.impala.config import IMPALAConfig
from topology.agents.impala.losses import IMPALALoss, impala_loss, masked_mean
from topology.agents.impala.networks import PolicyValueNetwork
from topology.agents.impala.replay import initial_state
from topology.environments.specs import EnvironmentSpec

__all__ = ["TrainingState", "make_initial_state", "make_update"]


class TrainingState(NamedTuple):
    """All that a learner must remember. `steps` counts updates."""

    params: Any
    opt_state: optax.OptState
    steps: jax.Array


Update = Callable[[TrainingState, Any, Any], tuple[TrainingState, UpdateOutput]]


def _make_optimizer(config: IMPALAConfig) -> optax.GradientTransformation:
    rate = falling_rate(config.learning_rate, config.final_learning_rate, config.num_updates)
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(rate))


def make_initial_state(
    network: PolicyValueNetwork, spec: EnvironmentSpec, config: IMPALAConfig, seed: int
) -> TrainingState:
    """The state before the first update; a function of `seed`."""
    observations = spec.observations
    return _make_initialise(network, tuple(observations.shape), observations.dtype, config)(jax.random.key(seed))


@functools.lru_cache(maxsize=8)  # learners of equal settings in one process compile once
def _make_initialise(
    network: PolicyValueNetwork, shape: tuple[int, ...], dtype: np.dtype[Any], config: IMPALAConfig
) -> Callable[[jax.Array], TrainingState]:
    state = jax.tree.map(lambda leaf: leaf[None], initial_state(config.lstm_size))

    @jax.jit
    def initialise(key: jax.Array) -> TrainingState:
        params = network.init(key, np.zeros((1, 1, *shape), dtype), np.zeros((1, 1), bool), state)
        return TrainingState(params, _make_optimizer(config).init(params), jnp.zeros((), jnp.int32))

    return initialise


def _begins(sequence: StepSequence) -> jax.Array:
    """Where, within sequences `[T, B]`, an episode begins: after a row without an action."""
    first = jnp.zeros_like(sequence.mask[:1], bool)  # what goes before the first row, its state says
    return jnp.concatenate([first, sequence.mask[:-1] == 0])


@functools.lru_cache(maxsize=8)  # learners of equal settings in one process compile once
def make_update(network: PolicyValueNetwork, config: IMPALAConfig) -> Update:
    """A function that makes `updates_per_call` updates, one after the other, in one compiled call.

    It takes the state, sequences `[K * B, T, ...]`, and probabilities, for which a queue has no use. Its metrics have
    the policy lag: updates made since the weights that acted.
    """
    optimizer = _make_optimizer(config)

    def loss_fn(params: Any, sequence: StepSequence) -> tuple[jax.Array, IMPALALoss]:
        output: Any = network.apply(params, sequence.observation, _begins(sequence), sequence.state)
        logits, values, _ = output
        rewards = sequence.reward
        if config.max_abs_reward is not None:
            rewards = jnp.clip(rewards, -config.max_abs_reward, config.max_abs_reward)
        result = impala_loss(
            logits=logits,
            values=values,
            behaviour_logits=sequence.extras["logits"],
            actions=sequence.action,
            rewards=config.reward_scale * rewards,
            discounts=sequence.discount,
            mask=sequence.mask,
            entropy_cost=config.entropy_cost,
            baseline_cost=config.baseline_cost,
            max_ratio=config.max_ratio,
            max_policy_ratio=config.max_policy_ratio,
            trace_decay=config.trace_decay,
        )
        return result.loss, result

    def update_once(state: TrainingState, batch: StepSequence) -> tuple[TrainingState, dict[str, jax.Array]]:
        sequence = by_time(batch)
        gradients, result = jax.grad(loss_fn, has_aux=True)(state.params, sequence)
        updates, opt_state = optimizer.update(gradients, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        mask = sequence.mask[:-1]
        lag = (state.steps - sequence.extras["version"][:-1]) * mask
        metrics = result._asdict() | {
            "gradient_norm": optax.tree.norm(gradients),
            "policy_lag_mean": masked_mean(lag, mask),
            "policy_lag_max": jnp.max(lag),
        }
        return TrainingState(params, opt_state, state.steps + 1), metrics

    @jax.jit
    def update(state: TrainingState, data: Any, probabilities: jax.Array) -> tuple[TrainingState, UpdateOutput]:
        del probabilities
        batches = split_updates(StepSequence(*data), config.updates_per_call)
        state, metrics = jax.lax.scan(update_once, state, batches)
        return state, UpdateOutput(metrics | {"policy_lag_max": jnp.max(metrics["policy_lag_max"])})

    return update
