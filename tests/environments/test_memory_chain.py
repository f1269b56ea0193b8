"""Memory chain: its rules, what can be reached with and without a memory, and dm_env's own conformance kit."""

import numpy as np
import pytest
from absl.testing import absltest
from dm_env import test_utils

from topology.environments import MemoryChain, make_environment
from topology.errors import ProgramError


class MemoryChainConformanceTest(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self):
        return MemoryChain(3, seed=1)

    def make_action_sequence(self):
        random = np.random.default_rng(3)
        for _ in range(50):
            yield int(random.integers(2))


def play(environment, answer):
    """An episode: its observations, and its rewards. `answer` gets the observations so far."""
    timestep = environment.reset()
    observations, rewards = [timestep.observation], []
    while not timestep.last():
        timestep = environment.step(answer(observations))
        observations.append(timestep.observation)
        rewards.append(timestep.reward)
    assert timestep.discount == 0.0
    return np.stack(observations), rewards


def test_the_bit_is_shown_first_and_asked_for_last():
    observations, rewards = play(MemoryChain(4, seed=0), lambda seen: 0)
    np.testing.assert_allclose(observations[:5, 0], [1, 0.75, 0.5, 0.25, 0])
    np.testing.assert_array_equal(observations[:5, 1], [0, 0, 0, 0, 1])
    assert abs(observations[0, 2]) == 1
    assert not observations[1:, 2].any()
    assert rewards[:-1] == [0.0] * 4


def test_whoever_remembers_is_always_right_and_whoever_forgets_half_of_the_time():
    environment = MemoryChain(10, seed=2)
    remembered = [sum(play(environment, lambda seen: int(seen[0][2] > 0))[1]) for _ in range(50)]
    assert remembered == [1.0] * 50
    forgotten = [sum(play(environment, lambda seen: int(seen[-1][2] > 0))[1]) for _ in range(1000)]
    assert set(forgotten) == {-1.0, 1.0}
    assert np.mean(forgotten) == pytest.approx(0.0, abs=0.1)


def test_the_seed_decides_the_bits():
    def bits(seed):
        environment = MemoryChain(1, seed=seed)
        return [environment.reset().observation[2] for _ in range(30)]

    assert bits(1) == bits(1) != bits(2)


def test_it_has_a_name_with_its_length():
    for name, actions in (("memory_chain", 11), ("memory_chain:3", 4)):
        assert len(play(make_environment(name, seed=0), lambda seen: 1)[1]) == actions
    with pytest.raises(ProgramError, match="'0' is no length; write memory_chain:10"):
        make_environment("memory_chain:0")
    with pytest.raises(ProgramError, match="'ten' is no length"):
        make_environment("memory_chain:ten")


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        MemoryChain(0)
    environment = MemoryChain(2)
    environment.reset()
    with pytest.raises(ValueError, match="0 and 1, got 2"):
        environment.step(2)
