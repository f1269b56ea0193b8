"""The learning side of DQN."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from topology.agents.core.checkpoint import Checkpointer
from topology.agents.core.counter import ChildCounter
from topology.agents.core.metrics import Averages, RowWriter
from topology.agents.core.replay import Batch, BatchSource
from topology.agents.core.stopping import until_stopped
from topology.agents.core.transitions import Transition, transition_signature
from topology.agents.core.types import Variables
from topology.agents.dqn import losses
from topology.agents.dqn.config import DQNConfig
from topology.agents.dqn.networks import QNetwork
from topology.clock import SYSTEM_CLOCK, Clock
from topology.context import StopToken
from topology.environments.specs import EnvironmentSpec

__all__ = ["DQNLearner", "TrainingState", "UpdateOutput", "make_initial_state", "make_update"]

_MIN_PRIORITY = 1e-6  # so that a transition without error can still be drawn


class TrainingState(NamedTuple):
    """All that a learner must remember. `steps` counts updates."""

    params: Any
    target_params: Any
    opt_state: optax.OptState
    steps: jax.Array


class UpdateOutput(NamedTuple):
    """What K updates tell: `loss` is `[K]`, `priorities` are `[K * B]` in the order of the batch."""

    loss: jax.Array
    priorities: jax.Array


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
        shape = (config.updates_per_call, config.batch_size)
        batches = jax.tree.map(lambda leaf: leaf.reshape(shape + leaf.shape[1:]), (transitions, probabilities))
        state, (loss, priorities) = jax.lax.scan(update_once, state, batches)
        return state, UpdateOutput(loss, priorities.reshape(-1))

    return update


@final
class DQNLearner:
    """Learns from replay and serves its weights under the names "policy" and "target".

    Args:
        network: gives action values.
        spec: of the environment.
        config: settings.
        replay: gives batches of `updates_per_call * batch_size` transitions.
        counts: counts under the prefix "learner".
        metrics: gets a row about once a second.
        stop: of the program.
        seed: of the first weights.
        checkpointer: the newest state it holds is gone on from; None keeps no states.
        clock: for tests.
    """

    def __init__(
        self,
        *,
        network: QNetwork,
        spec: EnvironmentSpec,
        config: DQNConfig,
        replay: BatchSource,
        counts: ChildCounter,
        metrics: RowWriter,
        stop: StopToken,
        seed: int,
        checkpointer: Checkpointer | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config = config
        self._replay = replay
        self._counts = counts
        self._averages = Averages(metrics, clock=clock)
        self._stop = stop
        self._checkpointer = checkpointer
        self._clock = clock
        self._signature = transition_signature(spec)
        self._update = make_update(network, config)
        self._state = make_initial_state(network, spec, config, seed)
        if checkpointer is not None and (restored := checkpointer.restore(self._state)) is not None:
            self._state = restored
        self._steps = int(self._state.steps)
        self._reported_steps = self._steps
        self._serving = threading.Lock()
        self._served: dict[str, tuple[int, Any]] = {}

    @property
    def steps(self) -> int:
        """Updates made, those of earlier runs in the same directory included."""
        return self._steps

    def get_variables(self, names: Sequence[str]) -> Variables:
        """The newest weights as numpy arrays: "policy" or "target", any of them, in any order.

        Raises:
            KeyError: another name.
        """
        state = self._state
        trees = {"policy": state.params, "target": state.target_params}
        unknown = [name for name in names if name not in trees]
        if unknown:
            raise KeyError(f"DQN has the variables {', '.join(map(repr, trees))}, but was asked for {unknown}")
        version = int(state.steps)
        return Variables(version, self._clock.time(), [self._on_host(name, version, trees[name]) for name in names])

    def _on_host(self, name: str, version: int, tree: Any) -> Any:
        with self._serving:  # one copy for each version, however many ask
            if self._served.get(name, (-1, None))[0] != version:
                self._served[name] = (version, jax.device_get(tree))
            return self._served[name][1]

    def step(self) -> float:
        """Makes `updates_per_call` updates; blocks until replay has the batches. Returns their mean loss.

        Raises:
            FloatingPointError: the loss is not finite: learning has failed.
        """
        batch = self._replay.sample()
        self._state, output = self._update(self._state, Transition(*batch.data), batch.probabilities)
        loss = float(np.mean(output.loss))
        self._steps += self._config.updates_per_call
        if not np.isfinite(loss):
            raise FloatingPointError(
                f"The loss is {loss} after {self._steps} updates: lower learning_rate or max_gradient_norm, or clip "
                "the rewards with max_abs_reward"
            )
        self._replay.update_priorities(batch.keys, np.asarray(output.priorities, np.float64))
        self._report(loss, batch)
        return loss

    def run(self) -> None:
        """Learns until the program stops; saves its state from time to time and at the end, unless it failed."""
        try:
            with until_stopped(self._stop):
                self._learn()
            self.save()
        finally:
            self.close()

    def _warm_up(self) -> None:
        """Compiles while the actors still fill the table."""
        size = self._config.updates_per_call * self._config.batch_size
        nothing = jax.tree.map(lambda spec: np.zeros((size, *spec.shape), spec.dtype), self._signature)
        self._update(self._state, nothing, np.ones(size))

    def _learn(self) -> None:
        self._warm_up()
        saved_s = self._clock.monotonic()
        while not self._stop.is_set():
            self.step()
            if self._clock.monotonic() - saved_s >= self._config.checkpoint_period_s:
                self.save()
                saved_s = self._clock.monotonic()

    def save(self) -> None:
        """Saves the state; blocks until it is on disk."""
        if self._checkpointer is not None:
            self._checkpointer.save(self._steps, self._state)

    def close(self) -> None:
        """Hands on the last counts and lets go of replay; saves nothing."""
        self._replay.close()
        self._counts.close()

    def _report(self, loss: float, batch: Batch) -> None:
        self._counts.increment(steps=self._config.updates_per_call)
        self._averages.add(loss=loss)
        if self._averages.due:
            made, self._reported_steps = self._steps - self._reported_steps, self._steps
            self._averages.write(
                rates={"learner_steps_per_second": made}, learner_steps=self._steps, replay_size=batch.table_size
            )
