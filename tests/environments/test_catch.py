"""Catch: its rules, its known returns, and dm_env's own conformance kit."""

import numpy as np
import pytest
from absl.testing import absltest
from dm_env import test_utils

from topology.environments import Catch


class CatchConformanceTest(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self):
        return Catch(seed=1)

    def make_action_sequence(self):
        random = np.random.default_rng(3)
        for _ in range(50):
            yield int(random.integers(3))


def play(environment, policy):
    timestep, decisions, total = environment.reset(), 0, 0.0
    while not timestep.last():
        timestep = environment.step(policy(timestep.observation))
        decisions += 1
        total += timestep.reward
    return decisions, total, timestep


def follow_the_ball(board):
    ball = int(np.argmax(board[:-1].max(axis=0)))
    return int(np.sign(ball - np.argmax(board[-1]))) + 1


def test_the_best_policy_always_catches_in_nine_decisions():
    environment = Catch(seed=2)
    for _ in range(50):
        decisions, total, last = play(environment, follow_the_ball)
        assert (decisions, total, last.discount) == (9, 1.0, 0.0)


def test_a_random_policy_returns_minus_0_6():
    environment, random = Catch(seed=4), np.random.default_rng(5)
    returns = [play(environment, lambda _: int(random.integers(3)))[1] for _ in range(4000)]
    assert np.mean(returns) == pytest.approx(-0.6, abs=0.05)


def test_the_board_shows_ball_and_paddle():
    timestep = Catch(seed=0).reset()
    assert timestep.observation.dtype == np.float32
    assert timestep.observation.sum() == 2.0
    assert timestep.observation[9, 2] == 1.0
    assert timestep.observation[0].sum() == 1.0


def test_a_seed_fixes_the_balls():
    boards = [
        [Catch.reset(environment).observation for _ in range(20)] for environment in (Catch(seed=7), Catch(seed=7))
    ]
    np.testing.assert_array_equal(*boards)
    other = Catch(seed=8)
    assert not np.array_equal(boards[0], [other.reset().observation for _ in range(20)])


def test_an_unknown_action_and_a_grid_too_small_are_refused():
    environment = Catch(seed=0)
    environment.reset()
    with pytest.raises(ValueError, match="got 3"):
        environment.step(3)
    with pytest.raises(ValueError, match="1x5"):
        Catch(rows=1)
