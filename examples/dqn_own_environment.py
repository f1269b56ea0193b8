"""DQN on an environment of one's own: first in one process, which is easy to debug; then the same as a program.

python examples/dqn_own_environment.py
"""

import dm_env
import numpy as np
from dm_env import specs

import topology as lp
from topology.agents.core.local import run_local
from topology.agents.dqn.program import DQN, DQNConfig


class Corridor(dm_env.Environment):
    """Six cells in a row: walk right, to the last. A step costs 0.01, arriving pays 1; 30 steps at most."""

    def reset(self) -> dm_env.TimeStep:
        self._cell, self._steps = 0, 0
        return dm_env.restart(self._observation())

    def step(self, action: int) -> dm_env.TimeStep:
        self._steps += 1
        self._cell = min(max(self._cell + (1 if action == 1 else -1), 0), 5)
        if self._cell == 5:
            return dm_env.termination(1.0, self._observation())
        make = dm_env.truncation if self._steps == 30 else dm_env.transition
        return make(-0.01, self._observation())

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((6,), np.float32, 0.0, 1.0, name="cell")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2, name="action")

    def _observation(self) -> np.ndarray:
        return np.eye(6, dtype=np.float32)[self._cell]


def main(seed: int = 0) -> None:
    config = DQNConfig(
        seed=seed,
        num_actors=2,
        hidden_sizes=(32,),
        max_actor_steps=6_000,
        min_replay_size=500,
        samples_per_insert=16.0,  # 1,375 updates of 64 transitions
        target_update_period=50,  # often enough for the value of the last cell to reach the first one many times
        evaluation_period=1_000,
        final_evaluation_episodes=10,
    )
    agent = DQN(config, Corridor)
    for steps, evaluation in run_local(agent).evaluations:
        print(f"one process, after {steps} steps: mean return {evaluation.mean_return:.2f}")
    lp.launch(agent.build(), lp.LaunchType.LOCAL_MULTI_THREADING).wait()


if __name__ == "__main__":
    main()
