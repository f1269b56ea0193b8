"""Whole episodes as items, over a real replay service."""

import dm_env
import numpy as np
import pytest
from dm_env import specs

from topology.agents.core.episodes import EpisodeAdder
from topology.agents.core.sequences import StepSequence, sequence_signature
from topology.environments.specs import EnvironmentSpec
from topology.errors import ProgramError
from topology.nodes.replay import Client, Table
from topology.nodes.replay.service import ReplayService

MAX_STEPS = 4
SPEC = EnvironmentSpec(
    observations=specs.Array((), np.float32),
    actions=specs.DiscreteArray(9),
    rewards=specs.Array((), np.float32),
    discounts=specs.Array((), np.float32),
)


@pytest.fixture
def client():
    signature = sequence_signature(SPEC, EpisodeAdder.length(MAX_STEPS), state=specs.Array((), np.float32))
    service = ReplayService([Table.queue("episodes", 10, signature)])
    yield Client("local", service=service)
    service.close()


@pytest.fixture
def adder(client):
    writer = client.trajectory_writer(EpisodeAdder.num_keep_alive_refs(MAX_STEPS))
    adder = EpisodeAdder(writer, table="episodes", max_steps=MAX_STEPS, discount=0.5, max_in_flight=0)
    yield adder
    adder.close()


def play(adder, steps, *, ends=True):
    """Step t has observation and action t, reward 10 t; the memory before it is -t."""
    adder.observe_first(dm_env.restart(np.float32(0)))
    for t in range(steps):
        make = dm_env.termination if ends and t == steps - 1 else dm_env.transition
        adder.observe(t, make(10.0 * t, np.float32(t + 1)), state=np.float32(-t))


def read(client):
    return StepSequence(*client.sample_batch("episodes", 1).data)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_an_episode_is_one_item_filled_up_to_the_longest(client, adder, steps):
    play(adder, steps)
    play(adder, 1)
    assert client.server_info()["episodes"].current_size == 2
    episode = read(client)
    mask = np.arange(MAX_STEPS + 1) < steps
    np.testing.assert_array_equal(episode.mask[0], mask)
    np.testing.assert_array_equal(episode.observation[0, : steps + 1], np.arange(steps + 1))
    np.testing.assert_array_equal(episode.action[0], np.arange(MAX_STEPS + 1) * mask)
    np.testing.assert_array_equal(episode.reward[0], 10 * np.arange(MAX_STEPS + 1) * mask)
    np.testing.assert_array_equal(episode.discount[0], 0.5 * (np.arange(MAX_STEPS + 1) < steps - 1))
    assert episode.state[0] == 0


def test_an_episode_that_was_left_is_not_written(client, adder):
    play(adder, 3, ends=False)
    play(adder, 2)
    assert client.server_info()["episodes"].current_size == 1
    np.testing.assert_array_equal(read(client).mask[0], [1, 1, 0, 0, 0])


def test_an_episode_that_is_too_long_says_what_to_do(adder):
    with pytest.raises(ProgramError, match=r"more than 4 steps.*raise max_steps"):
        play(adder, 5, ends=False)
    with pytest.raises(ValueError, match="max_steps=0"):
        EpisodeAdder(None, table="episodes", max_steps=0, discount=1.0)
