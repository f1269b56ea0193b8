"""Actions between -1 and 1 for any bounds."""

import dm_env
import numpy as np
import pytest
from absl.testing import absltest
from dm_env import specs, test_utils

from topology.environments import Catch, make_environment
from topology.environments.unit_actions import UnitActions, make_with_unit_actions
from topology.errors import ProgramError


class PendulumConformanceTest(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self):
        return make_with_unit_actions("gym:Pendulum-v1", seed=1)

    def make_action_sequence(self):
        random = np.random.default_rng(3)
        for _ in range(250):
            yield random.uniform(-1.0, 1.0, 1).astype(np.float32)


class Recorder(dm_env.Environment):
    """Remembers the actions; closes once."""

    def __init__(self, action_spec):
        self.spec, self.actions, self.closed = action_spec, [], False

    def reset(self):
        return dm_env.restart(np.zeros(1))

    def step(self, action):
        self.actions.append(action)
        return dm_env.transition(0.0, np.zeros(1))

    def observation_spec(self):
        return specs.Array((1,), np.float64)

    def action_spec(self):
        return self.spec

    def close(self):
        self.closed = True


def test_actions_are_mapped_onto_the_bounds_and_clipped():
    inner = Recorder(specs.BoundedArray((2,), np.float64, [-2.0, 0.0], [2.0, 10.0], name="torque"))
    environment = UnitActions(inner)
    assert environment.action_spec() == specs.BoundedArray((2,), np.float32, -1.0, 1.0, name="torque")
    environment.reset()
    for action in ([-1.0, 1.0], [0.5, 0.0], [-7.0, 3.0]):
        environment.step(np.array(action, np.float32))
    np.testing.assert_allclose(inner.actions, [[-2.0, 10.0], [1.0, 5.0], [-2.0, 10.0]])
    assert inner.actions[0].dtype == np.float64


def test_one_bound_for_all_dimensions():
    inner = Recorder(specs.BoundedArray((3,), np.float32, -4.0, 4.0))
    UnitActions(inner).step(np.array([-1.0, 0.0, 0.25]))
    np.testing.assert_array_equal(inner.actions, [[-4.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    "spec",
    [
        specs.Array((1,), np.float32),
        specs.DiscreteArray(3),
        specs.BoundedArray((2,), np.float32, [-1.0, -np.inf], 1.0),
        specs.BoundedArray((2,), np.int32, 0, 4),
    ],
)
def test_other_actions_are_refused(spec):
    with pytest.raises(ProgramError, match="continuous ones with finite bounds are needed"):
        UnitActions(Recorder(spec))


def test_by_name_by_factory_and_with_the_seed():
    by_name = make_with_unit_actions("gym:Pendulum-v1", seed=4)
    np.testing.assert_array_equal(
        by_name.reset().observation, make_environment("gym:Pendulum-v1", seed=4).reset().observation
    )
    with pytest.raises(ProgramError, match=r"The environment 'catch' cannot be used: its actions are DiscreteArray"):
        make_with_unit_actions("catch")
    with pytest.raises(ProgramError, match="cannot be used"):
        make_with_unit_actions(Catch)


def test_what_cannot_be_used_is_closed_and_what_is_used_is_closed_with_it():
    refused, used = Recorder(specs.Array((1,), np.float32)), Recorder(specs.BoundedArray((1,), np.float32, -1.0, 1.0))
    with pytest.raises(ProgramError):
        make_with_unit_actions(lambda: refused)
    make_with_unit_actions(lambda: used).close()
    assert refused.closed
    assert used.closed
