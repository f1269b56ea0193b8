"""Settings that cannot work are refused, all of them at once."""

import dataclasses
import inspect

import pytest

from topology.agents.core.config import AgentConfig, ReplayConfig
from topology.agents.r2d2.config import R2D2Config
from topology.errors import ProgramError


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lstm_size": 0}, "lstm_size=0: at least 1"),
        ({"adam_epsilon": 0.0}, "adam_epsilon=0.0: above 0"),
        ({"max_priority_weight": 1.1}, "max_priority_weight=1.1: between 0 and 1"),
        ({"num_caches": 2}, "num_caches=2: R2D2 has exactly 1"),
        ({"hidden_sizes": (64, 0)}, "each at least 1"),
        ({"burn_in_length": -1}, "burn_in_length=-1: at least 0"),
        ({"replay_period": 13}, "between 1 and trace_length=12, so that every step is learned from"),
        ({"replay_period": 0}, "between 1 and trace_length=12"),
        ({"min_replay_size": 9, "max_replay_size": 8}, "wait for ever"),
    ],
)
def test_one_fault_is_named(changes, text):
    with pytest.raises(ProgramError) as raised:
        R2D2Config(**changes)
    assert text in str(raised.value)
    assert len(raised.value.faults) == 1


def test_every_fault_is_named():
    with pytest.raises(ProgramError) as raised:
        R2D2Config(num_actors=0, n_step=0, discount=-1.0, num_caches=0)
    assert len(raised.value.faults) == 4


def test_a_sequence_is_burn_in_trace_and_one_row_more():
    assert R2D2Config(burn_in_length=3, trace_length=7, replay_period=7).sequence_length == 11


def test_settings_have_their_words_in_the_documentation():
    words = "".join(inspect.getdoc(kind) for kind in (R2D2Config, ReplayConfig, AgentConfig))
    assert [field.name for field in dataclasses.fields(R2D2Config) if f"\n    {field.name}: " not in words] == []


def test_the_learning_rate_falls_over_about_as_many_updates_as_there_will_be():
    # 6000 steps begin 1000 sequences; 800 of them are sampled 32 times in batches of 32.
    assert R2D2Config(max_actor_steps=6_000).num_updates == 800
    assert R2D2Config(max_actor_steps=None).num_updates is None
    assert R2D2Config(samples_per_insert=None).num_updates is None
