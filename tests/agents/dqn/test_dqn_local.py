"""DQN in one process: the same run twice, and learning."""

import dm_env
import numpy as np
import pytest
from dm_env import specs

from topology.agents.core.local import LocalRun, run_local
from topology.agents.dqn.program import DQN, DQNConfig
from topology.environments import Catch
from topology.errors import ProgramError

SMALL = DQNConfig(
    num_actors=2,
    hidden_sizes=(16,),
    min_replay_size=100,
    samples_per_insert=8.0,
    batch_size=16,
    updates_per_call=2,
    max_actor_steps=400,
    evaluation_period=150,
    final_evaluation_episodes=5,
)


def test_the_same_seed_gives_the_same_run_to_the_bit():
    def weights(seed):
        run = LocalRun(DQN(DQNConfig(**{**vars(SMALL), "seed": seed})))
        for _ in range(150):
            run.step()
        variables = run.learner.get_variables(["policy"])
        run.close()
        assert variables.version > 10
        return variables.values[0]["params"]["advantage_0"]["kernel"]

    first, second, other = weights(1), weights(1), weights(2)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_the_ratio_of_samples_to_inserts_is_kept():
    result = run_local(DQN(SMALL))
    inserts = result.counts["actor_steps"] - 100
    samples = result.counts["learner_steps"] * 16
    assert 0 <= inserts * 8 - samples < 2 * 16 * 2 + 8 * 2 * 3  # transitions still open, and less than a call
    assert [steps for steps, _ in result.evaluations] == [150, 300, 400]
    assert result.evaluations[-1][1].episodes == 5


def test_several_environments_an_actor_count_each_and_give_the_same_run_twice():
    config = DQNConfig(**{**vars(SMALL), "environments_per_actor": 3})
    first, second = (run_local(DQN(config)) for _ in range(2))
    assert first == second
    assert first.counts["actor_steps"] == 402  # 67 rounds of 2 actors with 3 environments each
    assert first.counts["actor_episodes"] == 6 * (67 // 9)


def test_what_has_no_end_or_no_ratio_is_refused():
    with pytest.raises(ProgramError, match="never return"):
        run_local(DQN(DQNConfig(max_actor_steps=None)))
    with pytest.raises(ProgramError, match="needs samples_per_insert"):
        LocalRun(DQN(DQNConfig(samples_per_insert=None)))


class Lamp(dm_env.Environment):
    """One decision: say whether the picture is bright."""

    def __init__(self, *, seed=None):
        self.random = np.random.default_rng(seed)
        self.ended = True

    def reset(self):
        self.bright, self.ended = int(self.random.integers(2)), False
        return dm_env.restart(self.picture())

    def step(self, action):
        if self.ended:
            return self.reset()
        self.ended = True
        return dm_env.termination(float(action == self.bright), self.picture())

    def observation_spec(self):
        return specs.BoundedArray((12, 12, 1), np.uint8, 0, 255)

    def action_spec(self):
        return specs.DiscreteArray(2)

    def picture(self):
        return np.full((12, 12, 1), 40 + 160 * self.bright, np.uint8)


def test_every_environment_is_closed():
    made, closed = [], []

    class Closing(Catch):
        def __init__(self, *, seed=None):
            super().__init__(seed=seed)
            made.append(self)

        def close(self):
            closed.append(self)

    config = DQNConfig(**{**vars(SMALL), "environments_per_actor": 3, "max_actor_steps": 120})
    run_local(DQN(config, Closing))
    assert len(made) == 1 + 2 * 3 + 1  # what the agent looks at, what its actors play, what it is evaluated on
    assert set(map(id, closed)) == set(map(id, made))
    assert len(closed) == len(made)


def test_it_learns_from_pictures():
    config = DQNConfig(
        **{**vars(SMALL), "max_actor_steps": 1000, "learning_rate": 3e-3, "final_evaluation_episodes": 30}
    )
    assert run_local(DQN(config, Lamp)).evaluations[-1][1].mean_return == 1.0


def test_it_learns_catch():
    config = DQNConfig(seed=1, hidden_sizes=(64, 64), max_actor_steps=8_000, final_evaluation_episodes=50)
    assert run_local(DQN(config)).evaluations[-1][1].mean_return >= 0.8
