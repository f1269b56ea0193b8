"""Steps of an episode as n-step transitions, and their way into replay."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, final

import dm_env
import numpy as np
from dm_env import specs

from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay.writers import TrajectoryWriter

__all__ = [
    "NStepReturn",
    "NStepReturns",
    "NStepTransitionAdder",
    "Transition",
    "action_signature",
    "stored_action",
    "transition_signature",
]


class Transition(NamedTuple):
    """What a value is learned from: from `o_tm1`, action `a_tm1` gave `r_t` on the way to `o_t`.

    Over several steps `r_t` is the discounted sum of the rewards, and `discount_t` the product of all discounts on the
    way, so that the target is always `r_t + discount_t * value(o_t)`. A batch has a leading axis in every field.
    """

    o_tm1: Any
    a_tm1: Any
    r_t: Any
    discount_t: Any
    o_t: Any


def transition_signature(spec: EnvironmentSpec) -> Transition:
    """The specs of a transition. Discrete actions are int32, others as in their spec."""
    number = specs.Array((), np.float32)
    return Transition(spec.observations, action_signature(spec.actions), number, number, spec.observations)


def action_signature(actions: specs.Array) -> specs.Array:
    """How actions are stored: int32 when they are discrete, else as in their spec."""
    return specs.Array((), np.int32) if isinstance(actions, specs.DiscreteArray) else actions


class NStepReturn(NamedTuple):
    """A transition that ends now and began `span` steps ago, without its observations; see `Transition`."""

    span: int
    action: Any
    reward: float
    discount: float


@final
class NStepReturns:
    """Turns the steps of one environment into n-step returns.

    A return spans `n_step` steps; the last ones of an episode span fewer and end at its last step. Where the episode
    terminates their discount is 0; where it is only cut off (discount 1) the last state keeps its value.

    Args:
        n_step: steps of a transition, at least 1.
        discount: factor for each step, on top of the environment's own discount.
    """

    def __init__(self, n_step: int, discount: float) -> None:
        if n_step < 1:
            raise ValueError(f"n_step must be at least 1, got {n_step}")
        self._n_step = n_step
        self._discount = discount
        self._steps: deque[tuple[Any, float, float]] = deque()

    def begin(self) -> None:
        """Begins an episode. What is left of one that did not end is dropped."""
        self._steps.clear()

    def step(self, action: Any, next_timestep: dm_env.TimeStep) -> list[NStepReturn]:
        """The returns that this step completes: at most one, and all that are left at the end of an episode."""
        self._steps.append((action, float(next_timestep.reward), self._discount * float(next_timestep.discount)))
        completed = []
        while len(self._steps) == self._n_step or (next_timestep.last() and self._steps):
            completed.append(self._oldest())
            self._steps.popleft()
        return completed

    def _oldest(self) -> NStepReturn:
        reward, discount = 0.0, 1.0
        for _, step_reward, step_discount in self._steps:
            reward += discount * step_reward
            discount *= step_discount
        return NStepReturn(len(self._steps), self._steps[0][0], reward, discount)


@final
class NStepTransitionAdder:
    """Writes the n-step transitions of one actor into a replay table; each observation is stored once.

    Args:
        writer: keeps at least `num_keep_alive_refs(n_step)` steps.
        table: name of the table.
        n_step: see `NStepReturns`.
        discount: see `NStepReturns`.
        max_in_flight: transitions that may be on their way to the table before the actor waits for it.
        priority: of new transitions.
    """

    def __init__(
        self,
        writer: TrajectoryWriter,
        *,
        table: str,
        n_step: int,
        discount: float,
        max_in_flight: int = 32,
        priority: float = 1.0,
    ) -> None:
        self._writer = writer
        self._table = table
        self._returns = NStepReturns(n_step, discount)
        self._max_in_flight = max_in_flight
        self._priority = priority

    @staticmethod
    def num_keep_alive_refs(n_step: int) -> int:
        """How many steps the writer must keep: those of a transition, and one for each that ends with an episode."""
        return 2 * n_step

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Begins an episode."""
        self._returns.begin()
        self._append(timestep.observation, None)

    def observe(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = None, state: Any = None) -> None:  # noqa: ARG002
        """Adds a step. Blocks while replay lets nothing in. Transitions have neither extras nor a state.

        Raises:
            ReplayError, CourierError: what the replay server or the connection reported.
        """
        completed = self._returns.step(action, next_timestep)
        observation = next_timestep.observation
        if not completed:
            self._append(observation, None)
        # The numbers of a transition lie in the row of its last observation; those of further ones that end there in
        # rows of their own, without an observation.
        for extra, done in enumerate(completed):
            self._append(observation if extra == 0 else None, done)
            history = self._writer.history
            item = Transition(
                o_tm1=history["observation"][-1 - extra - done.span],
                a_tm1=history["action"][-1],
                r_t=history["reward"][-1],
                discount_t=history["discount"][-1],
                o_t=history["observation"][-1 - extra],
            )
            self._writer.create_item(self._table, self._priority, item)
        self._writer.flush(block_until_num_items=self._max_in_flight)

    def close(self) -> None:
        """Sends what is left; does not wait for it."""
        self._writer.close()

    def _append(self, observation: Any, done: NStepReturn | None) -> None:
        self._writer.append(
            {
                "observation": observation,
                "action": None if done is None else stored_action(done.action),
                "reward": None if done is None else np.float32(done.reward),
                "discount": None if done is None else np.float32(done.discount),
            }
        )


def stored_action(action: Any) -> Any:
    """An action as it is stored: int32 when it is discrete."""
    return np.int32(action) if isinstance(action, int | np.integer) else action
