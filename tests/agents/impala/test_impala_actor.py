"""The actor: what it draws, what it remembers, and what it writes into the queue."""

import dm_env
import jax
import numpy as np
import pytest

from topology.agents.core.sequences import StepSequence
from topology.agents.core.types import Variables
from topology.agents.core.variables import VariableClient
from topology.agents.impala.builder import IMPALABuilder
from topology.agents.impala.config import IMPALAConfig
from topology.agents.impala.learner import make_initial_state
from topology.agents.impala.networks import make_network
from topology.agents.impala.replay import make_queue
from topology.environments import Catch, make_environment_spec
from topology.nodes.replay import Client
from topology.nodes.replay.service import ReplayService

SPEC = make_environment_spec(Catch())
FEED_FORWARD = IMPALAConfig(hidden_sizes=(4,), sequence_length=4, max_queue_size=20, environments_per_actor=1)
RECURRENT = IMPALAConfig(**{**vars(FEED_FORWARD), "lstm_size": 3})


class Source:
    """Weights of the given configuration, whose policy prefers one action by `preference` everywhere."""

    def __init__(self, config, preference=(0.0, 0.0, 0.0)):
        self.params = jax.device_get(make_initial_state(make_network(config, SPEC), SPEC, config, 0).params)
        self.version = 5
        self.prefer(preference)

    def prefer(self, preference):
        policy = {**self.params["params"]["policy"], "bias": np.array(preference, np.float32)}
        self.params = {"params": {**self.params["params"], "policy": policy}}
        self.version += 1

    def get_variables(self, names):
        assert names == ["policy"]
        return Variables(self.version, 0.0, [self.params])


class Steps(list):
    """An adder that keeps what it is given."""

    def observe_first(self, timestep):
        self.append("first")

    def observe(self, action, next_timestep, extras=None, state=None):
        self.append((action, next_timestep, extras, state))


def make(source, config=FEED_FORWARD, *, node_seed=0, adder=None, evaluates=False):
    builder = IMPALABuilder(config, SPEC, "catch", node_seed)
    client = VariableClient(source, ["policy"], update_period=1)
    client.update_and_wait()
    if evaluates:
        return builder.make_evaluation_actor(client)
    return builder.make_actor(client, exploration=None, adder=Steps() if adder is None else adder)


BOARD = Catch(seed=0).reset().observation


def test_actions_are_drawn_from_the_policy():
    actor = make(Source(FEED_FORWARD, np.log([0.6, 0.3, 0.1])))
    actions = [actor.select_action(BOARD) for _ in range(3000)]
    np.testing.assert_allclose(np.bincount(actions, minlength=3) / 3000, [0.6, 0.3, 0.1], atol=0.04)
    assert {type(action) for action in actions} == {int}


def test_an_evaluator_is_greedy_unless_it_is_to_draw():
    source = Source(FEED_FORWARD, np.log([0.3, 0.4, 0.3]))
    assert {make(source, evaluates=True).select_action(BOARD) for _ in range(3)} == {1}
    drawing = make(source, IMPALAConfig(**{**vars(FEED_FORWARD), "greedy_evaluation": False}), evaluates=True)
    assert {drawing.select_action(BOARD) for _ in range(100)} == {0, 1, 2}


def test_an_evaluator_adds_nothing():
    actor = make(Source(FEED_FORWARD), evaluates=True)
    actor.observe_first(dm_env.restart(BOARD))
    actor.observe(actor.select_action(BOARD), dm_env.transition(0.0, BOARD))


def test_a_seed_fixes_what_is_drawn():
    runs = []
    for node_seed in (1, 1, 2):
        actor = make(Source(FEED_FORWARD), node_seed=node_seed)
        runs.append([actor.select_action(BOARD) for _ in range(30)])
    assert runs[0] == runs[1] != runs[2]


def test_each_step_has_the_logits_and_the_version_of_the_weights_that_acted():
    source, steps = Source(FEED_FORWARD, (1.0, 0.0, 0.0)), Steps()
    actor = make(source, adder=steps)
    timestep = dm_env.restart(BOARD)
    actor.observe_first(timestep)
    for preference in ((0.0, 2.0, 0.0), None):
        if preference is not None:
            source.prefer(preference)  # the actor has not heard of it yet
        action = actor.select_action(BOARD)
        actor.observe(action, dm_env.transition(0.0, BOARD))
        actor.update()
    first, (action, _, before, state), (_, _, after, _) = steps
    assert first == "first"
    assert action in range(3)
    assert state is None
    assert (before["version"], after["version"]) == (6, 7)
    assert before["version"].dtype == np.int32
    assert [int(np.argmax(extras["logits"])) for extras in (before, after)] == [0, 1]
    assert before["logits"].dtype == np.float32


def test_a_memory_goes_on_within_an_episode_and_is_empty_at_its_beginning():
    source, steps = Source(RECURRENT), Steps()
    actor = make(source, RECURRENT, adder=steps)
    apply = jax.jit(make_network(RECURRENT, SPEC).apply)
    for _ in range(2):
        memory = (np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32))
        actor.observe_first(dm_env.restart(BOARD))
        for _ in range(3):
            actor.observe(actor.select_action(BOARD), dm_env.transition(0.0, BOARD))
            _, _, extras, state = steps[-1]
            for leaf, expected in zip(state, memory, strict=True):
                np.testing.assert_allclose(leaf, expected[0], atol=1e-6)
            logits, _, memory = apply(source.params, BOARD[None, None], np.zeros((1, 1), bool), memory)
            np.testing.assert_allclose(extras["logits"], logits[0, 0], atol=1e-6)
    assert np.any(memory[0])


@pytest.mark.parametrize("config", [FEED_FORWARD, RECURRENT], ids=["feed-forward", "recurrent"])
@pytest.mark.parametrize("spans_episodes", [True, False])
def test_what_it_writes_fits_the_queue(config, spans_episodes):
    config = IMPALAConfig(**{**vars(config), "spans_episodes": spans_episodes})
    service = ReplayService([make_queue(config, SPEC, seed=0, lockstep=False)])
    client = Client("local", service=service)
    adder = IMPALABuilder(config, SPEC, "catch", 0).make_adder(client, max_in_flight=0)
    actor, environment = make(Source(config), config, adder=adder), Catch(seed=0)
    boards = []
    for _ in range(2):  # nine actions and ten boards each
        timestep = environment.reset()
        actor.observe_first(timestep)
        while not timestep.last():
            boards.append(timestep.observation)
            action = actor.select_action(timestep.observation)
            timestep = environment.step(action)
            actor.observe(action, timestep)
    size = client.server_info()["queue"].current_size
    sequences = [StepSequence(*client.sample_batch("queue", 1).data) for _ in range(size)]
    assert size == 6
    learned = [s.observation[0, t] for s in sequences for t in range(3) if s.mask[0, t]]
    np.testing.assert_array_equal(learned, boards[: len(learned)])
    assert len(learned) == (17 if spans_episodes else 18)  # of rows 0 to 18 of 20, or of all
    assert all(set(s.extras["version"][0][s.mask[0] > 0]) == {6} for s in sequences)
    adder.close()
    service.close()


def test_the_queue_holds_back_those_who_write_until_something_is_read():
    config = IMPALAConfig(**{**vars(FEED_FORWARD), "max_queue_size": 2})
    queue = make_queue(config, SPEC, seed=0, lockstep=False)
    assert queue.can_insert(2)
    assert not queue.can_insert(3)
    assert queue.info.max_times_sampled == 1
    room = make_queue(config, SPEC, seed=0, lockstep=True)
    assert room.can_insert(config.items_per_call + config.num_actors - 1)


def test_several_environments_write_what_one_does():
    """The steps of an actor with two environments, and of one with one, have the same columns."""
    config = IMPALAConfig(**{**vars(RECURRENT), "environments_per_actor": 2, "sequence_length": 10})
    service = ReplayService([make_queue(config, SPEC, seed=0, lockstep=True)])
    client = Client("local", service=service)
    parts = IMPALABuilder(config, SPEC, "catch", 0).make_actor_parts(
        Source(config), client, exploration=None, max_in_flight=0, served=False
    )
    parts.weights.update_and_wait()
    for _ in range(9):
        parts.loop.run_steps()
    assert client.server_info()["queue"].current_size == 2
    sequences = StepSequence(*client.sample_batch("queue", 2).data)
    np.testing.assert_array_equal(sequences.mask.sum(axis=1), [9, 9])
    assert set(sequences.extras["version"][:, :9].flat) == {6}
    assert not np.any(sequences.state[0])
    for closable in parts.closables:
        closable.close()
    service.close()
