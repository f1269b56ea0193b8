"""Executors: epsilon comes with the weights, only legal actions are taken, the memory is that of the episode."""

import dm_env
import jax
import numpy as np
import pytest

from topology.agents.core.policy import LocalPolicy
from topology.agents.core.policy_actor import PolicyActor
from topology.agents.core.types import Variables
from topology.agents.core.variables import VariableClient
from topology.agents.madqn.actor import TeamAdder, make_policy
from topology.agents.madqn.config import MADQNConfig
from topology.agents.madqn.learner import make_initial_state
from topology.agents.madqn.networks import make_team_network
from topology.agents.madqn.team import make_team


class Trainer:
    """Serves weights and epsilon, and counts how often it is asked."""

    def __init__(self, params, epsilon):
        self.params, self.epsilon, self.version, self.asked = params, epsilon, 0, []

    def get_variables(self, names):
        self.asked.append(list(names))
        return Variables(self.version, 0.0, [(self.params, self.epsilon) for _ in names])


class Written(list):
    """An adder that keeps what it is given."""

    def observe_first(self, timestep):
        self.append(timestep)

    def observe(self, action, next_timestep, extras=None, state=None):
        self.append((action, next_timestep, state))

    def close(self):
        pass


@pytest.fixture
def make_actor(make_spec):
    spec = make_spec({"a_0": 3, "b": 2}, masked=("a_0",))

    def make(*, epsilon=0.0, adder=None, recurrent=False, period=10, explores=True):
        config = MADQNConfig(hidden_sizes=(8,), memory_size=5, recurrent=recurrent)
        team = make_team(spec, shared_weights=True)
        network = make_team_network(team, config)
        trainer = Trainer(make_initial_state(network, spec, config, 1).params, np.float32(epsilon))
        client = VariableClient(trainer, ["policy"], update_period=period)
        client.update_and_wait()
        policy = make_policy(network, explores=explores)
        adder = None if adder is None else TeamAdder(team, adder)
        return PolicyActor(policy, LocalPolicy(policy, client, seed=1), adder=adder), trainer

    return make


def view(seed=0, mask=(1, 1, 1)):
    seen = np.random.default_rng(seed).standard_normal((2, 2)).astype(np.float32)
    return {"a_0": {"observation": seen[0], "action_mask": np.array(mask, np.int8)}, "b": seen[1]}


def step(seed, reward=1.0):
    numbers = {"a_0": np.float32(reward), "b": np.float32(-reward)}
    return dm_env.TimeStep(dm_env.StepType.MID, numbers, {"a_0": np.float32(1), "b": np.float32(0)}, view(seed))


def test_only_legal_actions_exploring_or_not(make_actor):
    for epsilon in (0.0, 1.0):
        actor, _ = make_actor(epsilon=epsilon, adder=Written())
        for seed in range(30):
            assert actor.select_action(view(seed, (0, 0, 1)))["a_0"] == 2
            assert actor.select_action(view(seed, (1, 1, 0)))["a_0"] in (0, 1)


def test_each_agent_explores_by_itself(make_actor):
    greedy, _ = make_actor(adder=Written())
    exploring, _ = make_actor(epsilon=0.5, adder=Written())
    same = []
    for seed in range(300):
        best, taken = greedy.select_action(view(seed)), exploring.select_action(view(seed))
        same.append([best[agent] == taken[agent] for agent in ("a_0", "b")])
    shares = np.mean(same, axis=0)
    # Half of the actions are random, and a random one is the best one in a third or a half of the cases.
    assert shares == pytest.approx([2 / 3, 3 / 4], abs=0.1)
    assert np.mean(np.all(same, axis=1)) == pytest.approx(2 / 3 * 3 / 4, abs=0.1)


def test_epsilon_comes_with_the_weights_and_is_never_asked_for_alone(make_actor):
    actor, trainer = make_actor(epsilon=1.0, adder=Written(), period=5)
    actor.observe_first(dm_env.restart(view()))
    explored = {actor.select_action(view())["a_0"] for _ in range(50)}
    assert explored == {0, 1, 2}
    trainer.epsilon, trainer.version = np.float32(0.0), 1
    for _ in range(20):
        actor.update()
    assert len({actor.select_action(view())["a_0"] for _ in range(50)}) == 1
    assert trainer.asked == [["policy"]] * 5  # at the beginning, and once in five steps


def test_an_evaluator_does_not_explore(make_actor):
    actor, _ = make_actor(epsilon=1.0, explores=False)
    assert len({tuple(actor.select_action(view()).values()) for _ in range(50)}) == 1


def test_what_is_written_is_in_the_order_of_the_team(make_actor):
    written = Written()
    actor, _ = make_actor(adder=written)
    first = dm_env.restart(view())
    actor.observe_first(first)
    actor.observe({"b": 1, "a_0": 2}, step(1, reward=3.0))
    assert written[0] is first
    action, timestep, state = written[1]
    assert (action.tolist(), action.dtype) == ([2, 1], np.int32)
    assert (timestep.reward.tolist(), timestep.discount.tolist()) == ([3.0, -3.0], [1.0, 0.0])
    assert state is None
    assert set(timestep.observation) == {"a_0", "b"}


def test_the_memory_written_is_that_before_the_action_and_begins_anew(make_actor):
    written = Written()
    actor, _ = make_actor(adder=written, recurrent=True)
    for _ in range(2):
        actor.observe_first(dm_env.restart(view(0)))
        for seed in range(3):
            action = actor.select_action(view(seed))
            actor.observe(action, step(seed + 1))
    memories = [row[2] for row in written if isinstance(row, tuple) and len(row) == 3]
    assert all(isinstance(memory, np.ndarray) and memory.shape == (2, 5) for memory in memories)
    assert not memories[0].any()
    assert memories[1].any()
    assert not np.array_equal(memories[1], memories[2])
    for one, other in zip(memories[:3], memories[3:], strict=True):
        np.testing.assert_array_equal(one, other)
    assert isinstance(jax.device_get(memories[2]), np.ndarray)
