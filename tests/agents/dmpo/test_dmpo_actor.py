"""The acting side: samples, means, bounds, shapes; and learning in one process."""

import dm_env
import jax
import numpy as np
import pytest
from dm_env import specs

from topology.agents.core.local import run_local
from topology.agents.dmpo.actor import make_policy
from topology.agents.dmpo.networks import Critic, GaussianPolicy
from topology.agents.dmpo.program import DMPO, DMPOConfig


def test_samples_have_the_networks_distribution_and_the_mean_is_its_mean():
    network = GaussianPolicy(action_size=2, hidden_sizes=(4,), initial_stddev=0.2)
    observation = np.ones((1, 3), np.float32)
    params = network.init(jax.random.key(0), observation)
    mean, stddev = (x[0] for x in network.apply(params, observation))
    np.testing.assert_allclose(stddev, 0.2, rtol=0.2)
    explore, exploit = (make_policy(network, (2, 1), explore=explore) for explore in (True, False))
    many = np.repeat(observation, 4000, 0)
    samples = explore.act(params, jax.random.key(1), many, None, None).action
    assert samples.shape == (4000, 2, 1)
    np.testing.assert_allclose(np.mean(samples[..., 0], axis=0), mean, atol=0.02)
    np.testing.assert_allclose(np.std(samples[..., 0], axis=0), stddev, rtol=0.05)
    np.testing.assert_allclose(exploit.act(params, None, observation, None, None).action[0, :, 0], mean, rtol=1e-5)


def test_actions_stay_within_their_bounds():
    network = GaussianPolicy(action_size=1, hidden_sizes=(4,), initial_stddev=50.0)
    params = network.init(jax.random.key(0), np.zeros((1, 3), np.float32))
    action = make_policy(network, (1,), explore=True).act(
        params, jax.random.key(1), np.zeros((64, 3), np.float32), None, None
    )
    assert np.max(np.abs(action.action)) == 1.0


def test_the_critic_sees_actions_as_the_environment_does():
    critic = Critic(hidden_sizes=(4,), num_atoms=3)
    observations = np.ones((2, 5), np.float32)
    params = critic.init(jax.random.key(0), observations, np.zeros((2, 1), np.float32))
    actions = np.array([[[1.0], [-1.0]], [[3.0], [-9.0]], [[0.5], [0.2]]], np.float32)  # [S, B, A]
    logits = critic.apply(params, observations, actions)
    assert logits.shape == (3, 2, 3)
    np.testing.assert_array_equal(logits[0], logits[1])
    assert not np.allclose(logits[0], logits[2])


class Target(dm_env.Environment):
    """One decision an episode: two numbers in [-3, 3], near those that are shown; pays by distance, at most 0."""

    def __init__(self, *, seed=None):
        self.random = np.random.default_rng(seed)
        self.ended = True

    def reset(self):
        self.ended = False
        self.wanted = self.random.uniform(-2, 2, 2).astype(np.float32)
        return dm_env.restart(self.wanted)

    def step(self, action):
        if self.ended:
            return self.reset()
        self.ended = True
        return dm_env.termination(-float(np.sum(np.square(action - self.wanted))), self.wanted)

    def observation_spec(self):
        return specs.BoundedArray((2,), np.float32, -2.0, 2.0)

    def action_spec(self):
        return specs.BoundedArray((2,), np.float64, -3.0, 3.0)


SHORT = {
    "num_actors": 1,
    "hidden_sizes": (32,),
    "min_replay_size": 200,
    "batch_size": 64,
    "num_samples": 10,
    "samples_per_insert": 32.0,
    "min_return": -40.0,
    "num_atoms": 51,
    "learning_rate": 3e-3,
    "final_learning_rate": 3e-3,
    "target_policy_update_period": 10,
    "target_critic_update_period": 10,
    "max_actor_steps": 1_500,
    "evaluation_period": 1_500,
    "final_evaluation_episodes": 50,
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("settings", [{}, {"environments_per_actor": 5}], ids=["one", "five environments"])
def test_it_learns_to_hit_what_it_sees(settings):
    result = run_local(DMPO(DMPOConfig(seed=1, **SHORT, **settings), Target))
    assert result.evaluations[-1][1].mean_return > -0.5  # about -10 at first
