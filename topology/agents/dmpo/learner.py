"""The learning side of DMPO: a compiled function that makes several updates."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from topology.agents.core.learner import UpdateOutput
from topology.agents.core.parallel import split_updates
from topology.agents.core.transitions import Transition
from topology.agents.core.updates import falling_rate
from topology.agents.dmpo import losses
from topology.agents.dmpo.config import DMPOConfig
from topology.agents.dmpo.losses import Bounds, Duals
from topology.agents.dmpo.networks import Critic, Gaussian, GaussianPolicy
from topology.environments.specs import EnvironmentSpec

__all__ = ["Networks", "Trained", "TrainingState", "make_initial_state", "make_networks", "make_update"]


class Networks(NamedTuple):
    """The networks, or what is theirs, say their weights."""

    policy: Any
    critic: Any


class Trained(NamedTuple):
    """All that gradients change."""

    policy: Any
    critic: Any
    duals: Any


class TrainingState(NamedTuple):
    """All that a learner must remember. `steps` counts updates; `key` is the run's, of all that is sampled."""

    params: Trained
    target_params: Networks
    opt_state: optax.OptState
    key: jax.Array
    steps: jax.Array


Update = Callable[[TrainingState, Transition, Any], tuple[TrainingState, UpdateOutput]]


def make_networks(spec: EnvironmentSpec, config: DMPOConfig) -> Networks:
    """Policy and critic for an environment."""
    sizes = tuple(config.hidden_sizes)
    return Networks(
        policy=GaussianPolicy(int(np.prod(spec.actions.shape)), sizes, config.initial_stddev),
        critic=Critic(sizes, config.num_atoms),
    )


def _make_optimizer(config: DMPOConfig) -> optax.GradientTransformation:
    rate = falling_rate(config.learning_rate, config.final_learning_rate, config.num_updates)

    def network() -> optax.GradientTransformation:
        clip, adam = optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(rate)
        return optax.flatten(optax.chain(clip, adam))  # one vector compiles much faster than a dozen arrays

    optimizers = {"policy": network(), "critic": network(), "duals": optax.adam(config.dual_learning_rate)}
    return optax.multi_transform(optimizers, Trained("policy", "critic", "duals"))


def make_initial_state(networks: Networks, spec: EnvironmentSpec, config: DMPOConfig, seed: int) -> TrainingState:
    """The state before the first update; a function of `seed`."""
    observations = np.zeros((1, *spec.observations.shape), spec.observations.dtype)
    actions = np.zeros((1, networks.policy.action_size), np.float32)

    @jax.jit
    def initialise(key: jax.Array) -> TrainingState:
        policy_key, critic_key, key = jax.random.split(key, 3)
        params = Trained(
            policy=networks.policy.init(policy_key, observations),
            critic=networks.critic.init(critic_key, observations, actions),
            duals=losses.make_duals(
                temperature=config.initial_temperature,
                alpha_mean=config.initial_alpha_mean,
                alpha_stddev=config.initial_alpha_stddev,
                action_size=networks.policy.action_size,
            ),
        )
        target_params = Networks(params.policy, params.critic)
        return TrainingState(params, target_params, _make_optimizer(config).init(params), key, jnp.zeros((), jnp.int32))

    # A plain array as key: it is saved with the rest.
    state: TrainingState = initialise(jax.random.PRNGKey(seed))
    return state


@functools.lru_cache(maxsize=8)  # learners of equal settings in one process compile once
def make_update(networks: Networks, config: DMPOConfig) -> Update:
    """A function that makes `updates_per_call` updates, one after the other, in one compiled call.

    It takes the state, transitions `[K * B]`, and their probabilities, which do not matter.
    """
    update_once = _Update(networks, config)

    @jax.jit
    def update(
        state: TrainingState, transitions: Transition, _probabilities: jax.Array
    ) -> tuple[TrainingState, UpdateOutput]:
        state, metrics = jax.lax.scan(update_once, state, split_updates(transitions, config.updates_per_call))
        return state, UpdateOutput(metrics)

    return update


@final
class _Update:
    """One update, with one batch `[B]`."""

    def __init__(self, networks: Networks, config: DMPOConfig) -> None:
        self._networks = networks
        self._config = config
        self._optimizer = _make_optimizer(config)
        self._bounds = Bounds(
            improvement=config.epsilon,
            mean=config.epsilon_mean,
            stddev=config.epsilon_stddev,
            penalty=config.epsilon_penalty if config.action_penalization else None,
        )

    def __call__(self, state: TrainingState, transition: Transition) -> tuple[TrainingState, dict[str, jax.Array]]:
        key = jax.random.fold_in(state.key, state.steps)
        gradient_fn = jax.grad(self._loss, has_aux=True)
        gradients, metrics = gradient_fn(state.params, state.target_params, transition, key)
        updates, opt_state = self._optimizer.update(gradients, state.opt_state, state.params)
        params: Trained = optax.apply_updates(state.params, updates)
        steps = state.steps + 1
        target_params = Networks(
            optax.periodic_update(
                params.policy, state.target_params.policy, steps, self._config.target_policy_update_period
            ),
            optax.periodic_update(
                params.critic, state.target_params.critic, steps, self._config.target_critic_update_period
            ),
        )
        return TrainingState(params, target_params, opt_state, state.key, steps), metrics

    def _loss(
        self, params: Trained, target_params: Networks, transition: Transition, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        config, (policy, critic) = self._config, self._networks
        atoms = jnp.linspace(config.min_return, config.max_return, config.num_atoms)
        action_tm1 = transition.a_tm1.reshape((config.batch_size, -1))
        target: Gaussian = policy.apply(target_params.policy, transition.o_t)
        actions = target.sample(key, config.num_samples)
        logits_t = critic.apply(target_params.critic, transition.o_t, actions)
        values = jax.nn.softmax(logits_t) @ atoms
        critic_loss = losses.critic_loss(
            logits_tm1=critic.apply(params.critic, transition.o_tm1, action_tm1),
            r_t=transition.r_t,
            discount_t=transition.discount_t,
            logits_t=logits_t,
            atoms=atoms,
        )
        online: Gaussian = policy.apply(params.policy, transition.o_t)
        policy_loss = losses.policy_loss(
            duals=params.duals, policy=online, target=target, actions=actions, values=values, bounds=self._bounds
        )
        loss = critic_loss + policy_loss.loss
        returns = transition.r_t + transition.discount_t * jnp.mean(values, axis=0)
        duals = Duals(*map(losses.positive, params.duals))
        return loss, {
            "loss": loss,
            "critic_loss": critic_loss,
            "policy_loss": policy_loss.loss,
            "value": jnp.mean(values),
            "outside_support": jnp.mean((returns < config.min_return) | (returns > config.max_return)),
            "stddev": jnp.mean(online.stddev),
            "kl_mean": jnp.mean(policy_loss.kl_mean),
            "kl_stddev": jnp.mean(policy_loss.kl_stddev),
            "temperature": duals.temperature,
            "alpha_mean": jnp.mean(duals.alpha_mean),
            "alpha_stddev": jnp.mean(duals.alpha_stddev),
        }
