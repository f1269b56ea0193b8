"""CartPole without its velocities."""

import gymnasium
import numpy as np
from absl.testing import absltest
from dm_env import test_utils

from topology.environments import make_environment


class CartPoleHiddenConformanceTest(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self):
        return make_environment("cartpole_hidden", seed=1)

    def make_action_sequence(self):
        random = np.random.default_rng(3)
        for _ in range(100):
            yield int(random.integers(2))


def test_it_is_cartpole_with_position_and_angle_only():
    hidden, full = make_environment("cartpole_hidden", seed=5), gymnasium.make("CartPole-v1")
    timestep, (state, _) = hidden.reset(), full.reset(seed=5)
    limits = np.array([full.unwrapped.x_threshold, full.unwrapped.theta_threshold_radians])
    ended = False
    while not ended:
        np.testing.assert_allclose(timestep.observation, state[[0, 2]] / limits, rtol=1e-5)
        assert timestep.observation.dtype == np.float32
        timestep = hidden.step(1)
        state, reward, ended, _, _ = full.step(1)
        assert timestep.reward == reward
    assert timestep.last()
    assert timestep.discount == 0.0
    assert np.abs(timestep.observation).max() > 1


def test_the_seed_decides_where_it_begins():
    first = [make_environment("cartpole_hidden", seed=seed).reset().observation for seed in (1, 1, 2)]
    np.testing.assert_array_equal(first[0], first[1])
    assert not np.array_equal(first[0], first[2])
