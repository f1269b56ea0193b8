"""PPO, scaled out: advantages are made by the workers, with the very policy that acted."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from topology.agents.core.seeding import derive_seed
from topology.agents.flow.actor_critic import add_advantages, make_actor_critic
from topology.agents.flow.config import PPOConfig
from topology.agents.flow.policy import JaxPolicy
from topology.agents.scaleout.acting import Acting
from topology.agents.scaleout.algorithm import PlanAlgorithm, PolicyLearner
from topology.agents.scaleout.config import ScaleOutPPOConfig
from topology.agents.scaleout.normalising import RETURNS, Normaliser
from topology.agents.scaleout.playing import Played
from topology.agents.scaleout.roles import Columns
from topology.nodes.flow import SampleBatch
from topology.nodes.store.experience import Experience

__all__ = ["PPO"]


@final
class PPO(PlanAlgorithm[ScaleOutPPOConfig]):
    """See `PlanAlgorithm`."""

    def make_policy(self, seed: int, worker: int | None) -> JaxPolicy:
        del worker  # all explore alike: by sampling
        return make_actor_critic(self.config.flow(PPOConfig), self.spec, seed)

    def make_columns(self, played: Played, acting: Acting) -> Columns:
        steps = [step for sequence in played.steps for step in sequence]
        ends = np.zeros(len(steps), bool)
        ends[np.cumsum([len(sequence) for sequence in played.steps if sequence]) - 1] = True
        last = np.array([step.timestep.last() for step in steps])
        terminated = np.array([step.timestep.last() and not step.timestep.discount for step in steps])
        factor = acting.normaliser.reward_factor or self.config.reward_scale
        rewards = np.array([step.timestep.reward for step in steps], np.float32) * np.float32(factor)
        advantages, targets = add_advantages(
            rewards=rewards[None],
            values=np.stack([step.extras["values"] for step in steps])[None],
            next_values=_next_values(np.stack([step.timestep.observation for step in steps]), acting)[None],
            terminateds=terminated[None],
            # Sequences stand behind one another: what follows the end of one must not count for it.
            truncateds=((last & ~terminated) | ends)[None],
            discount=self.config.discount,
            trace_decay=self.config.trace_decay,
        )
        return {
            SampleBatch.OBS: np.stack([step.observation for step in steps]),
            SampleBatch.ACTIONS: np.stack([step.action for step in steps]),
            SampleBatch.ACTION_DIST_INPUTS: np.stack([step.extras["logits"] for step in steps]),
            SampleBatch.ADVANTAGES: advantages[0].astype(np.float32),
            SampleBatch.VALUE_TARGETS: targets[0].astype(np.float32),
            **self.returns_columns(played),
        }

    def make_policy_learner(self, seed: int) -> PolicyLearner:
        return _Learner(self.make_policy(seed, None), self.make_normaliser(), self.config, seed)


def _next_values(observations: Any, acting: Acting) -> Any:
    """Values of `[T, ...]`, asked for in pieces of equal size, so that the policy is compiled once."""
    size = 256
    padding = -len(observations) % size
    padded = np.concatenate([observations, np.repeat(observations[-1:], padding, axis=0)])
    pieces = [
        acting.ask(padded[start : start + size], greedy=True).extras["values"] for start in range(0, len(padded), size)
    ]
    return np.concatenate(pieces)[: len(observations)]


@final
class _Learner(PolicyLearner):
    """Learns from all that it took at once, in passes over minibatches."""

    def __init__(self, policy: JaxPolicy, normaliser: Normaliser, config: ScaleOutPPOConfig, seed: int) -> None:
        super().__init__(policy, normaliser)
        self._config = config
        self._seed = seed
        self._kept: list[Columns] = []

    def keep(self, experience: Experience) -> None:
        self._kept.append(dict(experience.columns))

    @property
    def wants_more(self) -> bool:
        return not self._kept

    def learn(self) -> dict[str, float] | None:
        if not self._kept:
            return None
        config = self._config
        columns = {name: np.concatenate([kept[name] for kept in self._kept]) for name in self._kept[0]}
        self._kept = []
        returns = columns.pop(RETURNS, None)
        observations = columns[SampleBatch.OBS]
        batch = SampleBatch(columns | {SampleBatch.OBS: self.normaliser(observations)})
        if config.standardize_advantages:
            advantages = batch[SampleBatch.ADVANTAGES]
            batch[SampleBatch.ADVANTAGES] = (advantages - advantages.mean()) / max(1e-4, advantages.std())
        self.follow_schedules()
        told = self.policy.learn_in_passes(
            batch,
            num_passes=config.num_passes,
            minibatch_size=config.minibatch_size,
            num_devices=1,
            seed=derive_seed(self._seed, self.updates),
        )
        self.updates += config.num_passes * max(1, batch.count // config.minibatch_size)
        # After the learning: the batch was made under the statistics of its policy.
        self.normaliser.add(observations=observations, returns=returns)
        return dict(told["learner_stats"])
