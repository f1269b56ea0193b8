"""The learning side of R2D2: a compiled function that makes several updates."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rlax

from topology.agents.core.learner import UpdateOutput
from topology.agents.core.parallel import join_updates, split_updates
from topology.agents.core.sequences import StepSequence
from topology.agents.core.updates import by_time, falling_rate, importance_weights
from topology.agents.r2d2 import losses
from topology.agents.r2d2.config import R2D2Config
from topology.agents.r2d2.networks import RecurrentQNetwork
from topology.agents.r2d2.state import initial_state
from topology.environments.specs import EnvironmentSpec

__all__ = ["TrainingState", "make_initial_state", "make_update"]

_MIN_PRIORITY = 1e-6  # so that a sequence without error can still be drawn


class TrainingState(NamedTuple):
    """All that a learner must remember. `steps` counts updates."""

    params: Any
    target_params: Any
    opt_state: optax.OptState
    steps: jax.Array


Update = Callable[[TrainingState, StepSequence, Any], tuple[TrainingState, UpdateOutput]]


def _make_optimizer(config: R2D2Config) -> optax.GradientTransformation:
    rate = falling_rate(config.learning_rate, config.final_learning_rate, config.num_updates)
    adam = optax.adam(rate, eps=config.adam_epsilon)
    # As one vector: a step for each small array would take longer to compile than the network does.
    return optax.flatten(optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), adam))


def make_initial_state(
    network: RecurrentQNetwork, spec: EnvironmentSpec, config: R2D2Config, seed: int
) -> TrainingState:
    """The state before the first update; a function of `seed`."""
    observations = spec.observations
    return _make_initialise(network, tuple(observations.shape), observations.dtype, config)(jax.random.key(seed))


@functools.lru_cache(maxsize=8)  # learners of equal settings in one process compile once
def _make_initialise(
    network: RecurrentQNetwork, shape: tuple[int, ...], dtype: np.dtype[Any], config: R2D2Config
) -> Callable[[jax.Array], TrainingState]:
    state = initial_state(config.lstm_size)
    carry, action, reward = jax.tree.map(lambda leaf: leaf[None], state)

    @jax.jit
    def initialise(key: jax.Array) -> TrainingState:
        observation, never = np.zeros((1, 1, *shape), dtype), np.zeros((1, 1), bool)
        params = network.init(key, observation, action[None], reward[None], carry, never)
        return TrainingState(params, params, _make_optimizer(config).init(params), jnp.zeros((), jnp.int32))

    return initialise


def _inputs(sequence: StepSequence) -> tuple[Any, jax.Array, jax.Array, Any]:
    """What the network takes of sequences `[T, B, ...]`: observations, actions and rewards before them, the memory."""
    state = sequence.state
    action = jnp.concatenate([state.action[None], sequence.action[:-1]])
    reward = jnp.concatenate([state.reward[None], sequence.reward[:-1]])
    return sequence.observation, action, reward, state.carry


@functools.lru_cache(maxsize=8)  # learners of equal settings in one process compile once
def make_update(network: RecurrentQNetwork, config: R2D2Config) -> Update:
    """A function that makes `updates_per_call` updates, one after the other, in one compiled call.

    It takes the state, sequences `[K * B, T, ...]` and their probabilities `[K * B]`.
    """
    optimizer = _make_optimizer(config)
    is_prioritized = config.priority_exponent > 0

    def loss_fn(
        params: Any, target_params: Any, sequence: StepSequence, weights: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        inputs = _inputs(sequence)
        begins = sequence.state.action < 0  # a sequence that begins with its episode has nothing to burn in
        row = jnp.arange(config.sequence_length)[:, None]
        cut = (row == config.burn_in_length) & ~begins
        q, _ = network.apply(params, *inputs, cut)
        target_q, _ = network.apply(target_params, *inputs, cut)
        td_error = losses.n_step_errors(
            q_tm1=q[:-1],
            a_tm1=sequence.action[:-1],
            r_t=sequence.reward[:-1],
            discount_t=sequence.discount[:-1],
            q_t_value=target_q[1:],
            q_t_selector=q[1:],
            continues_t=sequence.mask[1:],
            n_step=config.n_step,
        )
        mask = (sequence.mask * ((row >= config.burn_in_length) | begins))[:-1]
        # Each step that is learned from counts alike, however many its sequence has of them.
        loss = jnp.sum(weights * mask * rlax.l2_loss(td_error)) / jnp.maximum(jnp.sum(mask), 1.0)
        return loss, losses.sequence_priority(td_error, mask, config.max_priority_weight)

    def update_once(
        state: TrainingState, batch: tuple[StepSequence, jax.Array]
    ) -> tuple[TrainingState, tuple[jax.Array, jax.Array]]:
        sequence, probability = batch
        weights = importance_weights(probability, config.importance_sampling_exponent)
        gradient_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (loss, priority), gradients = gradient_fn(state.params, state.target_params, by_time(sequence), weights)
        updates, opt_state = optimizer.update(gradients, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        steps = state.steps + 1
        target_params = optax.periodic_update(params, state.target_params, steps, config.target_update_period)
        return TrainingState(params, target_params, opt_state, steps), (loss, priority + _MIN_PRIORITY)

    @jax.jit
    def update(
        state: TrainingState, sequence: StepSequence, probabilities: jax.Array
    ) -> tuple[TrainingState, UpdateOutput]:
        batches = split_updates((sequence, probabilities), config.updates_per_call)
        state, (loss, priorities) = jax.lax.scan(update_once, state, batches)
        return state, UpdateOutput({"loss": loss}, join_updates(priorities) if is_prioritized else None)

    return update
