"""How these agents play: several environments in step, and their experience as columns."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, final

import dm_env
import numpy as np
from numpy.typing import NDArray

from topology.agents.core.loop import EpisodeResult
from topology.agents.core.policy import PolicyOutput
from topology.agents.core.transitions import NStepReturn, NStepReturns, stored_action
from topology.agents.core.vector import VectorLoop
from topology.agents.flow.actor_critic import add_advantages
from topology.agents.flow.policy import JaxPolicy
from topology.agents.flow.q_learning import DISCOUNTS
from topology.nodes.flow import Episode, SampleBatch

__all__ = ["FragmentSampler", "JaxSampler", "TransitionSampler"]

MakeEnvironments = Callable[[], Sequence[dm_env.Environment]]


@final
class _Acting:
    """A policy as a `VectorLoop` asks it."""

    version = 0

    def __init__(self, policy: JaxPolicy) -> None:
        self._policy = policy

    def __call__(self, observations: Any, states: Any, explorations: NDArray[np.float32]) -> PolicyOutput:
        del explorations
        return self._policy.act(observations, states)

    def update(self) -> None:
        """Nothing: weights arrive from the driver."""


class JaxSampler(abc.ABC):
    """See `topology.nodes.flow.Sampler`.

    Args:
        policy: acts.
        make_environments: called now, and again after a failure.
        fragment_length: steps of each environment in a fragment.
    """

    def __init__(self, policy: JaxPolicy, make_environments: MakeEnvironments, fragment_length: int) -> None:
        self._policy = policy
        self._make_environments = make_environments
        self._length = fragment_length
        self._episodes: list[Episode] = []
        self._environments: Sequence[dm_env.Environment] = ()
        self._adders: list[Any] = []
        self._open()

    def _open(self) -> None:
        self._environments = self._make_environments()
        self._adders = [self._make_adder() for _ in self._environments]
        acting = _Acting(self._policy)
        self._loop = VectorLoop(self._environments, self._adders, agent=self._policy.agent, policy=acting)

    @abc.abstractmethod
    def _make_adder(self) -> Any:
        """Takes the steps of one environment, and makes `rows` of them."""

    @abc.abstractmethod
    def _collect(self) -> SampleBatch:
        """What the adders have got in this fragment."""

    def sample(self) -> SampleBatch:
        try:
            for _ in range(self._length):
                results: list[EpisodeResult] = self._loop.run_steps()
                self._episodes += [Episode(result.episode_return, result.episode_length) for result in results]
            return self._collect()
        finally:  # also what an error has broken off: not all environments got as far
            for adder in self._adders:
                adder.rows = []

    def drain_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def recover(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        for environment in self._environments:
            environment.close()


class _Steps:
    """Keeps the steps of one environment as rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._observation: Any = None

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._observation = timestep.observation

    def observe(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = None, state: Any = None) -> None:
        last = next_timestep.last()
        terminated = last and not next_timestep.discount
        self.rows.append(
            (
                self._observation,
                stored_action(action),
                next_timestep.reward,
                terminated,
                last and not terminated,
                next_timestep.observation,
                extras["logits"],
                extras["values"],
                *(() if state is None else (np.stack(state),)),
            )
        )
        self._observation = next_timestep.observation

    def close(self) -> None:
        """Nothing to send."""


@final
class FragmentSampler(JaxSampler):
    """Fragments of consecutive steps, those of one environment after those of the one before.

    Args:
        policy: acts; gives logits and values.
        make_environments: see `JaxSampler`.
        fragment_length: steps of each environment in a fragment.
        discount: factor for each step.
        trace_decay: lambda of the advantages; None for a batch without advantages.
        reward_scale: factor of the rewards in a batch; returns of episodes are told as they are.
    """

    def __init__(
        self,
        policy: JaxPolicy,
        make_environments: MakeEnvironments,
        fragment_length: int,
        *,
        discount: float,
        trace_decay: float | None,
        reward_scale: float = 1.0,
    ) -> None:
        self._discount = discount
        self._reward_scale = reward_scale
        self._trace_decay = trace_decay
        super().__init__(policy, make_environments, fragment_length)

    def _make_adder(self) -> _Steps:
        return _Steps()

    def _collect(self) -> SampleBatch:
        columns = zip(*(row for adder in self._adders for row in adder.rows), strict=True)
        obs, actions, rewards, terminateds, truncateds, new_obs, logits, values, *states = map(np.stack, columns)
        batch = {
            SampleBatch.OBS: obs,
            SampleBatch.ACTIONS: actions,
            SampleBatch.REWARDS: (self._reward_scale * rewards).astype(np.float32),
            SampleBatch.TERMINATEDS: terminateds,
            SampleBatch.TRUNCATEDS: truncateds,
            SampleBatch.ACTION_DIST_INPUTS: logits,
        }
        if states:
            batch[SampleBatch.STATE_IN] = states[0]
        if self._trace_decay is None:
            return SampleBatch(batch, **{SampleBatch.NEXT_OBS: new_obs})

        def by_fragment(column: NDArray[Any]) -> NDArray[Any]:
            return column.reshape(len(self._adders), -1)

        next_values = self._policy.act(new_obs, greedy=True).extras["values"]
        advantages, targets = add_advantages(
            rewards=by_fragment(batch[SampleBatch.REWARDS]),
            values=by_fragment(values),
            next_values=by_fragment(next_values),
            terminateds=by_fragment(terminateds),
            truncateds=by_fragment(truncateds),
            discount=self._discount,
            trace_decay=self._trace_decay,
        )
        batch |= {SampleBatch.ADVANTAGES: advantages.reshape(-1), SampleBatch.VALUE_TARGETS: targets.reshape(-1)}
        return SampleBatch(batch)


class _Transitions:
    """Keeps the n-step transitions of one environment as rows."""

    def __init__(self, n_step: int, discount: float) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._returns = NStepReturns(n_step, discount)
        self._observations: deque[Any] = deque(maxlen=n_step + 1)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._returns.begin()
        self._observations.clear()
        self._observations.append(timestep.observation)

    def observe(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = None, state: Any = None) -> None:  # noqa: ARG002
        completed: list[NStepReturn] = self._returns.step(action, next_timestep)
        self._observations.append(next_timestep.observation)
        self.rows += [
            (
                self._observations[-1 - done.span],
                stored_action(done.action),
                done.reward,
                done.discount,
                next_timestep.observation,
            )
            for done in completed
        ]

    def close(self) -> None:
        """Nothing to send."""


@final
class TransitionSampler(JaxSampler):
    """n-step transitions, as they are completed.

    Args:
        policy: acts.
        make_environments: see `JaxSampler`.
        fragment_length: steps of each environment in a fragment.
        n_step: steps of a transition.
        discount: factor for each step.
    """

    def __init__(
        self,
        policy: JaxPolicy,
        make_environments: MakeEnvironments,
        fragment_length: int,
        *,
        n_step: int,
        discount: float,
    ) -> None:
        self._n_step = n_step
        self._discount = discount
        super().__init__(policy, make_environments, fragment_length)

    def _make_adder(self) -> _Transitions:
        return _Transitions(self._n_step, self._discount)

    def _collect(self) -> SampleBatch:
        rows = [row for adder in self._adders for row in adder.rows]
        if not rows:
            return SampleBatch()
        obs, actions, rewards, discounts, new_obs = map(np.stack, zip(*rows, strict=True))
        return SampleBatch(
            {
                SampleBatch.OBS: obs,
                SampleBatch.ACTIONS: actions,
                SampleBatch.REWARDS: rewards.astype(np.float32),
                DISCOUNTS: discounts.astype(np.float32),
                SampleBatch.NEXT_OBS: new_obs,
            }
        )
