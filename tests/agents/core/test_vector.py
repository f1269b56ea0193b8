"""Several environments in one actor: each plays its own episodes, with its own state and adder."""

import dm_env
import numpy as np
import pytest

from topology.agents.core.actor_runner import ActorParts, ActorRunner
from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.policy import LocalPolicy, Policy, PolicyOutput
from topology.agents.core.types import Variables
from topology.agents.core.variables import VariableClient
from topology.agents.core.vector import VectorLoop
from topology.context import StopToken


class Played:
    """Episodes of these lengths, in turn; an observation is the number of the step, the reward is the action."""

    def __init__(self, *lengths):
        self._lengths = list(lengths)
        self.actions = []
        self.closed = False

    def reset(self):
        self._step, self._length = 0, self._lengths.pop(0)
        self._lengths.append(self._length)
        return dm_env.restart(np.float32([0.0]))

    def step(self, action):
        self.actions.append(action)
        self._step += 1
        observation = np.float32([self._step])
        end = self._step == self._length
        return dm_env.termination(float(action), observation) if end else dm_env.transition(float(action), observation)

    def close(self):
        self.closed = True


class Steps(list):
    """An adder that keeps what it gets."""

    closed = False

    def observe_first(self, timestep):
        self.append("first")

    def observe(self, action, next_timestep, extras=None, state=None):
        self.append((action, float(next_timestep.observation[0]), extras, state))

    def close(self):
        self.closed = True


def count(params, key, observations, states, explorations):
    """Acts with the number of the step in the episode, from the state; extras are the observations."""
    return PolicyOutput(states["steps"], {"seen": observations}, {"steps": states["steps"] + params["add"]})


COUNTING = Policy(act=count, initial_state={"steps": np.int32(0)})


class Source:
    def __init__(self):
        self.version = 1

    def get_variables(self, names):
        return Variables(self.version, 0.0, [{"add": np.int32(self.version)}])


@pytest.fixture
def client(clock):
    client = VariableClient(Source(), ["policy"], update_period=1000, clock=clock)
    client.update_and_wait()
    return client


def make_loop(client, environments, agent=COUNTING, **options):
    adders = [Steps() for _ in environments]
    policy = LocalPolicy(agent, client, seed=0)
    return VectorLoop(environments, adders, agent=agent, policy=policy, **options), adders


def test_each_environment_has_its_episodes_states_and_adder(client):
    environments = [Played(2, 3), Played(3)]
    loop, adders = make_loop(client, environments)
    results = [[tuple(result) for result in loop.run_steps()] for _ in range(5)]
    assert results == [[], [(1.0, 2)], [(3.0, 3)], [], [(3.0, 3)]]
    assert environments[0].actions == [0, 1, 0, 1, 2]
    assert environments[1].actions == [0, 1, 2, 0, 1]
    assert all(type(action) is int for action in environments[0].actions)
    steps = [step for step in adders[0] if step != "first"]
    assert [step == "first" for step in adders[0]] == [True, False, False, True, False, False, False]
    assert [step[1] for step in steps] == [1, 2, 1, 2, 3]
    assert [float(step[2]["seen"][0]) for step in steps] == [0, 1, 0, 1, 2]
    assert [int(step[3]["steps"]) for step in steps] == [0, 1, 0, 1, 2], "the state before the action"


def test_a_policy_sees_its_last_action_and_reward_where_it_wants(client):
    def act(params, key, observations, states, explorations):
        return PolicyOutput(states["reward"] + 1, None, states)

    agent = Policy(
        act=act,
        initial_state={"reward": np.float32(0)},
        advance=lambda state, action, reward: {"reward": np.float32(reward)},
    )
    environment = Played(4)
    loop, _ = make_loop(client, [environment], agent)
    for _ in range(6):
        loop.run_steps()
    assert environment.actions == [1, 2, 3, 4, 1, 2]


def test_new_weights_are_used_and_exploration_reaches_every_row(client):
    def act(params, key, observations, states, explorations):
        return PolicyOutput(explorations + params["add"])

    environments = [Played(9), Played(9)]
    agent = Policy(act=act, annotate=lambda extras, version: {"version": version})
    loop, adders = make_loop(client, environments, agent, exploration=0.5)
    loop.run_steps()
    client._source.version = 7
    client.update_and_wait()
    loop.run_steps()
    assert environments[0].actions == environments[1].actions == [1.5, 7.5]
    assert [step[2:] for step in adders[0][1:]] == [({"version": 1}, None), ({"version": 7}, None)]


def test_the_same_seed_gives_the_same_actions_and_rows_differ(client):
    import jax

    def act(params, key, observations, states, explorations):
        return PolicyOutput(jax.random.randint(key, explorations.shape, 0, 1000))

    def play(seed):
        environments = [Played(50), Played(50)]
        policy = LocalPolicy(Policy(act=act), client, seed=seed)
        loop = VectorLoop(environments, [Steps(), Steps()], agent=Policy(act=act), policy=policy)
        for _ in range(10):
            loop.run_steps()
        return [environment.actions for environment in environments]

    first, again, other = play(3), play(3), play(4)
    assert first == again != other
    assert first[0] != first[1]
    assert len(set(first[0])) > 5


def test_a_runner_counts_the_steps_of_all_environments_and_closes_them(client, rows, remote, clock):
    environments = [Played(5), Played(5), Played(5)]
    loop, adders = make_loop(client, environments)
    counter = Counter()
    ActorRunner(
        parts=ActorParts(loop, client, (*adders, *environments)),
        counter=remote(counter),
        counts=ChildCounter(counter, "actor", max_delay_s=0),
        metrics=rows,
        stop=StopToken(),
        max_actor_steps=100,
        clock=clock,
    ).run()
    counts = counter.get_counts()
    assert counts["actor_steps"] == 102 == sum(len(environment.actions) for environment in environments)
    assert counts["actor_episodes"] == 18
    assert all(each.closed for each in (*adders, *environments))
