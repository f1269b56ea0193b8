"""The learner of R2D2: what it learns from and what it leaves out, memory, target network, priorities, resuming."""

import dataclasses

import jax
import numpy as np
import pytest

from topology.agents.core.checkpoint import Checkpointer
from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.replay import Batch
from topology.agents.core.sequences import StepSequence
from topology.agents.r2d2.builder import R2D2Builder
from topology.agents.r2d2.config import R2D2Config
from topology.agents.r2d2.learner import make_initial_state, make_update
from topology.agents.r2d2.networks import make_network
from topology.agents.r2d2.state import Carry, RecurrentState
from topology.context import StopToken
from topology.environments import MemoryChain, make_environment_spec

SPEC = make_environment_spec(MemoryChain())
CONFIG = R2D2Config(
    hidden_sizes=(8,),
    lstm_size=8,
    head_size=8,
    burn_in_length=2,
    trace_length=4,
    replay_period=2,
    n_step=2,
    batch_size=3,
    updates_per_call=2,
    target_update_period=3,
    learning_rate=1e-2,
)
SIZE, LENGTH = CONFIG.items_per_call, CONFIG.sequence_length


def make_data(seed=0, *, action_before=0):
    """Sequences from the middle of episodes; `action_before=-1` for their beginnings."""
    random = np.random.default_rng(seed)
    memory = random.standard_normal((2, SIZE, CONFIG.lstm_size)).astype(np.float32)
    return StepSequence(
        observation=random.standard_normal((SIZE, LENGTH, 3)).astype(np.float32),
        action=random.integers(2, size=(SIZE, LENGTH)).astype(np.int32),
        reward=random.standard_normal((SIZE, LENGTH)).astype(np.float32),
        discount=np.full((SIZE, LENGTH), 0.9, np.float32),
        mask=np.ones((SIZE, LENGTH), np.float32),
        state=RecurrentState(
            Carry(*memory), np.full(SIZE, action_before, np.int32), random.standard_normal(SIZE).astype(np.float32)
        ),
    )


PROBABILITIES = np.full(SIZE, 0.01)
NETWORK = make_network(CONFIG, SPEC)


@pytest.fixture(scope="module")
def update():
    """One call on a new state: `update(data)`, `update(data, state)`."""
    compiled = make_update(NETWORK, CONFIG)
    return lambda data, state=None: compiled(
        make_initial_state(NETWORK, SPEC, CONFIG, 1) if state is None else state, data, PROBABILITIES
    )


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def ended(data, actions, *, rubbish=0.0):
    """The same sequences, ended after so many actions, with `rubbish` where there is nothing."""
    mask = np.zeros((SIZE, LENGTH), np.float32)
    mask[:, :actions] = 1
    keep = mask.astype(bool)
    shown = np.arange(LENGTH) <= actions  # the last observation is seen, and nothing is done there
    return data._replace(
        observation=np.where(shown[:, None], data.observation, np.float32(rubbish)),
        action=np.where(keep, data.action, np.int32(rubbish != 0)),
        reward=np.where(keep, data.reward, np.float32(rubbish)),
        discount=np.where(keep, data.discount, np.float32(0)),
        mask=mask,
    )


def test_what_fills_a_sequence_changes_nothing(update):
    data = make_data()
    zeros, zero_output = update(ended(data, 4))
    rubbish, output = update(ended(data, 4, rubbish=7.0))
    assert same(zeros.params, rubbish.params)
    assert same(zero_output, output)
    assert not same(zeros.params, update(data)[0].params)


def test_steps_of_the_burn_in_are_not_learned_from_unless_the_episode_begins_there(update):
    def changed(data):
        """Other rewards at the first two actions, of which only the second is seen later, by the network's input."""
        reward = data.reward.copy()
        reward[:, 0] += 5.0
        return data._replace(reward=reward)

    def errors(data):
        # Where a sequence ends after its burn-in there is nothing to learn from, whatever its rewards.
        return update(ended(data, CONFIG.burn_in_length))[1]

    middle, beginning = make_data(), make_data(action_before=-1)
    assert float(np.max(errors(changed(middle)).metrics["loss"])) == 0.0
    np.testing.assert_allclose(errors(changed(middle)).priorities, 1e-6)
    assert float(np.min(errors(beginning).metrics["loss"])) > 0.0
    assert not same(errors(beginning), errors(changed(beginning)))


def test_no_gradient_goes_into_the_burn_in_unless_the_episode_begins_there():
    observation = make_data().observation.swapaxes(0, 1)
    params = make_initial_state(NETWORK, SPEC, CONFIG, 1).params
    zeros = np.zeros((LENGTH, SIZE))
    memory = Carry(*np.zeros((2, SIZE, CONFIG.lstm_size), np.float32))
    cut = np.zeros((LENGTH, SIZE), bool)
    cut[CONFIG.burn_in_length, 1:] = True

    def last_values(observation):
        return NETWORK.apply(params, observation, zeros.astype(int), zeros, memory, cut)[0][-1].sum()

    reached = np.abs(jax.jit(jax.grad(last_values))(observation)).sum(axis=-1) > 0
    assert reached[:, 0].all()
    assert not reached[: CONFIG.burn_in_length, 1:].any()
    assert reached[CONFIG.burn_in_length :, 1:].all()


def test_the_stored_state_matters_also_through_the_action_and_reward_before(update):
    data = make_data()
    first, _ = update(data)
    for name, value in (
        ("carry", Carry(*(leaf + 1 for leaf in data.state.carry))),
        ("action", data.state.action + 1),
        ("reward", data.state.reward + 1),
    ):
        other, _ = update(data._replace(state=data.state._replace(**{name: value})))
        assert not same(first.params, other.params), name


def test_acting_step_by_step_gives_the_values_of_the_whole_sequence():
    data = jax.tree.map(lambda leaf: leaf[:1], make_data())
    params = make_initial_state(NETWORK, SPEC, CONFIG, 1).params
    apply = jax.jit(NETWORK.apply)
    actions = np.concatenate([data.state.action, data.action[0, :-1]])[:, None]
    rewards = np.concatenate([data.state.reward, data.reward[0, :-1]])[:, None]
    observations, cut = data.observation.swapaxes(0, 1), np.zeros((LENGTH, 1), bool)
    whole, after = apply(params, observations, actions, rewards, data.state.carry, cut)
    carry = data.state.carry
    for t in range(LENGTH):
        row = slice(t, t + 1)
        one, carry = apply(params, observations[row], actions[row], rewards[row], carry, cut[row])
        np.testing.assert_allclose(one[0], whole[t], atol=1e-5)
    np.testing.assert_allclose(carry.hidden, after.hidden, atol=1e-5)


def test_the_target_network_is_a_copy_every_period(update):
    first = make_initial_state(NETWORK, SPEC, CONFIG, 1)
    second, _ = update(make_data(0), first)
    assert same(second.target_params, first.params)  # after 2 updates
    fourth, _ = update(make_data(1), second)
    assert not same(fourth.target_params, first.params)  # the copy at 3
    assert not same(fourth.target_params, fourth.params)
    assert int(fourth.steps) == 4


class Replay:
    """Gives the same batches every time."""

    def __init__(self):
        self.seeds = iter(range(100))
        self.updates = []

    def sample(self):
        keys = np.arange(SIZE, dtype=np.uint64)
        return Batch(keys, PROBABILITIES, 50, make_data(next(self.seeds)))

    def update_priorities(self, keys, priorities):
        self.updates.append(priorities)

    def close(self):
        pass


@pytest.fixture
def make_learner(rows, monkeypatch):
    def make(replay, *, counter=None, checkpointer=None):
        monkeypatch.setattr("topology.agents.core.builder.ReplayBatches", lambda *_, **__: replay)
        return R2D2Builder(CONFIG, SPEC, "memory_chain", 3).make_learner(
            None,
            counts=ChildCounter(counter or Counter(), "learner", max_delay_s=0),
            metrics=rows,
            stop=StopToken(),
            checkpointer=checkpointer,
        )

    return make


def test_a_learner_that_is_restored_goes_on_to_the_bit(make_learner, tmp_path):
    through, replay = make_learner(Replay()), Replay()
    for _ in range(4):
        through.step()
    first = make_learner(replay, checkpointer=Checkpointer(tmp_path))
    first.step()
    first.step()
    first.save()
    resumed = make_learner(replay, checkpointer=Checkpointer(tmp_path))
    assert resumed.steps == 4
    resumed.step()
    resumed.step()
    assert same(through.state, resumed.state)


def test_its_counts_have_one_prefix_and_every_sequence_gets_a_priority(make_learner):
    counter, replay = Counter(), Replay()
    make_learner(replay, counter=counter).step()
    assert counter.get_counts() == {"learner_steps": CONFIG.updates_per_call}
    (priorities,) = replay.updates
    assert priorities.shape == (SIZE,)
    assert (priorities > 1e-3).all()


def test_it_serves_policy_and_target(make_learner):
    learner = make_learner(Replay())
    learner.step()
    policy, target = learner.get_variables(["policy", "target"]).values
    assert not same(policy, target)
    with pytest.raises(KeyError, match="policy"):
        learner.get_variables(["critic"])


def test_updates_lower_the_loss_on_what_they_learn(update):
    data, state = make_data(), None
    data = data._replace(discount=np.zeros_like(data.discount))
    losses = []
    for _ in range(60):
        state, output = update(data, state)
        losses.append(float(output.metrics["loss"].mean()))
    assert losses[-1] < 0.2 * losses[0]


def test_equal_settings_share_what_is_compiled():
    assert make_update(make_network(CONFIG, SPEC), dataclasses.replace(CONFIG)) is make_update(NETWORK, CONFIG)
