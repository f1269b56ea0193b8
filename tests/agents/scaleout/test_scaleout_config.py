"""Settings of agents that are scaled out: what is refused, and what is said."""

import pytest

from topology.agents.flow.config import DQNConfig, PPOConfig
from topology.agents.scaleout.config import ScaleOutDQNConfig, ScaleOutPPOConfig, Synchronization
from topology.agents.scaleout.program import ppo, restarts, scaleout_dqn
from topology.errors import ProgramError
from topology.nodes.store.rounds import RoundPlan, Unit


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"synchronization": Synchronization.ASYNC}, "synchronization='async': PPO .* supports sync"),
        ({"checkpoint_save_secs": 5.0}, "SYNC saves a policy every round"),
        ({"max_staleness": 3}, "in SYNC nothing is stale"),
        ({"num_steps": 1004}, "num_steps=1004 is no multiple of environments_per_worker=8"),
        ({"share_steps": 20}, "share_steps=20 is no multiple"),
        ({"share_steps": 2048}, "share_steps=2048 is above num_steps=1024"),
        ({"memory_max_steps": 1024}, "memory_max_steps=1024: a round of num_steps=1024"),
        ({"num_workers": 0}, "num_workers=0: at least 1"),
        ({"max_steps": 0}, "max_steps=0: at least 1, or None"),
        ({"num_episodes": 0}, "num_episodes=0: at least 1, or None"),
        ({"share_timeout_s": 0.0}, "share_timeout_s=0.0: above 0"),
        ({"target_return": 1.0, "evaluation_episodes": 0}, "set evaluation_episodes"),
        ({"clip_ratio": 0.0}, "clip_ratio=0.0: above 0"),
        ({"discount": 1.5}, "discount=1.5: between 0 and 1"),
        ({"memory_backend": "nope:"}, "memory_backend: 'nope:' is no address .* known kinds are local, redis"),
        ({"memory_backend": "redsi"}, "or one of the words local, replay, redis"),
        ({"memory_backend": "redis://:a/b@host:6379"}, "memory_backend: the port .* write /, @, :, # and"),
        ({"data_store": "redis://host:port/0"}, "data_store: the port in the URL is no number"),
        ({"data_store": "redis://host/mine"}, "data_store: .* number of a database, not 'mine'"),
        ({"data_store": ""}, "data_store='': a directory or a URL, or leave it out"),
        ({"data_store": "nope://bucket/place"}, "data_store: no data store opens nope://"),
    ],
)
def test_settings_of_ppo_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ProgramError, match=message):
        ScaleOutPPOConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_episodes": 3}, "ASYNC has no rounds"),
        ({"max_staleness": -1}, "max_staleness=-1: at least 0"),
        ({"checkpoint_save_secs": 0.0}, "save_s=0.0: above 0"),
        ({"share_steps": 30}, "share_steps=30 is no multiple of environments_per_worker=4"),
        ({"min_replay_size": 60_000}, "min_replay_size=60000 is above replay_size"),
    ],
)
def test_settings_of_dqn_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ProgramError, match=message):
        ScaleOutDQNConfig(**settings)


def test_a_synchronization_may_be_given_as_text():
    assert ScaleOutDQNConfig(synchronization="sync").synchronization is Synchronization.SYNC
    with pytest.raises(ProgramError, match="synchronization='asink': one of 'sync', 'async'"):
        ScaleOutDQNConfig(synchronization="asink")


def test_every_fault_is_said_once():
    with pytest.raises(ProgramError) as raised:
        ScaleOutPPOConfig(
            num_workers=0,
            discount=2.0,
            max_gradient_norm=0.0,
            environments_per_worker=0,
            max_steps=0,
            synchronization="async",
        )
    assert sorted(fault.partition("=")[0] for fault in raised.value.faults) == [
        "discount",
        "environments_per_worker",
        "max_gradient_norm",
        "max_steps",
        "num_workers",
        "synchronization",
    ]


def test_dqn_may_be_sync_and_says_when_it_saves():
    assert ScaleOutDQNConfig(synchronization=Synchronization.SYNC).round_plan == RoundPlan(
        unit=Unit.STEPS, total=64, share=32
    )
    assert ScaleOutDQNConfig().save_s == 2.0
    assert ScaleOutDQNConfig(checkpoint_save_secs=30.0).save_s == 30.0


def test_rounds_of_episodes_are_cut_into_shares_of_episodes():
    config = ScaleOutPPOConfig(num_episodes=10, share_episodes=4)
    assert config.round_plan.amounts() == (4, 4, 2)
    assert ScaleOutPPOConfig(num_episodes=2, share_episodes=4).round_plan.amounts() == (2,)


def test_networks_and_losses_are_those_of_the_plans():
    config = ScaleOutPPOConfig(hidden_sizes=(8,), clip_ratio=0.3, num_workers=3, max_steps=77)
    flow = config.flow(PPOConfig)
    assert (flow.hidden_sizes, flow.clip_ratio, flow.num_actors, flow.max_actor_steps) == ((8,), 0.3, 3, 77)
    assert ScaleOutDQNConfig(n_step=5).flow(DQNConfig).n_step == 5


def test_the_graph_has_a_trainer_workers_and_an_evaluator():
    graph = ppo(ScaleOutPPOConfig(environment="catch", num_workers=3)).graph()
    names = [f"{node['group']}/{node['index']}" for node in graph.to_dict()["nodes"]]
    assert names == ["memory/0", "trainer/0", "worker/0", "worker/1", "worker/2", "evaluator/0"]


def test_the_graph_tells_no_passwords():
    url = "redis://:sesame@host:1/0"
    program = ppo(ScaleOutPPOConfig(environment="catch", memory_backend=url, data_store=url, evaluation_episodes=0))
    assert set(program.groups) == {"trainer", "worker"}
    assert "sesame" not in program.graph().to_json()


def test_who_may_be_started_again():
    assert restarts(ScaleOutDQNConfig(max_restarts=2)) == {"trainer": 2, "worker": 2, "evaluator": 2}
    assert "evaluator" not in restarts(ScaleOutDQNConfig(evaluation_episodes=0))


def test_continuous_actions_are_refused():
    with pytest.raises(ProgramError, match="needs an environment with discrete actions"):
        scaleout_dqn(ScaleOutDQNConfig(environment="gym:Pendulum-v1"))
