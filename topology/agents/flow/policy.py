"""A policy in JAX, as rollout workers use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

import jax
import numpy as np
from numpy.typing import NDArray

from topology.agents.core.checkpoint import leaves_by_path, with_leaves
from topology.agents.core.policy import Policy, PolicyOutput
from topology.agents.flow.learning import Algorithm, LearnerState, Loss, compile_algorithm, compile_spread
from topology.nodes.flow import SampleBatch

__all__ = ["JaxPolicy", "Schedule"]


def _never(*_: Any) -> PolicyOutput:
    raise AssertionError("a JaxPolicy acts itself")


class Schedule(NamedTuple):
    """A number that changes linearly over so many steps of a run; `steps` None for one that stays.

    For the part `constant` of the steps it stays what it is; then it changes.

    Example:
        >>> Schedule(1.0, 0.0, 100).at(25), Schedule(1.0, 0.0, None).at(25), Schedule(1.0, 0.0, 100, 0.5).at(75)
        (0.75, 1.0, 0.5)
    """

    initial: float
    final: float
    steps: int | None
    constant: float = 0.0

    def at(self, step: int) -> float:
        """The number after so many steps."""
        if self.steps is None:
            return self.initial
        begins = self.constant * self.steps
        part = min(1.0, max(0.0, step - begins) / (self.steps - begins))
        return self.initial + part * (self.final - self.initial)


@final
class JaxPolicy:
    """See `topology.nodes.flow.Policy`. Weights and gradients travel as numpy arrays.

    Args:
        algorithm: what it learns by.
        seed: of the first weights, the actions and the minibatches.
        schedules: numbers that follow the steps of the run, by name; "learning_rate" among them.
        columns: those of a batch that are learned from.
        exploration: how much to explore, `[N]` for `N` observations or one number for all.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        seed: int,
        schedules: Mapping[str, Schedule],
        columns: tuple[str, ...],
        exploration: NDArray[np.float32] | float = 0.0,
    ) -> None:
        self.exploration = np.asarray(exploration, np.float32)
        self._algorithm = algorithm
        self._compiled = compile_algorithm(algorithm)
        weights_key, self._key = jax.random.split(jax.random.key(seed))
        self._calls = 0
        self._state: LearnerState = self._compiled.init(weights_key)
        self._schedules = dict(schedules)
        self._columns = columns
        self.agent = Policy(act=_never, initial_state=algorithm.initial_state)
        """For a `VectorLoop`: says what the recurrent states are, and that steps are kept as they are."""
        self.settings: dict[str, float] = {}
        self.on_global_vars_update({"timestep": 0})

    # --- acting ------------------------------------------------------------------------------------------------------

    def act(self, observations: NDArray[Any], states: Any = None, *, greedy: bool = False) -> PolicyOutput:
        """Actions for `[N, ...]` and what is kept with each step, as numpy arrays.

        Args:
            observations: what the environments show.
            states: recurrent states before them, a tree of `[N, ...]`; None where `agent.initial_state` is.
            greedy: do what is thought best, and explore nothing.
        """
        epsilon = np.float32(0) if greedy else self.exploration
        self._calls += 1
        count = np.uint32(self._calls)
        output = self._compiled.act(self._state.params, self._key, count, observations, states, epsilon, greedy=greedy)
        return PolicyOutput(*jax.device_get(output))

    # --- weights -----------------------------------------------------------------------------------------------------

    def get_weights(self) -> Any:
        return jax.device_get(self._state.params)

    def set_weights(self, weights: Any) -> None:
        self._state = self._state._replace(params=jax.device_put(weights))

    def update_target(self) -> None:
        self._state = self._state._replace(target=self._state.params)

    def on_global_vars_update(self, global_vars: Mapping[str, Any]) -> None:
        self.settings = {name: schedule.at(global_vars["timestep"]) for name, schedule in self._schedules.items()}

    def get_state(self) -> Any:
        return {"calls": self._calls, "leaves": leaves_by_path(self._state)}

    def set_state(self, state: Any) -> None:
        leaves = {name: np.asarray(leaf) for name, leaf in state["leaves"].items()}
        self._state = with_leaves(self._state, leaves, "the checkpoint")
        self._calls = int(state["calls"])

    # --- learning ----------------------------------------------------------------------------------------------------

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        self._state, result = self._compiled.update(self._state, self._rows(batch), self._scalars())
        return self._tell(result)

    def learn_in_passes(
        self, batch: SampleBatch, *, num_passes: int, minibatch_size: int, num_devices: int, seed: int
    ) -> dict[str, Any]:
        """See `topology.nodes.flow.sgd.LearnsInPasses`: all passes are one call of a compiled function.

        Raises:
            ValueError: the algorithm learns from fragments, whose rows minibatches would tear apart.
        """
        if self._algorithm.fragment_length > 1:
            raise ValueError(
                f"this policy learns from fragments of {self._algorithm.fragment_length} rows in their order, and "
                "minibatches are of shuffled rows: give it the whole batch in one update, as TrainOneStep(workers) does"
            )
        size = min(minibatch_size, batch.count)
        if num_devices > 1:
            return self._learn_spread(batch, num_passes, size, num_devices, seed)
        key = jax.random.key(seed)
        self._state, result = self._compiled.passes(
            self._state, self._rows(batch), self._scalars(), key, num_passes, size
        )
        return self._tell(result)

    def _learn_spread(
        self, batch: SampleBatch, num_passes: int, size: int, num_devices: int, seed: int
    ) -> dict[str, Any]:
        update = compile_spread(self._algorithm, num_devices)
        random = np.random.default_rng(seed)
        result = Loss(np.float32(0), {})  # type: ignore[arg-type]  # what a batch without rows would tell
        for _ in range(num_passes):
            for part in batch.minibatches(size, random):
                ones = np.ones(part.count, np.float32)
                self._state, result = update((self._state, self._scalars()), self._rows(part), ones)
        self._state = jax.device_put(self._state, jax.local_devices()[0])
        return self._tell(result)

    def compute_gradients(self, batch: SampleBatch) -> tuple[Any, dict[str, Any]]:
        gradients, result = self._compiled.gradients(self._state, self._rows(batch), self._scalars())
        return jax.device_get(gradients), self._tell(result)

    def apply_gradients(self, gradients: Any) -> None:
        self._state = self._compiled.apply(self._state, gradients, self._scalars())

    def _rows(self, batch: SampleBatch) -> dict[str, Any]:
        return {name: batch[name] for name in self._columns if name in batch}

    def _scalars(self) -> dict[str, np.float32]:
        return {name: np.float32(value) for name, value in self.settings.items()}

    def _tell(self, result: Loss) -> dict[str, Any]:
        """What a learner tells; waits for the update.

        Raises:
            FloatingPointError: the loss is not a finite number.
        """
        told = jax.device_get(result)
        if not np.isfinite(told.loss):
            raise FloatingPointError(
                f"the loss is {float(told.loss)}: lower learning_rate or max_gradient_norm, or scale the rewards"
            )
        stats = {name: float(value) for name, value in told.metrics.items()} | {
            "cur_lr": self.settings["learning_rate"]
        }
        return {"learner_stats": stats} | ({} if told.td_error is None else {"td_error": told.td_error})
