"""What the policies of these agents learn by, as pure functions, and their compiled updates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from topology.agents.core.parallel import data_parallel, learner_mesh
from topology.agents.core.policy import PolicyOutput

__all__ = ["Algorithm", "Compiled", "LearnerState", "Loss", "compile_algorithm"]

Rows = Mapping[str, Any]
"""Columns of a batch, by name."""


class Loss(NamedTuple):
    """What a loss tells.

    Attributes:
        loss: scalar.
        metrics: scalars by name.
        td_error: of each row, `[N]`; None for an algorithm without.
    """

    loss: jax.Array
    metrics: dict[str, jax.Array]
    td_error: jax.Array | None = None


class Algorithm(Protocol):
    """An agent's pure functions. Equal objects for equal settings, so that workers of one process compile once."""

    def __hash__(self) -> int: ...

    @property
    def max_gradient_norm(self) -> float:
        """Gradients are scaled down to this global norm."""

    @property
    def fragment_length(self) -> int:
        """Rows that follow one another in a batch, and are learned from together; 1 where their order is free."""

    @property
    def initial_state(self) -> Any:
        """Recurrent state where an episode begins, a tree of arrays; None without one."""

    def init(self, key: jax.Array) -> Any:
        """Weights."""

    def act(
        self, params: Any, key: jax.Array, observations: Any, states: Any, epsilon: Any, greedy: bool
    ) -> PolicyOutput:
        """Actions for `[N, ...]` with the recurrent states before them, a tree of `[N, ...]`, and what is kept."""

    def loss(self, params: Any, target: Any, rows: Rows, settings: Rows) -> Loss:
        """The loss of a batch, a mean over its rows. `settings` has scalars that change over a run."""


class LearnerState(NamedTuple):
    """All that a policy must remember to learn on."""

    params: Any
    target: Any
    moments: optax.OptState


class Compiled(NamedTuple):
    """Compiled functions.

    Attributes:
        init: from a key to the first state.
        act: see `Algorithm.act`, with a number after the key that tells calls apart; `greedy` is static.
        gradients: from state, rows and settings to gradients and `Loss`.
        apply: from state, gradients and settings to the next state.
        update: from state, rows and settings to the next state and `Loss`.
        passes: the same for several passes over minibatches, from state, rows, settings, key, the number of passes and
            the size of minibatches, both static; metrics are those of the last update.
    """

    init: Callable[..., LearnerState]
    act: Callable[..., PolicyOutput]
    gradients: Callable[..., tuple[Any, Loss]]
    apply: Callable[..., LearnerState]
    update: Callable[..., tuple[LearnerState, Loss]]
    passes: Callable[..., tuple[LearnerState, Loss]]


@functools.lru_cache(maxsize=16)
def compile_algorithm(algorithm: Algorithm) -> Compiled:
    """The compiled functions of an algorithm; compiled at their first calls."""
    optimizer = optax.chain(optax.clip_by_global_norm(algorithm.max_gradient_norm), optax.scale_by_adam())

    def act(
        params: Any, key: jax.Array, count: Any, observations: Any, states: Any, epsilon: Any, greedy: bool
    ) -> PolicyOutput:
        return algorithm.act(params, jax.random.fold_in(key, count), observations, states, epsilon, greedy)

    def init(key: jax.Array) -> LearnerState:
        params = algorithm.init(key)
        return LearnerState(params, params, optimizer.init(params))

    def gradients(state: LearnerState, rows: Rows, settings: Rows) -> tuple[Any, Loss]:
        def loss(params: Any) -> tuple[jax.Array, Loss]:
            result = algorithm.loss(params, state.target, rows, settings)
            return result.loss, result

        grads: tuple[Any, Loss] = jax.grad(loss, has_aux=True)(state.params)
        return grads

    def apply(state: LearnerState, grads: Any, settings: Rows) -> LearnerState:
        # The rate is not the optimizer's: it follows the steps of the run, which the updates do not know.
        updates, moments = optimizer.update(grads, state.moments)
        updates = jax.tree.map(lambda leaf: -settings["learning_rate"] * leaf, updates)
        return state._replace(params=optax.apply_updates(state.params, updates), moments=moments)

    def update(state: LearnerState, rows: Rows, settings: Rows) -> tuple[LearnerState, Loss]:
        grads, result = gradients(state, rows, settings)
        metrics = result.metrics | {"loss": result.loss, "gradient_norm": optax.tree.norm(grads)}
        return apply(state, grads, settings), result._replace(metrics=metrics)

    def passes(
        state: LearnerState, rows: Rows, settings: Rows, key: jax.Array, num_passes: int, size: int
    ) -> tuple[LearnerState, Loss]:
        count = len(next(iter(rows.values())))
        whole = count // size * size
        order = jax.vmap(lambda k: jax.random.permutation(k, count)[:whole])(jax.random.split(key, num_passes))
        order = order.reshape(-1, size)

        def step(state: LearnerState, which: jax.Array) -> tuple[LearnerState, Loss]:
            return update(state, {name: column[which] for name, column in rows.items()}, settings)

        state, results = jax.lax.scan(step, state, order)
        loss, metrics = jax.tree.map(lambda leaf: leaf[-1], (results.loss, results.metrics))
        td_error = results.td_error
        if td_error is not None:
            td_error = jnp.zeros(count).at[order.reshape(-1)].set(td_error.reshape(-1))
        return state, Loss(loss, metrics, td_error)

    return Compiled(
        init=jax.jit(init),
        act=jax.jit(act, static_argnames="greedy"),
        gradients=jax.jit(gradients),
        apply=jax.jit(apply),
        update=jax.jit(update),
        passes=jax.jit(passes, static_argnums=(4, 5)),
    )


@functools.lru_cache(maxsize=8)
def compile_spread(algorithm: Algorithm, num_devices: int) -> Callable[..., tuple[LearnerState, Loss]]:
    """`Compiled.update` with the rows spread over several devices; takes the settings beside the state."""
    update = compile_algorithm(algorithm).update

    def one(both: tuple[LearnerState, Rows], rows: Rows, _: Any) -> tuple[LearnerState, Loss]:
        return update(both[0], rows, both[1])

    return data_parallel(one, learner_mesh(num_devices))
