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
from topology.agents.core.updates import falling_rate, importance_weights
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
    rate = falling_rate(config.learning_rate, config.final_learning_rate, config.num_updates, config.constant_rate_part)
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

    It takes the state, transitions and their probabilities, both with a leading axis `[K * B]`. The target network is
    copied at the end of the call in which its period ends.
    """
    optimizer = _make_optimizer(config)
    is_prioritized = config.priority_exponent > 0

    def quantiles(params: Any, observations: jax.Array) -> jax.Array:
        result = network.apply(params, observations, method="quantiles")
        assert isinstance(result, jax.Array)  # not a pair: no collection is mutable
        return result

    def loss_fn(
        params: Any, transition: Transition, dist_t: jax.Array, weights: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        reward = transition.r_t
        if config.max_abs_reward is not None:
            reward = jnp.clip(reward, -config.max_abs_reward, config.max_abs_reward)
        common: dict[str, Any] = {"a_tm1": transition.a_tm1, "r_t": reward, "discount_t": transition.discount_t}
        common.update(weights=weights, huber_delta=config.huber_delta)
        dist_tm1 = quantiles(params, transition.o_tm1)
        selector = quantiles(params, transition.o_t) if config.double_q else dist_t
        if network.num_quantiles > 1:
            result = losses.quantile_loss(dist_tm1=dist_tm1, dist_t=dist_t, dist_t_selector=selector, **common)
        else:
            q_tm1, q_t, q_selector = (jnp.squeeze(dist, 1) for dist in (dist_tm1, dist_t, selector))
            result = losses.double_q_loss(q_tm1=q_tm1, q_t_value=q_t, q_t_selector=q_selector, **common)
        return result.loss, result.td_error

    def update_once(
        learned: tuple[Any, optax.OptState], batch: tuple[Transition, jax.Array, jax.Array]
    ) -> tuple[tuple[Any, optax.OptState], tuple[jax.Array, jax.Array]]:
        params, opt_state = learned
        transition, dist_t, probability = batch
        weights = importance_weights(probability, config.importance_sampling_exponent)
        gradient_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (loss, td_error), gradients = gradient_fn(params, transition, dist_t, weights)
        updates, opt_state = optimizer.update(gradients, opt_state)
        return (optax.apply_updates(params, updates), opt_state), (loss, jnp.abs(td_error) + _MIN_PRIORITY)

    @jax.jit
    def update(
        state: TrainingState, transitions: Transition, probabilities: jax.Array
    ) -> tuple[TrainingState, UpdateOutput]:
        transitions = Transition(*transitions)
        batches, probabilities = split_updates((transitions, probabilities), config.updates_per_call)
        # The target network stands still within a call: it is not copied in the loop, and evaluated for all batches
        # before it, one at a time, since the layers of all at once do not fit into a cache.
        dist_t = jax.lax.map(functools.partial(quantiles, state.target_params), batches.o_t)
        learned, (loss, priorities) = jax.lax.scan(
            update_once, (state.params, state.opt_state), (batches, dist_t, probabilities)
        )
        params, opt_state = learned
        steps = state.steps + config.updates_per_call
        period = config.target_update_period
        target_params = jax.lax.cond(
            steps // period > state.steps // period, lambda: params, lambda: state.target_params
        )
        new_state = TrainingState(params, target_params, opt_state, steps)
        return new_state, UpdateOutput({"loss": loss}, join_updates(priorities) if is_prioritized else None)

    return update
