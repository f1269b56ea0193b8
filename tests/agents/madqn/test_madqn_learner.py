"""The trainer: one update by hand, masks, target networks, epsilon, resuming."""

import functools

import jax
import numpy as np
import pytest

from topology.agents.core.checkpoint import Checkpointer
from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.learner import Learner, zeros_like_spec
from topology.agents.core.replay import Batch
from topology.agents.madqn.config import MADQNConfig
from topology.agents.madqn.learner import make_initial_state, make_update
from topology.agents.madqn.networks import make_team_network
from topology.agents.madqn.team import make_team, signature
from topology.context import StopToken
from topology.errors import ProgramStopped

SMALL = {
    "hidden_sizes": (8,),
    "memory_size": 5,
    "mixing_size": 4,
    "sequence_length": 4,
    "replay_period": 3,
    "batch_size": 5,
    "updates_per_call": 1,
    "epsilon_decay": 0.01,
    "target_update_period": 2,
    "n_step": 2,
}
QMIX = {"mixing": "qmix", "recurrent": True}  # with all that there is; most tests share it, so it is compiled once


class Kit:
    """Settings, networks, states and batches for two agents of one kind whose actions have masks."""

    def __init__(self, make_spec, make_sequences):
        self.spec = make_spec({"a_0": 3, "a_1": 3}, masked=("a_0", "a_1"))
        self._make_sequences = make_sequences

    def build(self, **settings):
        config = MADQNConfig(**SMALL | settings)
        network = make_team_network(make_team(self.spec, shared_weights=config.shared_weights), config)
        return config, network, make_update(network, config)

    def first_state(self, config, network, seed=1):
        return make_initial_state(network, self.spec, config, seed)

    def apart(self, config, network):
        """A state whose target network is another."""
        return self.first_state(config, network)._replace(target_params=self.first_state(config, network, 2).params)

    def sequences(self, config, *, seed=0, mask=None):
        memory = config.memory_size if config.recurrent else None
        size, length = config.items_per_call, config.sequence_length
        return self._make_sequences(self.spec, size, length, seed=seed, memory_size=memory, mask=mask)


@pytest.fixture
def kit(make_spec, make_sequences):
    return Kit(make_spec, make_sequences)


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


@pytest.mark.parametrize("settings", [{}, QMIX], ids=["independent", "qmix"])
def test_the_loss_by_hand(kit, settings):
    """Double Q-learning over two steps, with masks, from what the networks say."""
    config, network, update = kit.build(**settings)
    state = kit.apart(config, network)
    mask = np.ones((5, 4), np.float32)
    mask[1, 1] = 0  # an episode that ends there
    sequences = kit.sequences(config, mask=mask)
    keep = np.concatenate([np.ones((5, 1)), mask[:, :-1]], axis=1).T
    by_time = jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1), sequences.observation)
    values, mix = (jax.jit(functools.partial(network.apply, method=method)) for method in ("values", "mix"))
    q, target_q = (
        np.asarray(values(params, by_time, sequences.state, keep)[0]) for params in (state.params, state.target_params)
    )
    legal = np.stack([by_time[a]["action_mask"] for a in ("a_0", "a_1")], axis=2)
    best = np.where(legal == 1, q, -np.inf).argmax(-1)
    taken, value = (
        np.asarray(mix(params, np.take_along_axis(q_, a[..., None], -1)[..., 0], by_time))
        for params, q_, a in (
            (state.params, q, np.swapaxes(sequences.action, 0, 1)),
            (state.target_params, target_q, best),
        )
    )
    rewards = np.swapaxes(sequences.reward, 0, 1)
    if settings:
        rewards = rewards.mean(-1, keepdims=True)
    ahead = rewards[1:-1] + 0.9 * value[2:]  # one step on, unless the episode ends there
    ahead = np.where(mask.T[1:-1, :, None] == 1, ahead, value[1:-1])
    error = rewards[:-1] + 0.9 * np.concatenate([ahead, value[-1:]]) - taken[:-1]
    weights = np.broadcast_to(mask.T[:-1, :, None], error.shape)
    _, output = update(state, sequences, np.ones(5))
    expected = 0.5 * (error**2 * weights).sum() / weights.sum()
    np.testing.assert_allclose(output.metrics["loss"], [expected], rtol=1e-4)
    np.testing.assert_allclose(output.metrics["value"], [(taken[:-1] * weights).sum() / weights.sum()], rtol=1e-4)


def test_rows_without_an_action_teach_nothing(kit):
    config, network, update = kit.build(**QMIX)
    state = kit.apart(config, network)
    mask = np.ones((5, 4), np.float32)
    mask[:, 2] = 0
    sequences = kit.sequences(config, mask=mask)
    changed = sequences._replace(action=sequences.action.copy(), reward=sequences.reward.copy())
    changed.action[:, 2:] = (changed.action[:, 2:] + 1) % 3
    changed.reward[:, 2:] += 100
    one, _ = update(state, sequences, np.ones(5))
    other, _ = update(state, changed, np.ones(5))
    assert same(one, other)


def test_where_an_episode_was_cut_off_its_last_state_has_a_value_and_where_it_terminated_none(kit):
    config, network, update = kit.build(**QMIX)
    state = kit.apart(config, network)
    mask = np.ones((5, 4), np.float32)
    mask[:, 2] = 0
    cut = kit.sequences(config, mask=mask)
    moved = cut._replace(observation=jax.tree.map(np.copy, cut.observation))
    for agent in ("a_0", "a_1"):
        moved.observation[agent]["observation"][:, 2] += 5
    losses = [float(update(state, each, np.ones(5))[1].metrics["loss"][0]) for each in (cut, moved)]
    assert losses[0] != losses[1]
    for each in (cut, moved):
        each.discount[:, 1] = 0
    losses = [float(update(state, each, np.ones(5))[1].metrics["loss"][0]) for each in (cut, moved)]
    assert losses[0] == losses[1]


def test_epsilon_falls_with_each_update_to_its_least(kit):
    config, network, update = kit.build(**QMIX)
    state = kit.first_state(config, network)
    assert state.epsilon == 1.0
    state, output = update(state, kit.sequences(config), np.ones(5))
    assert state.epsilon == output.metrics["epsilon"][0] == pytest.approx(0.99)
    state = state._replace(epsilon=np.float32(0.055))
    for i in range(2):
        state, _ = update(state, kit.sequences(config, seed=i), np.ones(5))
        assert state.epsilon == np.float32(0.05)


def test_one_call_is_as_many_updates_as_it_says_and_the_target_is_a_copy_every_period(kit):
    config, network, together = kit.build(updates_per_call=3, **QMIX)
    single_config, _, single = kit.build(**QMIX)
    sequences = kit.sequences(config)
    state = after_each = first = kit.first_state(single_config, network)
    state, _ = together(state, sequences, np.ones(15))
    targets = []
    for k in range(3):
        part = jax.tree.map(lambda leaf, k=k: leaf[k::3], sequences)
        after_each, _ = single(after_each, part, np.ones(single_config.batch_size))
        targets.append(after_each.target_params)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(after_each), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert same(targets[0], first.params)
    assert not same(targets[1], first.params)
    assert same(targets[2], targets[1])


class Replay:
    """Gives batches until it is empty, then says that the program stopped."""

    def __init__(self, batches):
        self.batches = list(batches)

    def sample(self):
        if not self.batches:
            raise ProgramStopped("empty")
        return self.batches.pop(0)

    def close(self):
        pass


def make_learner(kit, batches, checkpointer, *, seed=1):
    config, network, update = kit.build(**QMIX)
    return Learner(
        state=kit.first_state(config, network, seed),
        update=update,
        updates_per_call=1,
        variables={"policy": lambda state: state.params, "epsilon": lambda state: state.epsilon},
        replay=Replay(batches),
        example=zeros_like_spec(signature(config, kit.spec), config.items_per_call),
        counts=ChildCounter(Counter(), "learner", max_delay_s=0),
        metrics=type("Nowhere", (), {"write": lambda self, **values: None})(),
        stop=StopToken(),
        checkpointer=checkpointer,
    )


def test_a_resumed_trainer_goes_on_to_the_bit_and_with_its_epsilon(kit, tmp_path):
    config, _, _ = kit.build(**QMIX)
    batches = [Batch(np.arange(5, dtype=np.uint64), np.ones(5), 5, kit.sequences(config, seed=i)) for i in range(6)]
    straight = make_learner(kit, batches, None)
    for _ in range(6):
        straight.step()
    make_learner(kit, batches[:3], Checkpointer(tmp_path)).run()
    resumed = make_learner(kit, batches[3:], Checkpointer(tmp_path), seed=9)
    assert resumed.steps == 3
    assert resumed.get_variables(["epsilon"]).values[0] == pytest.approx(0.97)
    for _ in range(3):
        resumed.step()
    assert same(straight.state, resumed.state)
    assert resumed.get_variables(["policy", "epsilon"]).values[1] == pytest.approx(0.94)
