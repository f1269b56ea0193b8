"""What an agent may be told of an environment: one array to see, one reward, actions that can be counted."""

import numpy as np
import pytest
from dm_env import specs

from topology.environments.specs import EnvironmentSpec, check_arrays, num_discrete_actions
from topology.errors import ProgramError

NUMBER = specs.Array((), np.float32)


def spec(observation, *, actions=None, reward=NUMBER):
    return EnvironmentSpec(observation, actions or specs.DiscreteArray(1), reward, NUMBER)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.uint8, np.bool_])
def test_arrays_of_any_numbers_are_taken_and_one_action_is_enough(dtype):
    assert num_discrete_actions(spec(specs.Array((3,), dtype)), agent="X") == 1
    assert num_discrete_actions(spec(specs.Array((), dtype)), agent="X") == 1


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"a": NUMBER}, "X needs an environment whose observation is one array.*FlatObservations"),
        ((NUMBER, NUMBER), "is one array"),
        (specs.StringArray(()), "is made of numbers"),
        (specs.Array((2,), np.complex64), "is made of numbers"),
        (specs.Array((0,), np.float32), "shows something"),
    ],
)
def test_observations_that_no_network_takes_are_refused(observation, text):
    with pytest.raises(ProgramError, match=text):
        check_arrays(spec(observation), agent="X")


@pytest.mark.parametrize("reward", [specs.Array((2,), np.float32), {"a": NUMBER}])
def test_rewards_of_several_numbers_are_refused(reward):
    with pytest.raises(ProgramError, match="one reward for each step"):
        check_arrays(spec(NUMBER, reward=reward), agent="X")


def test_actions_that_are_not_discrete_are_refused():
    with pytest.raises(ProgramError, match="X needs an environment with discrete actions"):
        num_discrete_actions(spec(NUMBER, actions=specs.BoundedArray((1,), np.float32, -1, 1)), agent="X")
