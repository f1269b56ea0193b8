"""Settings of DMPO that cannot work are refused, all at once."""

import pytest

from topology.agents.dmpo.config import DMPOConfig
from topology.errors import ProgramError


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"n_step": 0}, "n_step=0: at least 1"),
        ({"num_samples": 0}, "num_samples=0: at least 1"),
        ({"target_policy_update_period": 0}, "target_policy_update_period=0"),
        ({"epsilon_mean": 0.0}, "epsilon_mean=0.0: above 0"),
        ({"epsilon_penalty": -1.0}, "epsilon_penalty=-1.0: above 0"),
        ({"initial_stddev": 0.0}, "initial_stddev=0.0: above 0"),
        ({"discount": 1.1}, "discount=1.1: between 0 and 1"),
        ({"hidden_sizes": ()}, r"hidden_sizes=\(\): at least one"),
        ({"num_atoms": 1}, "num_atoms=1: at least 2"),
        ({"min_return": 5.0, "max_return": 5.0}, "min_return=5.0 is not below max_return=5.0"),
        ({"min_replay_size": 0}, "min_replay_size=0"),
    ],
)
def test_a_fault_is_named(settings, fault):
    with pytest.raises(ProgramError, match=fault):
        DMPOConfig(**settings)


def test_all_faults_are_listed():
    with pytest.raises(ProgramError) as caught:
        DMPOConfig(num_atoms=0, learning_rate=0.0, num_actors=0)
    assert len(caught.value.faults) == 3


def test_the_learner_is_the_only_source_of_weights_unless_told_otherwise():
    assert DMPOConfig().num_caches == 0
