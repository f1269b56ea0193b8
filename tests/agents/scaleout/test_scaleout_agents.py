"""Agents of their own, scaled out: what workers play, what the trainer makes of it, what a restart finds."""

import contextlib

import numpy as np
import pytest

from topology.agents.scaleout.agent_algorithm import AnyAgent
from topology.agents.scaleout.agent_config import ScaleOutAgentConfig, load_agent
from topology.agents.scaleout.agent_items import nothing_caught
from topology.agents.scaleout.program import scaleout
from topology.errors import ProgramError, ProgramStopped
from topology.nodes.store.experience import Experience
from topology.nodes.store.policies import Policy

SMALL = ("batch_size=4", "updates_per_call=1", "hidden_sizes=8")
REPLAY = (*SMALL, "min_replay_size=8", "max_replay_size=64", "samples_per_insert=1")
AGENTS = {
    "dqn": {"agent_settings": REPLAY},
    "r2d2": {
        "environment": "memory_chain:4",
        "agent_settings": (*REPLAY, "lstm_size=8", "burn_in_length=1", "trace_length=4", "replay_period=4"),
    },
    "impala": {"agent_settings": (*SMALL, "sequence_length=6")},
    "dmpo": {"environment": "gym:Pendulum-v1", "agent_settings": (*REPLAY, "num_samples=2", "num_atoms=5")},
    "madqn": {"environment": "two_step", "agent_settings": (*REPLAY, "sequence_length=3", "replay_period=2")},
}

SLOW = {"r2d2", "dmpo", "madqn"}  # to compile; what they share with the others is tested anyway


def algorithm_of(agent, **settings):
    config = ScaleOutAgentConfig(agent=agent, **{**AGENTS[agent], **settings})
    return AnyAgent(config, load_agent(config).spec)


def policy_of(learner, number):
    return Policy(number, learner.policy_arrays(), {"updates": learner.updates})


def experience_of(cast, played):
    meta = {"steps": played.num_steps, "episodes": len(played.episodes)}
    return Experience(cast.make_columns(played, cast.acting), meta, whole_episode=False, id="")


def follow_nothing(acting):
    """No policy is newer."""


def never():
    return False


@pytest.fixture
def make_parts():
    """Makes a learner and who plays for it; `sync=True` for a worker of SYNC."""
    with contextlib.ExitStack() as closing:

        def make(agent, *, sync=False, **settings):
            algorithm = algorithm_of(
                agent, **settings | ({"synchronization": "sync", "num_episodes": 2} if sync else {})
            )
            learner = algorithm.make_learner(seed=1)
            closing.callback(learner.close)
            cast = algorithm.make_worker(0, seed=2, follow=None if sync else follow_nothing, should_stop=never)
            closing.callback(cast.player.close)
            return algorithm, learner, cast

        yield make


def teach(learner, cast, updates):
    while learner.updates < updates:
        learner.take([experience_of(cast, cast.player.play_steps(16))])
        while (told := learner.learn()) is not None:
            assert np.isfinite(told["loss"])


@pytest.mark.parametrize(
    "agent", [pytest.param(agent, marks=[pytest.mark.slow] if agent in SLOW else []) for agent in AGENTS]
)
def test_an_agent_learns_from_what_its_workers_stored_and_goes_on_after_a_restart(make_parts, agent):
    algorithm, learner, cast = make_parts(agent)
    first = learner.state_arrays()
    cast.acting.load(policy_of(learner, 0))
    teach(learner, cast, updates=2)
    assert learner.steps
    assert learner.steps % 16 == 0
    newer, state = policy_of(learner, 1), learner.state_arrays()
    cast.acting.load(newer)
    assert any("params" in name and (state[name] != first[name]).any() for name in first)
    with contextlib.closing(algorithm.make_learner(seed=1)) as again:
        again.restore(newer.arrays, state)
        assert (again.steps, again.updates) == (learner.steps, learner.updates)
        for name, array in again.policy_arrays().items():
            np.testing.assert_array_equal(array, newer.arrays[name])
        assert again.state_arrays().keys() == state.keys()


def test_in_sync_no_item_of_a_share_was_made_by_two_policies(make_parts):
    _, learner, cast = make_parts("impala", sync=True)
    for updates in (0, 5, 7):
        cast.acting.load(Policy(updates, learner.policy_arrays(), {"updates": updates}))
        played = cast.player.play_episodes(2)
        assert (len(played.episodes), played.oldest) == (2, updates)
        versions = cast.make_columns(played, cast.acting)["extras/version"]
        assert len(versions), "two episodes are longer than a sequence"
        assert set(versions[played.columns["mask"] == 1].tolist()) == {updates}


def test_in_sync_what_is_left_of_a_round_is_not_learned_from_in_the_next(make_parts):
    _, learner, cast = make_parts("impala", sync=True)
    cast.acting.load(policy_of(learner, 0))
    played = cast.player.play_episodes(5)
    items = len(played.columns["mask"])
    assert items % 4, "a batch of four leaves some"
    learner.take([experience_of(cast, played)])
    told = [learner.learn() for _ in range(items // 4 + 1)]
    assert told[-1] is None
    assert learner.updates == items // 4
    learner.take([experience_of(cast, cast.player.play_episodes(5))])
    assert learner.learn()["dropped_items"] == items % 4


def test_experience_says_the_oldest_policy_that_is_in_its_items(make_parts):
    _, learner, cast = make_parts("impala")
    cast.acting.load(Policy(3, learner.policy_arrays(), {"updates": 0}))
    assert nothing_caught(cast.player.play_steps(4).columns), "a sequence has six rows"
    cast.acting.load(Policy(4, learner.policy_arrays(), {"updates": 1}))
    played = cast.player.play_steps(4)
    assert played.oldest == 3
    assert set(played.columns["extras/version"].flat) == {0, 1}
    cast.player.play_steps(8)
    assert cast.player.play_steps(4).oldest == 4


def test_a_replay_table_goes_on_where_it_was_if_it_is_kept(make_parts):
    algorithm, learner, cast = make_parts("dqn", checkpoint_replay=True)
    cast.acting.load(policy_of(learner, 0))
    teach(learner, cast, updates=3)
    while learner.learn() is not None:
        pass
    with contextlib.closing(algorithm.make_learner(seed=1)) as again:
        again.restore(learner.policy_arrays(), learner.state_arrays())
        assert again.learn() is None, "what was learned from is not due again"
        more = experience_of(cast, cast.player.play_steps(16))
        for each in (learner, again):
            each.take([more])
        assert (learner.learn() is None) == (again.learn() is None)


def test_an_evaluator_plays_whole_episodes_and_stops_with_the_program(make_parts):
    algorithm, learner, _ = make_parts("dqn")
    stopping = False
    cast = algorithm.make_evaluation(seed=3, should_stop=lambda: stopping)
    with contextlib.closing(cast.player):
        cast.acting.load(policy_of(learner, 0))
        assert len(cast.player.play_episodes(3).episodes) == 3
        stopping = True
        with pytest.raises(ProgramStopped):
            cast.player.play_episodes(1)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"agent": "nobody"}, "one of dmpo, dqn"),
        ({"agent": "no.such:Agent"}, "cannot be loaded"),
        ({"agent": "topology.agents.dqn.config:DQNConfig"}, "a DistributedAgent"),
        ({"agent_settings": ("num_actors=3",)}, "num_actors is num_workers here"),
        ({"agent_settings": ("depth=3",)}, "has no setting 'depth'"),
        ({"agent_settings": ("depth",)}, "NAME=VALUE"),
        ({"agent_settings": ("batch_size=0",)}, "batch_size=0"),
        ({"agent_settings": ("samples_per_insert=none",)}, "when the trainer's turn is"),
        ({"synchronization": "sync"}, "whole episodes"),
        ({"synchronization": "sync", "num_episodes": 4, "environments_per_worker": 2}, "1 in SYNC"),
        ({"normalise_rewards": True}, "normalise_rewards"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, fault):
    with pytest.raises(ProgramError, match=fault):
        ScaleOutAgentConfig(**settings)


def test_settings_of_the_agent_are_written_as_text():
    config = ScaleOutAgentConfig(
        agent="r2d2",
        num_workers=3,
        seed=5,
        agent_settings=("hidden_sizes=32", "16", "learning_rate=3e-4", "lstm_size=4"),
    )
    agent = load_agent(config)
    assert agent.config.hidden_sizes == (32, 16)
    assert (agent.config.learning_rate, agent.config.lstm_size) == (3e-4, 4)
    assert (agent.config.num_actors, agent.config.seed, agent.config.max_actor_steps) == (3, 5, 50_000)


def test_the_graph_is_that_of_every_agent_that_is_scaled_out():
    graph = scaleout(ScaleOutAgentConfig(agent="impala", num_workers=3)).graph()
    assert graph.callers_of("trainer/0") == ("worker/0", "worker/1", "worker/2", "evaluator/0")
