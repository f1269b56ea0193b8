"""The environment loop: what an episode was worth."""

import math

import dm_env
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from topology.agents.core.loop import EnvironmentLoop, EpisodeResult
from topology.errors import ProgramError


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


class Shown(dm_env.Environment):
    """Gives these time steps after the first."""

    def __init__(self, *timesteps):
        self._timesteps = timesteps

    def reset(self):
        self._left = list(self._timesteps)
        return dm_env.restart(0)

    def step(self, action):
        return self._left.pop(0)

    def observation_spec(self):
        raise NotImplementedError

    action_spec = observation_spec


NUMBERS = specs.Array((2,), np.float32)
TEAM = {"a": NUMBERS, "b": {"observation": NUMBERS, "action_mask": specs.Array((3,), np.int8)}}


class Showing(Idle):
    """An environment and an actor: shows this."""

    def __init__(self, observation):
        self.observation = observation

    def reset(self):
        return dm_env.restart(self.observation)


@pytest.mark.parametrize(
    ("observation", "spec", "fault"),
    [
        (np.zeros(2), NUMBERS, r"the observation is float64\[2\], and its spec says float32\[2\]"),
        (np.zeros(3, np.float32), NUMBERS, r"the observation is float32\[3\], and its spec says float32\[2\]"),
        ([0.0, 1.0], NUMBERS, r"the observation is a list, and its spec says float32\[2\]"),
        (None, NUMBERS, r"the observation is a NoneType"),
        (0.5, specs.Array((), np.float32), r"the observation is float64\[\], and its spec says float32\[\]"),
        (np.zeros(2, np.float32), TEAM, r"the observation is float32\[2\], and its spec has 'a', 'b'"),
        ({"a": np.zeros(2, np.float32)}, TEAM, r"the observation has 'a', and its spec has 'a', 'b'"),
        (
            {"a": np.zeros(2, np.float32), "b": {"observation": np.zeros(2), "action_mask": np.zeros(3, np.int8)}},
            TEAM,
            r"the observation\['b'\]\['observation'\] is float64\[2\]",
        ),
    ],
)
def test_what_the_spec_does_not_say_is_refused_before_anybody_computes_with_it(observation, spec, fault):
    environment = Showing(observation)
    with pytest.raises(ProgramError, match=rf"reset\(\) of the environment Showing does not .* says: {fault}"):
        EnvironmentLoop(environment, environment, observations=spec).begin()


@pytest.mark.parametrize(
    ("observation", "spec"),
    [
        (np.zeros(2, np.float32), NUMBERS),
        (0.5, specs.Array((), np.float64)),
        (jnp.zeros(2), NUMBERS),
        (
            {
                "b": {"observation": np.zeros(2, np.float32), "action_mask": np.zeros(3, np.int8)},
                "a": np.zeros(2, "f4"),
            },
            TEAM,
        ),
        ("whatever", None),
    ],
)
def test_what_the_spec_says_is_shown(observation, spec):
    environment = Showing(observation)
    assert EnvironmentLoop(environment, environment, observations=spec).begin().observation is observation


class Seeing(Idle):
    def __init__(self):
        self.steps = 0

    def observe(self, action, next_timestep):
        self.steps += 1


@pytest.mark.parametrize(
    ("timestep", "text"),
    [
        (dm_env.transition(math.nan, 0), "Shown gave the reward nan after 1 steps of an episode.*see to it in the env"),
        (dm_env.termination(-math.inf, 0), "the reward -inf"),
        (dm_env.transition("much", 0), "the reward 'much'"),
        (dm_env.transition(np.zeros(2), 0), r"the reward array\(\[0., 0.\]\)"),
        (dm_env.transition({"a": 1.0, "b": math.nan}, 0), "the reward {'a': 1.0, 'b': nan}"),
        (dm_env.transition({}, 0), "the reward {}"),
        (dm_env.transition(1.0, 0, math.nan), "the discount nan"),
        (dm_env.TimeStep(dm_env.StepType.MID, None, 1.0, 0), "the reward None.*without a reward gives 0.0"),
        (dm_env.TimeStep(dm_env.StepType.MID, 1.0, None, 0), "the discount None.*a discount, 1.0"),
        (dm_env.restart(0), "the reward None.*began an episode by itself"),
    ],
)
def test_a_step_without_a_finite_reward_is_refused_before_it_is_learned_from(timestep, text):
    actor = Seeing()
    loop = EnvironmentLoop(Shown(dm_env.transition(1.0, 0), timestep), actor)
    assert loop.run_step() is None
    with pytest.raises(ProgramError, match=text):
        loop.run_step()
    assert actor.steps == 1


def test_an_episode_that_does_not_end_is_cut_off_where_it_is_told_to_be(caplog):
    def endless():
        return Shown(*[dm_env.transition(1.0, 0)] * 100)

    loop = EnvironmentLoop(endless(), Idle(), max_episode_steps=7)
    assert [loop.run_episode() for _ in range(2)] == [EpisodeResult(7.0, 7)] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "an episode of Shown had not ended after 7 steps: such episodes are cut off there, and what they gave until "
        "then counts"
    ]
    unlimited = EnvironmentLoop(endless(), Idle())
    assert all(unlimited.run_step() is None for _ in range(100))
