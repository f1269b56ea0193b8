"""The environment loop: what an episode was worth."""

import dm_env
import pytest

from topology.agents.core.loop import EnvironmentLoop, EpisodeResult


class Played:
    """An environment that plays these rewards."""

    def __init__(self, *rewards):
        self._rewards = rewards
        self._left = []

    def reset(self):
        self._left = list(self._rewards)
        return dm_env.restart(0)

    def step(self, action):
        reward = self._left.pop(0)
        return dm_env.transition(reward, 0) if self._left else dm_env.termination(reward, 0)


class Idle:
    def select_action(self, observation):
        return 0

    def observe_first(self, timestep):
        pass

    def observe(self, action, next_timestep):
        pass

    def update(self):
        pass


@pytest.mark.parametrize(
    ("rewards", "total"),
    [((1.0, 2.0), 3.0), (({"a": 1.0, "b": 1.0}, {"b": 0.0, "a": 4.0}), 3.0), (({"a": 2.5},), 2.5)],
    ids=["one reward", "the mean of several agents", "a lone agent"],
)
def test_the_return_of_an_episode(rewards, total):
    loop = EnvironmentLoop(Played(*rewards), Idle())
    assert [loop.run_episode() for _ in range(2)] == [EpisodeResult(total, len(rewards))] * 2
