"""The learning side of MADQN: a compiled function that makes several updates."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from topology.agents.core.learner import UpdateOutput, zeros_like_spec
from topology.agents.core.parallel import split_updates
from topology.agents.core.sequences import StepSequence
from topology.agents.core.updates import by_time, falling_rate
from topology.agents.madqn import losses
from topology.agents.madqn.config import MADQNConfig
from topology.agents.madqn.networks import TeamNetwork, legal_actions
from topology.agents.madqn.team import signature
from topology.environments.specs import EnvironmentSpec

__all__ = ["TrainingState", "make_initial_state", "make_update"]


class TrainingState(NamedTuple):
    """All that a trainer must remember. `steps` counts updates; `epsilon` is how much the executors explore."""

    params: Any
    target_params: Any
    opt_state: optax.OptState
    epsilon: jax.Array
    steps: jax.Array


Update = Callable[[TrainingState, StepSequence, Any], tuple[TrainingState, UpdateOutput]]


def _make_optimizer(config: MADQNConfig) -> optax.GradientTransformation:
    rate = falling_rate(config.learning_rate, config.final_learning_rate, config.num_updates)
    return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(rate))


def make_initial_state(network: TeamNetwork, spec: EnvironmentSpec, config: MADQNConfig, seed: int) -> TrainingState:
    """The state before the first update; a function of `seed`."""
    sequence = by_time(zeros_like_spec(signature(config, spec), 1))
    return _make_initialise(network, config)(jax.random.key(seed), sequence)


@functools.lru_cache(maxsize=8)  # trainers of equal settings in one process compile once
def _make_initialise(network: TeamNetwork, config: MADQNConfig) -> Callable[[jax.Array, StepSequence], TrainingState]:
    @jax.jit
    def initialise(key: jax.Array, sequence: StepSequence) -> TrainingState:
        params = network.init(key, sequence.observation, sequence.state, sequence.mask)
        epsilon = jnp.asarray(config.epsilon_initial, jnp.float32)
        opt_state = _make_optimizer(config).init(params)
        return TrainingState(params, params, opt_state, epsilon, jnp.zeros((), jnp.int32))

    return initialise


@functools.lru_cache(maxsize=8)
def make_update(network: TeamNetwork, config: MADQNConfig) -> Update:
    """A function that makes `updates_per_call` updates, one after the other, in one compiled call.

    It takes the state, sequences `[K * B, T, ...]` and their probabilities `[K * B]`, which are not used.
    """
    optimizer = _make_optimizer(config)

    def values(params: Any, sequence: StepSequence) -> jax.Array:
        # A row after one without an action begins an episode; the first row has the memory that was stored with it.
        keep = jnp.concatenate([jnp.ones_like(sequence.mask[:1]), sequence.mask[:-1]])
        q, _ = network.apply(params, sequence.observation, sequence.state, keep, method="values")
        return jnp.asarray(q)

    def mixed(params: Any, chosen: jax.Array, sequence: StepSequence) -> jax.Array:
        return jnp.asarray(network.apply(params, chosen, sequence.observation, method="mix"))

    def loss_fn(params: Any, target_params: Any, sequence: StepSequence) -> tuple[jax.Array, dict[str, jax.Array]]:
        q, target_q = values(params, sequence), values(target_params, sequence)
        best = losses.best_actions(q, legal_actions(network.team, sequence.observation))
        taken = mixed(params, losses.value_of(q, sequence.action), sequence)
        reward, discount = sequence.reward, sequence.discount
        if config.mixing != "none":
            reward, discount = losses.team_rewards(reward, discount)
        error = losses.n_step_errors(
            v_tm1=taken[:-1],
            r_t=reward[:-1],
            discount_t=discount[:-1],
            v_t=mixed(target_params, losses.value_of(target_q, best), sequence)[1:],
            continues_t=sequence.mask[1:],
            n_step=config.n_step,
        )
        mask = sequence.mask[:-1]
        loss = losses.masked_mean(0.5 * jnp.square(error), mask)
        return loss, {"loss": loss, "value": losses.masked_mean(taken[:-1], mask)}

    def update_once(state: TrainingState, sequence: StepSequence) -> tuple[TrainingState, dict[str, jax.Array]]:
        gradients, metrics = jax.grad(loss_fn, has_aux=True)(state.params, state.target_params, by_time(sequence))
        updates, opt_state = optimizer.update(gradients, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        steps = state.steps + 1
        target_params = optax.periodic_update(params, state.target_params, steps, config.target_update_period)
        epsilon = jnp.maximum(state.epsilon - config.epsilon_decay, config.epsilon_min)
        return TrainingState(params, target_params, opt_state, epsilon, steps), metrics | {"epsilon": epsilon}

    @jax.jit
    def update(
        state: TrainingState, sequences: StepSequence, probabilities: jax.Array
    ) -> tuple[TrainingState, UpdateOutput]:
        del probabilities  # all are equal
        state, metrics = jax.lax.scan(update_once, state, split_updates(sequences, config.updates_per_call))
        return state, UpdateOutput(metrics)

    return update
