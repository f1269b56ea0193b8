"""The actor, the network, and the way of steps into replay."""

import dm_env
import jax
import numpy as np
import pytest
from dm_env import specs

from topology.agents.core.policy import WeightedPolicy
from topology.agents.core.transitions import NStepTransitionAdder, Transition, transition_signature
from topology.agents.core.types import Variables
from topology.agents.core.variables import VariableClient
from topology.agents.dqn.actor import DQNActor, make_greedy, make_policy
from topology.agents.dqn.config import DQNConfig
from topology.agents.dqn.networks import make_network
from topology.environments import Catch, make_environment_spec
from topology.nodes.replay import Client, Table, rate_limiters, selectors
from topology.nodes.replay.service import ReplayService

SPEC = make_environment_spec(Catch())


class Source:
    """Weights under which the action `best` is the best everywhere."""

    def __init__(self, best):
        network = make_network(DQNConfig(hidden_sizes=(4,)), SPEC)
        self.params = jax.tree.map(
            np.zeros_like, jax.jit(network.init)(jax.random.key(0), np.zeros((1, 10, 5), np.float32))
        )
        self.version = 0
        self.prefer(best)

    def prefer(self, action):
        bias = np.eye(3, dtype=np.float32)[action]
        self.params = {
            "params": {**self.params["params"], "advantage_1": {**self.params["params"]["advantage_1"], "bias": bias}}
        }
        self.version += 1

    def get_variables(self, names):
        return Variables(self.version, 0.0, [self.params])


def make_actor(source, epsilon, *, seed=0, adder=None):
    client = VariableClient(source, ["policy"], update_period=1)
    client.update_and_wait()
    policy = make_greedy(make_network(DQNConfig(hidden_sizes=(4,)), SPEC))
    return DQNActor(
        policy=policy, num_actions=3, epsilon=epsilon, client=client, random=np.random.default_rng(seed), adder=adder
    )


def test_a_greedy_actor_takes_the_best_action_of_the_newest_weights():
    source = Source(best=2)
    actor = make_actor(source, 0.0)
    board = Catch(seed=0).reset().observation
    assert {actor.select_action(board) for _ in range(20)} == {2}
    source.prefer(0)
    assert actor.select_action(board) == 2
    actor.update()
    assert actor.select_action(board) == 0


def test_epsilon_is_the_share_of_random_actions():
    actor = make_actor(Source(best=1), 0.3)
    board = Catch(seed=0).reset().observation
    actions = [actor.select_action(board) for _ in range(3000)]
    assert np.mean(np.array(actions) != 1) == pytest.approx(0.3 * 2 / 3, abs=0.03)
    assert {type(action) for action in actions} == {int}


def test_a_seed_fixes_the_exploration():
    board = Catch(seed=0).reset().observation
    runs = []
    for seed in (1, 1, 2):
        actor = make_actor(Source(best=1), 0.9, seed=seed)
        runs.append([actor.select_action(board) for _ in range(30)])
    assert runs[0] == runs[1] != runs[2]


def test_the_policy_of_many_observations_takes_the_best_action_but_for_each_rows_epsilon():
    agent = make_policy(make_network(DQNConfig(hidden_sizes=(4,)), SPEC))
    boards = np.zeros((4000, 10, 5), np.float32)
    epsilons = np.repeat(np.float32([0.0, 0.3, 1.0, 0.0]), 1000)
    policy = WeightedPolicy(agent, seed=1)
    policy.set_weights(Source(best=1).params)
    others = policy(boards, None, epsilons).action.reshape(4, 1000) != 1
    np.testing.assert_allclose(others.mean(axis=1), [0, 0.2, 2 / 3, 0], atol=0.05)
    again = policy(boards, None, epsilons).action.reshape(4, 1000) != 1
    assert (again[1] != others[1]).any(), "each call explores anew"
    assert make_policy(make_network(DQNConfig(hidden_sizes=(4,)), SPEC)) is agent


@pytest.mark.parametrize("heads", [{}, {"dueling": True}, {"dueling": True, "num_quantiles": 5}])
def test_the_best_action_is_that_of_the_network(heads):
    network = make_network(DQNConfig(hidden_sizes=(32, 16), **heads), SPEC)
    boards = np.random.default_rng(0).standard_normal((500, 10, 5), np.float32)
    params = jax.device_get(jax.jit(network.init)(jax.random.key(3), boards))
    greedy = make_greedy(network)(params)
    best = np.asarray(jax.jit(network.apply)(params, boards)).argmax(axis=-1)
    assert [greedy(board) for board in boards] == best.tolist()
    assert len(set(best.tolist())) > 1


def test_images_pass_convolutions():
    images = SPEC._replace(observations=specs.BoundedArray((36, 36, 2), np.uint8, 0, 255))
    network = make_network(DQNConfig(hidden_sizes=(16,)), images)
    assert network.is_image
    images = jax.ShapeDtypeStruct((5, 36, 36, 2), np.uint8)
    params = jax.eval_shape(network.init, jax.random.key(0), images)
    assert "ImageTorso_0" in params["params"]
    assert jax.eval_shape(network.apply, params, images).shape == (5, 3)
    assert not make_network(DQNConfig(hidden_sizes=(16,)), SPEC).is_image


class Replay:
    """One table in this process, and what was written into it."""

    def __init__(self, signature, size=100):
        fifo = selectors.Fifo()
        self.table = Table("t", fifo, fifo, size, rate_limiters.MinSize(1), 1, signature)
        self.service = ReplayService([self.table])
        self.client = Client("local", service=self.service)

    def adder(self, n_step, discount):
        writer = self.client.trajectory_writer(NStepTransitionAdder.num_keep_alive_refs(n_step))
        return NStepTransitionAdder(writer, table="t", n_step=n_step, discount=discount, max_in_flight=0)

    def rows(self):
        size = self.table.info.current_size
        data = self.client.sample_batch("t", size).data
        return [Transition(*(field[i] for field in data)) for i in range(size)]


@pytest.fixture
def make_replay():
    made = []

    def make(signature=None):
        made.append(Replay(signature))
        return made[-1]

    yield make
    for replay in made:
        replay.service.close()


@pytest.mark.parametrize("n_step", [1, 2, 3, 7])
@pytest.mark.parametrize("end", [dm_env.termination, dm_env.truncation])
def test_what_is_sampled_is_what_was_seen(make_replay, n_step, end):
    replay = make_replay()
    adder = replay.adder(n_step, 0.5)
    expected = []
    for episode in range(3):
        boards = [np.full(2, 10 * episode + t, np.float32) for t in range(6)]
        adder.observe_first(dm_env.restart(boards[0]))
        for t in range(1, 6):
            timestep = end(float(t), boards[t]) if t == 5 else dm_env.transition(float(t), boards[t])
            adder.observe(t, timestep)
        for t in range(5):
            last = min(t + n_step, 5)
            reward = sum(0.5**k * r for k, r in enumerate(range(t + 1, last + 1)))
            ended = last == 5 and end is dm_env.termination
            expected.append((10 * episode + t, t + 1, reward, 0.0 if ended else 0.5 ** (last - t), 10 * episode + last))
    rows = sorted(
        (float(r.o_tm1[1]), int(r.a_tm1), float(r.r_t), float(r.discount_t), float(r.o_t[1])) for r in replay.rows()
    )
    np.testing.assert_allclose(rows, sorted(expected))


def test_transitions_fit_the_signature_and_carry_small_numbers(make_replay):
    replay = make_replay(transition_signature(SPEC))
    environment, adder = Catch(seed=0), replay.adder(3, 0.9)
    actor = make_actor(Source(best=1), 0.5, adder=adder)
    timestep = environment.reset()
    actor.observe_first(timestep)
    while not timestep.last():
        action = actor.select_action(timestep.observation)
        timestep = environment.step(action)
        actor.observe(action, timestep)
    rows = replay.rows()
    assert len(rows) == 9
    assert [leaf.dtype.name for leaf in rows[0]] == ["float32", "int32", "float32", "float32", "float32"]
    np.testing.assert_array_equal(rows[-1].o_t, timestep.observation)
    adder.close()
