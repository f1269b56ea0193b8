"""The learning side of DQN."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from topology.agents.core.learner import UpdateOutput
from topology.agents.core.parallel import join_updates, split_updates
from topology.agents.core.transitions import Transition
from topology.agents.dqn import losses
from topology.agents.dqn.config import DQNConfig
from topology.agents.dqn.networks import QNetwork
from topology.environments.specs import EnvironmentSpec

__all__ = ["TrainingState", "make_initial_state", "make_update"]

_MIN_PRIORITY = 1e-6  # so that a transition without error can still be drawn


class TrainingState(NamedTuple):
    """All that a learner must remember. `steps` counts updates."""

    params: Any
    target_params: Any
    opt_state: optax.OptState
    steps: jax.Array


Update = Callable[[TrainingState, Transition, Any], tuple[TrainingState, UpdateOutput]]


def _make_optimizer(config: DQNConfig) -> optax.GradientTransformation:
    # A schedule in any case, so that a state fits also a run of another length.
    rate = optax.constant_schedule(config.learning_rate)
    if config.num_updates is not None:
        rate = optax.linear_schedule(config.learning_rate, config.final_learning_rate, config.num_updates)
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(rate))


def make_initial_state(network: QNetwork, spec: EnvironmentSpec, config: DQNConfig, seed: int) -> TrainingState:
    """The state before the first update; a function of `seed`."""
    observations = spec.observations
    return _make_initialise(network, tuple(observations.shape), observations.dtype, config)(jax.random.key(seed))


@functools.lru_cache(maxsize=8)  # learners of equal settings in one process compile once
def _make_initialise(
    network: QNetwork, shape: tuple[int, ...], dtype: np.dtype[Any], config: DQNConfig
) -> Callable[[jax.Array], TrainingState]:
    @jax.jit
    def initialise(key: jax.Array) -> TrainingState:
        params = network.init(key, np.zeros((1, *shape), dtype))
        return TrainingState(params, params, _make_optimizer(config).init(params), jnp.zeros((), jnp.int32))

    return initialise


@functools.lru_cache(maxsize=8)
def make_update(network: QNetwork, config: DQNConfig) -> Update:
    """A compiled function that makes `updates_per_call` updates, one after the other.

    It takes the state, transitions and their probabilities, both with a leading axis `[K * B]`.
    """
    optimizer = _make_optimizer(config)

    def values(params: Any, observations: jax.Array) -> jax.Array:
        result = network.apply(params, observations)
        assert isinstance(result, jax.Array)  # not a pair: no collection is mutable
        return result

    def loss_fn(
        params: Any, target_params: Any, transition: Transition, weights: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        reward = transition.r_t
        if config.max_abs_reward is not None:
            reward = jnp.clip(reward, -config.max_abs_reward, config.max_abs_reward)
        result = losses.double_q_loss(
            q_tm1=values(params, transition.o_tm1),
            a_tm1=transition.a_tm1,
            r_t=reward,
            discount_t=transition.discount_t,
            q_t_value=values(target_params, transition.o_t),
            q_t_selector=values(params, transition.o_t),
            weights=weights,
            huber_delta=config.huber_delta,
        )
        return result.loss, result.td_error

    def update_once(
        state: TrainingState, batch: tuple[Transition, jax.Array]
    ) -> tuple[TrainingState, tuple[jax.Array, jax.Array]]:
        transition, probability = batch
        weights = losses.importance_weights(probability, config.importance_sampling_exponent)
        gradient_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (loss, td_error), gradients = gradient_fn(state.params, state.target_params, transition, weights)
        updates, opt_state = optimizer.update(gradients, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        steps = state.steps + 1
        target_params = optax.periodic_update(params, state.target_params, steps, config.target_update_period)
        return TrainingState(params, target_params, opt_state, steps), (loss, jnp.abs(td_error) + _MIN_PRIORITY)

    @jax.jit
    def update(
        state: TrainingState, transitions: Transition, probabilities: jax.Array
    ) -> tuple[TrainingState, UpdateOutput]:
        batches = split_updates((Transition(*transitions), probabilities), config.updates_per_call)
        state, (loss, priorities) = jax.lax.scan(update_once, state, batches)
        return state, UpdateOutput({"loss": loss}, join_updates(priorities))

    return update
