"""DQN, scaled out: workers send n-step transitions, the trainer keeps the latest and learns from draws of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from topology.agents.core.exploration import epsilon_ladder
from topology.agents.core.seeding import derive_seed
from topology.agents.flow.config import DQNConfig
from topology.agents.flow.policy import JaxPolicy
from topology.agents.flow.q_learning import DISCOUNTS, make_q_policy
from topology.agents.scaleout.acting import Acting
from topology.agents.scaleout.algorithm import PlanAlgorithm, PolicyLearner
from topology.agents.scaleout.config import ScaleOutDQNConfig
from topology.agents.scaleout.normalising import RETURNS, Normaliser
from topology.agents.scaleout.playing import Played, Step
from topology.agents.scaleout.ring import Ring
from topology.agents.scaleout.roles import Columns
from topology.nodes.flow import SampleBatch
from topology.nodes.store.experience import Experience

__all__ = ["DQN", "transitions"]

_RING = "replay"
_PROGRESS = "progress"


@final
class DQN(PlanAlgorithm[ScaleOutDQNConfig]):
    """See `PlanAlgorithm`."""

    def make_policy(self, seed: int, worker: int | None) -> JaxPolicy:
        config = self.config
        epsilons: Any = 0.0
        if worker is not None:  # each worker has some of the whole ladder
            epsilons = epsilon_ladder(config.num_workers * config.environments_per_worker)[worker :: config.num_workers]
        return make_q_policy(config.flow(DQNConfig), self.spec, seed, exploration=epsilons)

    def make_columns(self, played: Played, acting: Acting) -> Columns:
        del acting
        rows = [row for steps in played.steps for row in transitions(steps, self.config.n_step, self.config.discount)]
        obs, actions, rewards, discounts, new_obs = map(np.stack, zip(*rows, strict=True))
        return {
            SampleBatch.OBS: obs,
            SampleBatch.ACTIONS: actions,
            SampleBatch.REWARDS: rewards.astype(np.float32),
            DISCOUNTS: discounts.astype(np.float32),
            SampleBatch.NEXT_OBS: new_obs,
            **self.returns_columns(played),
        }

    def make_policy_learner(self, seed: int) -> PolicyLearner:
        return _Learner(self.make_policy(seed, None), self.make_normaliser(), self.config, seed)


def transitions(steps: list[Step], n_step: int, discount: float) -> list[tuple[Any, ...]]:
    """A transition from each step: observation, action, discounted rewards, product of the discounts, observation then.

    It spans `n_step` steps, or fewer where the episode or what was played ends: so that nothing reaches into what is
    played later, maybe by another policy, and the last observation has its value there too.
    """
    rows = []
    for begin, step in enumerate(steps):
        reward, factor = 0.0, 1.0
        for end in steps[begin : begin + n_step]:
            reward += factor * float(end.timestep.reward)
            factor *= discount * float(end.timestep.discount)
            if end.timestep.last():
                break
        rows.append((step.observation, step.action, reward, factor, end.timestep.observation))
    return rows


@final
class _Learner(PolicyLearner):
    """Learns from draws of the latest transitions, so many of them for each that it takes."""

    def __init__(self, policy: JaxPolicy, normaliser: Normaliser, config: ScaleOutDQNConfig, seed: int) -> None:
        super().__init__(policy, normaliser)
        self._config = config
        self._seed = seed
        self._ring = Ring(config.replay_size)
        self._taken = self._drawn = self._target_steps = 0

    def keep(self, experience: Experience) -> None:
        columns = dict(experience.columns)
        self.normaliser.add(observations=columns[SampleBatch.OBS], returns=columns.pop(RETURNS, None))
        self._ring.add(columns)
        self._taken += len(columns[SampleBatch.REWARDS])

    @property
    def _draw_size(self) -> int:
        return self._config.batch_size * self._config.updates_per_batch

    @property
    def _due(self) -> float:
        """Draws that are to be made of what was taken."""
        learned_from = self._taken - self._config.min_replay_size
        return (learned_from * self._config.samples_per_insert - self._drawn) / self._draw_size

    @property
    def wants_more(self) -> bool:
        return self._due < 2

    def learn(self) -> dict[str, float] | None:
        if self._due < 1:
            return None
        config = self._config
        random = np.random.default_rng(derive_seed(self._seed, self.updates))
        columns = self._ring.draw(self._draw_size, random)
        for name in (SampleBatch.OBS, SampleBatch.NEXT_OBS):
            columns[name] = self.normaliser(columns[name])
        columns[SampleBatch.REWARDS] = columns[SampleBatch.REWARDS] * np.float32(self.normaliser.reward_factor or 1.0)
        self.follow_schedules()
        told = self.policy.learn_in_passes(
            SampleBatch(columns), num_passes=1, minibatch_size=config.batch_size, num_devices=1, seed=self.updates
        )
        self._drawn += self._draw_size
        self.updates += config.updates_per_batch
        if self.steps - self._target_steps >= config.target_update_period:
            self.policy.update_target()
            self._target_steps = self.steps
        return {**told["learner_stats"], "replay_size": float(len(self._ring))}

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        progress = np.array([self._taken, self._drawn, self._target_steps], np.int64)
        kept = {f"{_RING}/{name}": column for name, column in self._ring.columns().items()}
        return {**super().state_arrays(), **kept, _PROGRESS: progress}

    def restore(self, arrays: Mapping[str, NDArray[Any]], state: Mapping[str, NDArray[Any]]) -> None:
        super().restore(arrays, state)
        self._taken, self._drawn, self._target_steps = (int(count) for count in state[_PROGRESS])
        start = f"{_RING}/"
        columns = {name.removeprefix(start): column for name, column in state.items() if name.startswith(start)}
        self._ring = Ring(self._config.replay_size)
        if columns:
            self._ring.add(columns)
