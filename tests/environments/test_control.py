"""Tasks of dm_control: names, vectors, seeds; and what is said when it is not installed."""

import sys
from collections import OrderedDict

import dm_env
import numpy as np
import pytest
from dm_env import specs

from topology.environments import make_environment
from topology.environments.control import FlatObservations, make_control
from topology.errors import ProgramError


class Named(dm_env.Environment):
    """Observations by name, of several shapes; ends at its third step."""

    def __init__(self):
        self.steps, self.closed = 0, False

    def reset(self):
        self.steps = 0
        return dm_env.restart(self.observation())

    def step(self, action):
        self.steps += 1
        make = dm_env.truncation if self.steps == 3 else dm_env.transition
        return make(float(self.steps), self.observation())

    def observation(self):
        # In another order than that of the spec.
        return OrderedDict(grid=np.arange(4.0).reshape(2, 2), height=-float(self.steps))

    def observation_spec(self):
        return OrderedDict(height=specs.Array((), np.float64), grid=specs.Array((2, 2), np.float64))

    def action_spec(self):
        return specs.BoundedArray((1,), np.float64, -1.0, 1.0)

    def close(self):
        self.closed = True


def test_observations_become_one_vector_in_the_order_of_the_spec():
    inner = Named()
    environment = FlatObservations(inner)
    assert environment.observation_spec() == specs.Array((5,), np.float32, name="observation")
    assert environment.action_spec() == inner.action_spec()
    timesteps = [environment.reset(), *(environment.step(np.zeros(1)) for _ in range(3))]
    for step, timestep in enumerate(timesteps):
        environment.observation_spec().validate(timestep.observation)
        np.testing.assert_array_equal(timestep.observation, [-step, 0, 1, 2, 3])
    assert [timestep.reward for timestep in timesteps] == [None, 1.0, 2.0, 3.0]
    assert timesteps[-1].last()
    assert timesteps[-1].discount == 1.0
    environment.close()
    assert inner.closed


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(
        ProgramError, match=r"'dm_control:cartpole-swingup' needs .* pip install 'rl-topology\[control\]"
    ):
        make_control("cartpole-swingup")


def test_a_task_is_seeded_and_ends_by_its_time_limit():
    pytest.importorskip("dm_control")
    first, second, other = (make_control("cartpole-swingup", seed) for seed in (3, 3, 4))
    start = first.reset().observation
    assert start.shape == (5,)
    np.testing.assert_array_equal(start, second.reset().observation)
    assert not np.array_equal(start, other.reset().observation)
    for _ in range(1000):
        timestep = first.step(np.ones(1))
    assert timestep.last()
    assert timestep.discount == 1.0


def test_an_unknown_task_names_near_ones():
    pytest.importorskip("dm_control")
    with pytest.raises(ProgramError, match="Did you mean 'dm_control:cartpole-swingup'"):
        make_control("cartpole-swingupp")
    with pytest.raises(ProgramError, match="It has acrobot-swingup, "):
        make_control("xyz")


def test_it_is_made_by_name():
    pytest.importorskip("dm_control")
    environment = make_environment("dm_control:pendulum-swingup", seed=2)
    expected = make_control("pendulum-swingup", 2).reset().observation
    np.testing.assert_array_equal(environment.reset().observation, expected)
