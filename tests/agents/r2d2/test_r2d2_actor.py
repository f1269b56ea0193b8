"""The actor of R2D2: its memory, its exploration, and what it writes into replay."""

import itertools

import dm_env
import jax
import numpy as np
import pytest

from topology.agents.core.sequences import StepSequence
from topology.agents.core.types import Variables
from topology.agents.core.variables import VariableClient
from topology.agents.r2d2.actor import R2D2Actor, make_policy
from topology.agents.r2d2.builder import R2D2Builder
from topology.agents.r2d2.config import R2D2Config
from topology.agents.r2d2.learner import make_initial_state
from topology.agents.r2d2.networks import make_network
from topology.agents.r2d2.program import R2D2
from topology.agents.r2d2.state import TABLE, Carry, RecurrentState, initial_state
from topology.environments import MemoryChain, make_environment_spec
from topology.nodes.replay import Client
from topology.nodes.replay.service import ReplayService

SPEC = make_environment_spec(MemoryChain())
CONFIG = R2D2Config(
    environment="memory_chain:6",
    hidden_sizes=(8,),
    lstm_size=4,
    head_size=8,
    burn_in_length=1,
    trace_length=3,
    replay_period=2,
    min_replay_size=1,
)
NETWORK = make_network(CONFIG, SPEC)
PARAMS = make_initial_state(NETWORK, SPEC, CONFIG, 1).params


class Source:
    """Weights, and newer ones when `version` is raised."""

    def __init__(self, params=PARAMS):
        self.params, self.version = params, 1

    def get_variables(self, names):
        return Variables(self.version, 0.0, [self.params])


class Steps(list):
    """An adder that keeps what it is given."""

    def observe_first(self, timestep):
        pass

    def observe(self, action, next_timestep, extras=None, state=None):
        self.append((action, next_timestep, state))


def make_actor(epsilon=0.0, *, source=None, adder=None, seed=0):
    client = VariableClient(source or Source(), ["policy"], update_period=1)
    client.update_and_wait()
    random = np.random.default_rng(seed)
    return R2D2Actor(network=NETWORK, epsilon=epsilon, client=client, random=random, adder=adder)


def play(actor, environment):
    timestep = environment.reset()
    actor.observe_first(timestep)
    while not timestep.last():
        action = actor.select_action(timestep.observation)
        timestep = environment.step(action)
        actor.observe(action, timestep)
        actor.update()


def test_it_gives_the_state_before_each_step_and_begins_each_episode_anew():
    steps = Steps()
    actor = make_actor(0.5, adder=steps)
    for _ in range(2):
        play(actor, MemoryChain(6, seed=1))
    apply = jax.jit(NETWORK.apply)
    for first in (0, 7):
        expected, observation = initial_state(CONFIG.lstm_size), MemoryChain(6, seed=1).reset().observation
        for action, timestep, state in steps[first : first + 7]:
            for mine, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(mine, leaf, atol=1e-6)
            inputs = (np.reshape(leaf, (1, 1)) for leaf in (expected.action, expected.reward))
            before = Carry(*(leaf[None] for leaf in expected.carry))
            _, carry = apply(PARAMS, observation[None, None], *inputs, before, np.zeros((1, 1), bool))
            expected = RecurrentState(Carry(*(leaf[0] for leaf in carry)), action, timestep.reward)
            observation = timestep.observation


def test_epsilon_is_the_share_of_random_actions_and_the_seed_decides_them():
    def actions(seed):
        actor = make_actor(0.4, seed=seed)
        return [actor.select_action(np.ones(3, np.float32)) for _ in range(1500)]

    first = actions(1)
    best = make_actor().select_action(np.ones(3, np.float32))
    assert np.mean(np.array(first) != best) == pytest.approx(0.4 / 2, abs=0.04)
    assert first[:100] == actions(1)[:100] != actions(2)[:100]
    assert {type(action) for action in first} == {int}


def test_it_plays_with_the_newest_weights():
    source = Source()
    actor = make_actor(source=source)
    observation = np.ones(3, np.float32)
    actor.select_action(observation)
    with_old = actor._after.carry.hidden
    source.params, source.version = jax.tree.map(lambda leaf: -leaf, PARAMS), 2
    actor.select_action(observation)
    np.testing.assert_array_equal(actor._after.carry.hidden, with_old)
    actor.update()
    actor.select_action(observation)
    assert not np.array_equal(actor._after.carry.hidden, with_old)


def test_the_policy_of_many_observations_does_what_the_actor_does():
    policy, actor = make_policy(NETWORK), make_actor()
    act = jax.jit(policy.act)
    state = jax.tree.map(lambda leaf: np.stack([leaf] * 2), policy.initial_state)
    environment = MemoryChain(6, seed=3)
    timestep = environment.reset()
    actor.observe_first(timestep)
    for step in itertools.count():
        action = actor.select_action(timestep.observation)
        # The second of the two always explores, and both take the first one's action.
        epsilons = np.array([0, 1], np.float32)
        output = act(PARAMS, jax.random.key(step), np.stack([timestep.observation] * 2), state, epsilons)
        assert int(output.action[0]) == action
        if timestep.last():
            break
        timestep = environment.step(action)
        actor.observe(action, timestep)
        rows = [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], output.state) for i in (0, 1)]
        rows = [policy.advance(row, action, timestep.reward) for row in rows]
        state = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
        np.testing.assert_allclose(state.carry.hidden[0], actor._before.carry.hidden, atol=1e-6)


def test_the_policy_explores_as_each_observation_is_told_to():
    policy, count = make_policy(NETWORK), 4000
    state = jax.tree.map(lambda leaf: np.stack([leaf] * count), policy.initial_state)
    epsilons = np.where(np.arange(count) % 2, 0.6, 0.0).astype(np.float32)
    output = jax.jit(policy.act)(PARAMS, jax.random.key(0), np.ones((count, 3), np.float32), state, epsilons)
    action = np.asarray(output.action)
    assert len(set(action[::2])) == 1
    assert np.mean(action[1::2] != action[0]) == pytest.approx(0.3, abs=0.03)


@pytest.fixture
def replay():
    service = ReplayService([R2D2(CONFIG).make_table(seed=0, lockstep=True)])
    yield Client("local", service=service)
    service.close()


def test_sequences_fit_the_table_overlap_and_hold_the_state_where_they_begin(replay):
    builder = R2D2Builder(CONFIG, SPEC, CONFIG.environment, 5)
    client = VariableClient(Source(), ["policy"])
    client.update_and_wait()
    adder = builder.make_adder(replay, max_in_flight=0)
    actor = builder.make_actor(client, exploration=0.5, adder=adder)
    states = []
    observe = actor.observe

    def keep(action, timestep):
        states.append(actor._before)
        observe(action, timestep)

    actor.observe = keep
    play(actor, builder.make_environment())
    adder.close()
    # 7 actions in sequences of 5 rows that begin at 0, 2 and 4, the last with one row to fill it.
    assert replay.server_info()[TABLE].current_size == 3
    found = {}
    while len(found) < 3:
        data = StepSequence(*replay.sample_batch(TABLE, 1).data)
        start = round((1 - float(data.observation[0, 0, 0])) * 6)
        found[start] = jax.tree.map(lambda leaf: leaf[0], data)
    assert sorted(found) == [0, 2, 4]
    assert {start: found[start].mask.sum() for start in found} == {0: 5, 2: 5, 4: 3}
    for start, sequence in found.items():
        stored = RecurrentState(Carry(*sequence.state[0]), *sequence.state[1:])
        for mine, leaf in zip(jax.tree.leaves(stored), jax.tree.leaves(states[start]), strict=True):
            np.testing.assert_array_equal(mine, leaf)
    assert found[0].state[1] == -1
    assert found[4].discount[2] == 0.0
    assert isinstance(found[4].reward[2], np.float32)


def test_an_actor_without_epsilon_is_refused():
    with pytest.raises(ValueError, match="needs its epsilon"):
        R2D2Builder(CONFIG, SPEC, CONFIG.environment, 5).make_actor(None, exploration=None, adder=None)


def test_an_evaluator_writes_nothing():
    client = VariableClient(Source(), ["policy"])
    client.update_and_wait()
    actor = R2D2Builder(CONFIG, SPEC, CONFIG.environment, 5).make_evaluation_actor(client)
    play(actor, MemoryChain(2, seed=0))
    assert isinstance(actor.select_action(dm_env.restart(np.zeros(3, np.float32)).observation), int)
