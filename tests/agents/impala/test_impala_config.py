"""Settings that cannot work are refused, all of them at once."""

import dataclasses
import inspect

import pytest

from topology.agents.core.config import AgentConfig
from topology.agents.impala.config import IMPALAConfig
from topology.errors import ProgramError


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_actors": 0}, "num_actors=0: at least 1"),
        ({"num_caches": 2}, "num_caches=2: IMPALA has exactly 1"),
        ({"max_queue_size": 0}, "max_queue_size=0: at least 1"),
        ({"sequence_length": 1}, "sequence_length=1: at least 2"),
        ({"sequence_length": 5, "sequence_period": 5}, "between 1 and sequence_length - 1 = 4"),
        ({"sequence_period": 0}, "sequence_period=0: between 1"),
        ({"lstm_size": 0}, "lstm_size=0: at least 1, or None"),
        ({"hidden_sizes": (64, 0)}, "each at least 1"),
        ({"max_abs_reward": 0.0}, "max_abs_reward=0.0: above 0, or None"),
        ({"reward_scale": 0.0}, "reward_scale=0.0: above 0"),
        ({"entropy_cost": -0.1}, "entropy_cost=-0.1: at least 0"),
        ({"max_ratio": 0.0}, "max_ratio=0.0: above 0"),
        ({"trace_decay": 1.1}, "trace_decay=1.1: between 0 and 1"),
        ({"discount": -0.1}, "discount=-0.1: between 0 and 1"),
    ],
)
def test_one_fault_is_named(changes, text):
    with pytest.raises(ProgramError) as raised:
        IMPALAConfig(**changes)
    assert text in str(raised.value)
    assert len(raised.value.faults) == 1


def test_every_fault_is_named():
    with pytest.raises(ProgramError) as raised:
        IMPALAConfig(batch_size=0, learning_rate=0.0, num_caches=0)
    assert len(raised.value.faults) == 3


def test_the_number_of_updates_follows_from_the_steps_of_a_batch():
    assert IMPALAConfig(max_actor_steps=4_000, batch_size=8, sequence_length=11).num_updates == 50
    assert IMPALAConfig(max_actor_steps=4_000, batch_size=8, sequence_length=11, sequence_period=5).num_updates == 100
    assert IMPALAConfig(max_actor_steps=1).num_updates == 1
    assert IMPALAConfig(max_actor_steps=None).num_updates is None


def test_settings_have_their_words_in_the_documentation():
    common = {field.name for field in dataclasses.fields(AgentConfig)}
    words = inspect.getdoc(IMPALAConfig)
    for field in dataclasses.fields(IMPALAConfig):
        assert field.name in common or f"\n    {field.name}: " in words
