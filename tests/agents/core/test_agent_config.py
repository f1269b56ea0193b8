"""Settings of every agent: what cannot work is refused before anything runs."""

import pytest

from topology.agents.core.config import AgentConfig
from topology.errors import ProgramError


def faults(**settings):
    with pytest.raises(ProgramError) as error:
        AgentConfig(**settings)
    return "\n".join(error.value.faults)


def test_a_batch_must_divide_over_the_devices_of_the_learner():
    assert AgentConfig(batch_size=64, learner_devices=4).learner_devices == 4
    assert "learner_devices=3 does not divide batch_size=64" in faults(learner_devices=3)
    assert "learner_devices=0: at least 1" in faults(learner_devices=0)


def test_nodes_share_an_accelerator_only_when_each_is_given_its_part():
    text = faults(accelerator_roles=("learner", "actor"), num_actors=3)
    assert "gives 4 nodes an accelerator" in text
    assert "at most 0.25" in text
    AgentConfig(accelerator_roles=("learner", "actor"), num_actors=3, accelerator_memory_fraction=0.25)
    AgentConfig(accelerator_roles=("actor",), num_actors=1)
    AgentConfig(accelerator_roles=())
    assert "'gpu' is none of learner, evaluator, actor" in faults(accelerator_roles=("gpu",))
    assert "accelerator_memory_fraction=0: above 0" in faults(accelerator_memory_fraction=0)
