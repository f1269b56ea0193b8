"""The learner: updates, target network, priorities, names, resuming."""

import itertools

import jax
import numpy as np
import pytest

from topology.agents.core.checkpoint import Checkpointer
from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.learner import Learner, zeros_like_spec
from topology.agents.core.replay import Batch
from topology.agents.core.transitions import Transition, transition_signature
from topology.agents.dqn.config import DQNConfig
from topology.agents.dqn.learner import make_initial_state, make_update
from topology.agents.dqn.networks import make_network
from topology.context import StopToken
from topology.environments import Catch, make_environment_spec
from topology.errors import ProgramStopped

SPEC = make_environment_spec(Catch())
CONFIG = DQNConfig(hidden_sizes=(8,), batch_size=4, updates_per_call=3, target_update_period=5, learning_rate=1e-2)
SIZE = CONFIG.batch_size * CONFIG.updates_per_call


def make_batch(seed=0, reward=None):
    random = np.random.default_rng(seed)
    boards = random.random((2, SIZE, 10, 5), np.float32)
    rewards = random.standard_normal(SIZE).astype(np.float32) if reward is None else np.full(SIZE, reward, np.float32)
    actions = random.integers(3, size=SIZE).astype(np.int32)
    data = Transition(boards[0], actions, rewards, np.full(SIZE, 0.9, np.float32), boards[1])
    return Batch(np.arange(SIZE, dtype=np.uint64), np.full(SIZE, 1 / SIZE), 50, data)


class Replay:
    """Gives batches until it is empty, then says that the program stopped."""

    def __init__(self, batches):
        self.batches = list(batches)
        self.updates = []
        self.closed = False

    def sample(self):
        if not self.batches:
            raise ProgramStopped("empty")
        return self.batches.pop(0)

    def update_priorities(self, keys, priorities):
        self.updates.append((keys, priorities))

    def close(self):
        self.closed = True


@pytest.fixture
def make_learner(rows, clock):
    def make(batches, *, config=CONFIG, counter=None, checkpointer=None, seed=1):
        network = make_network(config, SPEC)
        return Learner(
            state=make_initial_state(network, SPEC, config, seed),
            update=make_update(network, config),
            updates_per_call=config.updates_per_call,
            variables={"policy": lambda state: state.params, "target": lambda state: state.target_params},
            replay=batches if isinstance(batches, Replay) else Replay(batches),
            example=zeros_like_spec(transition_signature(SPEC), config.items_per_call),
            counts=ChildCounter(counter or Counter(), "learner", max_delay_s=0),
            metrics=rows,
            stop=StopToken(),
            checkpointer=checkpointer,
            checkpoint_period_s=config.checkpoint_period_s,
            clock=clock,
        )

    return make


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def test_one_call_is_as_many_updates_as_it_says(make_learner):
    batch = make_batch()
    network = make_network(CONFIG, SPEC)
    together, _ = make_update(network, CONFIG)(
        make_initial_state(network, SPEC, CONFIG, 1), batch.data, batch.probabilities
    )
    single = DQNConfig(**{**vars(CONFIG), "updates_per_call": 1})
    update, state = make_update(network, single), make_initial_state(network, SPEC, CONFIG, 1)
    for i in range(3):
        part = slice(i, None, 3)
        state, _ = update(state, Transition(*(x[part] for x in batch.data)), batch.probabilities[part])
    assert int(together.steps) == int(state.steps) == 3
    for one, other in zip(jax.tree.leaves(together.params), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_target_network_is_a_copy_after_the_call_in_which_its_period_ends():
    network = make_network(CONFIG, SPEC)
    first = state = make_initial_state(network, SPEC, CONFIG, 1)
    update = make_update(network, CONFIG)
    states = []
    for i in range(4):
        batch = make_batch(i)
        state, _ = update(state, batch.data, batch.probabilities)
        states.append(state)
    assert same(states[0].target_params, first.target_params)  # after 3 updates
    assert same(states[1].target_params, states[1].params)  # 6: the period of 5 ended
    assert same(states[2].target_params, states[1].params)  # 9
    assert same(states[3].target_params, states[3].params)  # 12: that of 10
    assert not same(states[2].target_params, states[2].params)


def test_updates_lower_the_loss_on_what_they_learn(make_learner):
    learner = make_learner(
        [
            make_batch(reward=1.0)._replace(
                data=make_batch(reward=1.0).data._replace(discount_t=np.zeros(SIZE, np.float32))
            )
        ]
        * 60
    )
    losses = [learner.step() for _ in range(60)]
    assert losses[-1] < 0.2 * losses[0]


def test_priorities_are_errors_in_the_order_of_the_batch(make_learner):
    replay = Replay([make_batch()])
    config = DQNConfig(**{**vars(CONFIG), "updates_per_call": 1, "batch_size": SIZE})
    make_learner(replay, config=config).step()
    network, batch = make_network(config, SPEC), make_batch()
    state = make_initial_state(network, SPEC, config, 1)
    chosen = np.asarray(network.apply(state.params, batch.data.o_tm1))[np.arange(SIZE), batch.data.a_tm1]
    following = np.asarray(network.apply(state.params, batch.data.o_t))
    expected = np.abs(batch.data.r_t + 0.9 * following.max(axis=1) - chosen)
    ((keys, priorities),) = replay.updates
    np.testing.assert_array_equal(keys, batch.keys)
    np.testing.assert_allclose(priorities, expected, atol=1e-4)
    assert priorities.dtype == np.float64


def test_rewards_can_be_clipped(make_learner):
    config = DQNConfig(**{**vars(CONFIG), "max_abs_reward": 1.0})
    clipped = make_learner([make_batch(reward=100.0)], config=config).step()
    assert clipped == pytest.approx(make_learner([make_batch(reward=1.0)]).step(), rel=1e-5)


def test_names_are_honoured(make_learner):
    learner = make_learner([make_batch()])
    learner.step()
    both = learner.get_variables(["target", "policy"])
    assert both.version == 3
    assert not same(*both.values)
    assert same(learner.get_variables(["policy"]).values, both.values[1:])
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(both.values))
    with pytest.raises(KeyError, match="asked for \\['critic'\\]"):
        learner.get_variables(["critic"])


def test_weights_are_copied_once_for_each_version(make_learner):
    learner = make_learner([make_batch()])
    first = learner.get_variables(["policy"]).values[0]
    assert learner.get_variables(["policy"]).values[0] is first
    learner.step()
    assert learner.get_variables(["policy"]).values[0] is not first


def test_a_loss_that_is_not_finite_ends_the_learner_and_its_state_is_not_kept(make_learner, tmp_path):
    replay = Replay([make_batch(), make_batch(reward=np.nan)])
    with pytest.raises(FloatingPointError, match=r"after 6 updates: items of the batch .* \(r_t of 12\)"):
        make_learner(replay, checkpointer=Checkpointer(tmp_path)).run()
    assert len(replay.updates) == 1
    assert list(tmp_path.iterdir()) == []
    assert replay.closed


def test_steps_are_counted_and_written(make_learner, rows, clock):
    counter = Counter()
    learner = make_learner([make_batch()] * 3, counter=counter)
    learner.step()
    clock.advance(2.0)
    learner.step()
    assert counter.get_counts() == {"learner_steps": 6}
    (row,) = rows
    assert (row["learner_steps"], row["replay_size"], row["learner_steps_per_second"]) == (6, 50, 3.0)


def test_it_goes_on_where_it_ended(make_learner, tmp_path):
    batches = [make_batch(i) for i in range(4)]
    straight = make_learner(batches)
    for _ in range(4):
        straight.step()
    replay = Replay(batches[:2])
    make_learner(replay, checkpointer=Checkpointer(tmp_path)).run()
    assert replay.closed
    again = make_learner(batches[2:], checkpointer=Checkpointer(tmp_path), seed=99)
    assert again.steps == 6
    again.run()
    assert again.steps == straight.steps == 12
    assert same(again.get_variables(["policy", "target"]).values, straight.get_variables(["policy", "target"]).values)


def test_it_saves_in_between(make_learner, tmp_path, clock):
    class Moving(Replay):
        def sample(self):
            clock.advance(CONFIG.checkpoint_period_s)
            return super().sample()

    make_learner(Moving([make_batch()] * 2), checkpointer=Checkpointer(tmp_path)).run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.npz", "6.npz"]


def test_a_state_fits_a_run_of_another_length(make_learner, tmp_path):
    make_learner([make_batch()], checkpointer=Checkpointer(tmp_path)).run()
    endless = DQNConfig(**{**vars(CONFIG), "max_actor_steps": None})
    learner = make_learner([], config=endless, checkpointer=Checkpointer(tmp_path))
    assert learner.steps == 3
    learner.close()


def test_the_learning_rate_falls_to_its_end():
    network = make_network(CONFIG, SPEC)
    config = DQNConfig(**{**vars(CONFIG), "final_learning_rate": 1e-9, "max_actor_steps": 1000, "min_replay_size": 999})
    assert config.num_updates == round(32 / 4)
    update, batch = make_update(network, config), make_batch()
    states = [make_initial_state(network, SPEC, config, 1)]
    for _ in range(4):
        states.append(update(states[-1], batch.data, batch.probabilities)[0])
    moved = [
        not np.allclose(*(s.params["params"]["advantage_1"]["bias"] for s in pair), atol=1e-6)
        for pair in itertools.pairwise(states)
    ]
    assert moved == [True, True, True, False]
