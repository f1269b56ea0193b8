"""Settings that cannot work are refused, all of them at once."""

import dataclasses

import pytest

from topology.agents.dqn.config import DQNConfig
from topology.errors import ProgramError


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_actors": 0}, "num_actors=0: at least 1"),
        ({"num_caches": 0}, "num_caches=0: at least 1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0: above 0"),
        ({"discount": 1.5}, "discount=1.5: between 0 and 1"),
        ({"max_actor_steps": 0}, "max_actor_steps=0: at least 1, or None"),
        ({"max_actor_steps": 999}, "below min_replay_size=1000"),
        ({"min_replay_size": 10, "max_replay_size": 5}, "wait for ever"),
        ({"samples_per_insert": 0.0}, "samples_per_insert=0.0: above 0, or None"),
        ({"hidden_sizes": (64, 0)}, "each at least 1"),
        ({"max_abs_reward": -1.0}, "max_abs_reward=-1.0"),
        ({"cache_refresh_ms": 200, "cache_stale_ms": 100}, "stale before they are refreshed"),
        ({"final_evaluation_episodes": -1}, "final_evaluation_episodes=-1: at least 0"),
    ],
)
def test_one_fault_is_named(changes, text):
    with pytest.raises(ProgramError) as raised:
        DQNConfig(**changes)
    assert text in str(raised.value)
    assert len(raised.value.faults) == 1


def test_every_fault_is_named():
    with pytest.raises(ProgramError) as raised:
        DQNConfig(num_actors=0, batch_size=0, discount=-1.0)
    assert len(raised.value.faults) == 3


def test_the_error_buffer_leaves_room_for_the_learner_and_for_one_insert():
    assert DQNConfig().error_buffer == 0.25 * 1000 * 32
    wide = DQNConfig(batch_size=4096, updates_per_call=4)
    assert wide.error_buffer == 2 * 4 * 4096
    ratio = DQNConfig(samples_per_insert=64.0, batch_size=1, updates_per_call=1, samples_per_insert_tolerance=0.0)
    assert ratio.error_buffer == 64.0
    with pytest.raises(ValueError, match="no ratio to keep"):
        _ = DQNConfig(samples_per_insert=None).error_buffer


def test_settings_cannot_be_changed_and_have_their_words_in_the_documentation():
    config = DQNConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_actors = 3
    documents = "".join(owner.__doc__ for owner in DQNConfig.__mro__)
    for field in dataclasses.fields(config):
        assert f"\n        {field.name}: " in documents or f"\n    {field.name}: " in documents
