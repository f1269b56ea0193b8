"""The learner: updates, targets, names, resuming."""

import functools
import itertools

import jax
import numpy as np
import pytest

from topology.agents.core.checkpoint import Checkpointer
from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.learner import Learner
from topology.agents.core.transitions import Transition
from topology.agents.dmpo.config import DMPOConfig
from topology.agents.dmpo.learner import make_initial_state, make_networks, make_update
from topology.agents.dmpo.program import DMPO
from topology.context import StopToken
from topology.nodes.replay import Client
from topology.nodes.replay.service import ReplayService

CONFIG = DMPOConfig(
    hidden_sizes=(8,),
    batch_size=4,
    updates_per_call=3,
    num_samples=3,
    num_atoms=5,
    target_policy_update_period=4,
    target_critic_update_period=6,
    min_replay_size=1,
)
SIZE = CONFIG.items_per_call


def with_settings(**settings):
    return DMPOConfig(**{**vars(CONFIG), **settings})


@functools.cache
def agent():
    return DMPO(CONFIG)


def make_transitions(seed=0, reward=-5.0):
    random = np.random.default_rng(seed)
    observations = random.standard_normal((2, SIZE, 3), np.float32)
    actions = random.uniform(-1, 1, (SIZE, 1)).astype(np.float32)
    rewards = np.full(SIZE, reward, np.float32)
    return Transition(observations[0], actions, rewards, np.full(SIZE, 0.9, np.float32), observations[1])


def start(config=CONFIG, seed=1):
    networks = make_networks(agent().spec, config)
    return make_update(networks, config), make_initial_state(networks, agent().spec, config, seed)


def step(update, state, transitions):
    return update(state, transitions, np.ones(len(transitions.r_t)))


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def test_one_call_is_as_many_updates_as_it_says():
    transitions = make_transitions()
    together, output = step(*start(), transitions)
    assert all(value.shape == (3,) for value in output.metrics.values())
    assert output.priorities is None
    update, state = start(with_settings(updates_per_call=1))
    for i in range(3):  # rows are dealt out in turn
        state, single = step(update, state, Transition(*(x[i::3] for x in transitions)))
        assert single.metrics["loss"][0] == pytest.approx(float(output.metrics["loss"][i]), rel=1e-4)
    assert int(together.steps) == int(state.steps) == 3
    for one, other in zip(jax.tree.leaves(together.params), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_each_target_is_a_copy_at_its_own_period():
    update, state = start()
    first = state
    seen = []
    for i in range(4):
        state, _ = step(update, state, make_transitions(i))
        seen.append(state)
    policies = [first.target_params.policy, *(s.target_params.policy for s in seen)]
    critics = [first.target_params.critic, *(s.target_params.critic for s in seen)]
    # After 3, 6, 9 and 12 updates; the policy is copied at 4, 8 and 12, the critic at 6 and 12.
    assert [same(*pair) for pair in itertools.pairwise(policies)] == [True, False, False, False]
    assert [same(*pair) for pair in itertools.pairwise(critics)] == [True, False, True, False]
    assert same(seen[-1].target_params, (state.params.policy, state.params.critic))
    assert not same(seen[1].target_params.policy, seen[1].params.policy)


def test_what_is_sampled_depends_on_the_seed_and_the_update():
    update, state = start()
    (_, first), (_, again), (_, other) = (
        step(update, state._replace(**change), make_transitions())
        for change in ({}, {}, {"key": jax.random.PRNGKey(99)})
    )
    assert same(first, again)
    assert not same(first.metrics["policy_loss"], other.metrics["policy_loss"])


def test_rewards_beyond_the_support_are_told():
    update, state = start()
    _, inside = step(update, state, make_transitions(reward=-5.0))
    _, outside = step(update, state, make_transitions(reward=-5000.0))
    assert np.max(inside.metrics["outside_support"]) == 0
    assert np.min(outside.metrics["outside_support"]) == 1


@pytest.fixture
def make_learner(rows, tmp_path):
    """A learner over a table that holds the same transitions each time; `close` all at the end."""
    services = []

    def make(*, directory=None, seed=1):
        service = ReplayService([agent().make_table(seed=7, lockstep=True)])
        services.append(service)
        client = Client("local", service=service)
        builder = agent().make_builder(seed)
        adder = builder.make_adder(client, max_in_flight=0)
        environment = builder.make_environment()
        timestep = environment.reset()
        adder.observe_first(timestep)
        random = np.random.default_rng(0)
        for _ in range(20):
            action = random.uniform(-1, 1, 1).astype(np.float32)
            adder.observe(action, environment.step(action))
        return builder.make_learner(
            client,
            counts=ChildCounter(Counter(), "learner", max_delay_s=0),
            metrics=rows,
            stop=StopToken(),
            checkpointer=None if directory is None else Checkpointer(directory),
        )

    yield make
    for service in services:
        service.close()


def test_target_networks_are_served_by_name(make_learner):
    learner = make_learner()
    assert isinstance(learner, Learner)
    learner.step()
    learner.step()
    critic, policy = learner.get_variables(["critic", "policy"]).values
    assert same(critic, learner.state.target_params.critic)
    assert same(policy, learner.state.target_params.policy)
    assert not same(policy, learner.state.params.policy)
    with pytest.raises(KeyError, match="'policy', 'critic', but was asked for \\['target'\\]"):
        learner.get_variables(["target"])
    learner.close()


def test_a_state_on_disk_is_the_same_to_the_bit_and_goes_on_alike(make_learner, tmp_path):
    learner = make_learner(directory=tmp_path)
    learner.step()
    learner.save()
    again = make_learner(directory=tmp_path, seed=99)
    assert again.steps == learner.steps == 3
    assert same(again.state, learner.state)
    update, _ = start()
    assert same(step(update, again.state, make_transitions())[0], step(update, learner.state, make_transitions())[0])
    learner.close()
    again.close()
