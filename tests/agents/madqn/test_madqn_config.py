"""Settings of MADQN that cannot work, and who shares a network."""

import pytest

from topology.agents.madqn.config import MADQNConfig
from topology.agents.madqn.team import make_team
from topology.errors import ProgramError


def test_all_faults_are_listed_at_once():
    with pytest.raises(ProgramError) as caught:
        MADQNConfig(
            mixing="sum",
            n_step=0,
            learning_rate=0.0,
            discount=1.5,
            epsilon_initial=0.1,
            epsilon_min=0.2,
            hidden_sizes=(),
            sequence_length=8,
            replay_period=8,
            batch_size=0,
        )
    text = str(caught.value)
    assert "These settings of MADQNConfig cannot work" in text
    for part in (
        "mixing='sum': one of 'none', 'vdn', 'qmix'",
        "n_step=0: at least 1",
        "learning_rate=0.0: above 0",
        "discount=1.5: between 0 and 1",
        "epsilon_min=0.2 is above epsilon_initial=0.1",
        "hidden_sizes=(): at least one",
        "replay_period=8 is above sequence_length - 1 (7)",
        "batch_size=0: at least 1",
    ):
        assert part in text
    assert len(caught.value.faults) == 8
    with pytest.raises(ProgramError, match="sequence_length=1: at least 2"):
        MADQNConfig(sequence_length=1, replay_period=1)


def test_the_number_of_updates_is_that_of_the_sequences():
    config = MADQNConfig(max_actor_steps=4_100, replay_period=8, samples_per_insert=16.0, batch_size=32)
    assert config.num_updates == (4_100 // 8 - config.min_replay_size) // 2
    assert MADQNConfig(max_actor_steps=None).num_updates is None
    assert MADQNConfig(samples_per_insert=None).num_updates is None


def test_agents_of_one_kind_share_a_network(make_spec):
    spec = make_spec({"adversary_0": 3, "agent_0": 2, "adversary_1": 3, "agent_10": 2}, masked=("agent_10",))
    shared = make_team(spec, shared_weights=True)
    assert [(group.name, group.agents) for group in shared.groups] == [
        ("adversary", ("adversary_0", "adversary_1")),
        ("agent", ("agent_0", "agent_10")),
    ]
    assert shared.agents == ("adversary_0", "adversary_1", "agent_0", "agent_10")
    assert shared.num_actions == 3
    separate = make_team(spec, shared_weights=False)
    assert [group.name for group in separate.groups] == list(separate.agents) == list(spec.actions)


@pytest.mark.parametrize("different", ["actions", "shapes"])
def test_agents_that_differ_share_none(make_spec, different):
    spec = make_spec(
        {"a_0": 2, "a_1": 3 if different == "actions" else 2}, {"a_1": (3,)} if different == "shapes" else {}
    )
    with pytest.raises(ProgramError, match=r"a_0 and a_1 cannot share a network.*Set shared_weights to false"):
        make_team(spec, shared_weights=True)
    assert len(make_team(spec, shared_weights=False).groups) == 2


def test_continuous_actions_are_refused(make_spec):
    spec = make_spec({"a": 2, "b": 2})
    spec.actions["b"] = spec.observations["a"]
    with pytest.raises(ProgramError, match="needs discrete actions, but those of b are"):
        make_team(spec, shared_weights=True)
