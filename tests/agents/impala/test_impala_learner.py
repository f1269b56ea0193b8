"""Updates, the network with and without a memory, policy lag, the learning rate, resuming."""

import itertools
import operator

import jax
import numpy as np
import pytest
from dm_env import specs

from topology.agents.core.checkpoint import Checkpointer
from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.learner import Learner, zeros_like_spec
from topology.agents.core.replay import Batch
from topology.agents.core.sequences import StepSequence
from topology.agents.impala.config import IMPALAConfig
from topology.agents.impala.learner import make_initial_state, make_update
from topology.agents.impala.networks import make_network
from topology.agents.impala.replay import signature
from topology.context import StopToken
from topology.environments import Catch, make_environment_spec
from topology.errors import ProgramStopped

SPEC = make_environment_spec(Catch())
CONFIG = IMPALAConfig(
    hidden_sizes=(8,),
    batch_size=4,
    updates_per_call=2,
    sequence_length=5,
    reward_scale=1.0,
    learning_rate=1e-2,
    max_actor_steps=10_000,
)
RECURRENT = IMPALAConfig(**{**vars(CONFIG), "lstm_size": 6})
SINGLE = IMPALAConfig(**{**vars(CONFIG), "updates_per_call": 1})


def make_data(config, seed=0, *, version=0, **fields):
    random = np.random.default_rng(seed)
    data = jax.tree.map(
        lambda leaf: random.standard_normal(leaf.shape).astype(np.float32),
        zeros_like_spec(signature(config, SPEC), config.items_per_call),
    )
    shape = data.mask.shape
    data = data._replace(
        action=random.integers(3, size=shape).astype(np.int32),
        discount=np.full(shape, 0.9, np.float32),
        mask=np.ones(shape, np.float32),
        extras={"logits": data.extras["logits"], "version": np.full(shape, version, np.int32)},
    )
    return data._replace(**fields)


def make_batch(config, seed=0, **fields):
    size = config.items_per_call
    return Batch(np.arange(size, dtype=np.uint64), np.ones(size), 7, make_data(config, seed, **fields))


class Replay:
    """Gives batches until it is empty, then says that the program stopped."""

    def __init__(self, batches):
        self.batches = list(batches)

    def sample(self):
        if not self.batches:
            raise ProgramStopped("empty")
        return self.batches.pop(0)

    def update_priorities(self, keys, priorities):
        raise AssertionError("a queue has no priorities")

    def close(self):
        pass


@pytest.fixture
def make_learner(rows, clock):
    def make(batches, *, config=CONFIG, checkpointer=None, seed=1):
        network = make_network(config, SPEC)
        return Learner(
            state=make_initial_state(network, SPEC, config, seed),
            update=make_update(network, config),
            updates_per_call=config.updates_per_call,
            variables={"policy": operator.attrgetter("params")},
            replay=Replay(batches),
            example=zeros_like_spec(signature(config, SPEC), config.items_per_call),
            counts=ChildCounter(Counter(), "learner", max_delay_s=0),
            metrics=rows,
            stop=StopToken(),
            checkpointer=checkpointer,
            clock=clock,
        )

    return make


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


@pytest.mark.parametrize("config", [CONFIG, RECURRENT], ids=["feed-forward", "recurrent"])
def test_updates_raise_the_probability_of_what_was_rewarded(config):
    """Action 0 gives 1 and others nothing, whatever is seen."""
    network = make_network(config, SPEC)
    update, state = make_update(network, config), make_initial_state(network, SPEC, config, 1)
    for seed in range(60):
        data = make_data(config, seed)
        reward = (data.action == 0).astype(np.float32)
        uniform = {"logits": np.zeros_like(data.extras["logits"]), "version": data.extras["version"]}
        data = data._replace(reward=reward, discount=np.zeros_like(reward), extras=uniform)
        state, output = update(state, tuple(data), np.ones(config.items_per_call))
    rows, size = config.sequence_length, config.items_per_call
    observations = np.moveaxis(data.observation, 0, 1)
    logits, values, _ = network.apply(state.params, observations, np.zeros((rows, size), bool), data.state)
    assert np.mean(jax.nn.softmax(logits)[..., 0]) > 0.9
    assert np.mean(values) > 0.5  # V-trace corrects: the value is that of the policy, not of the uniform one
    assert set(output.metrics) == {
        *("loss", "policy_loss", "baseline_loss", "entropy", "ratio"),
        *("gradient_norm", "policy_lag_mean", "policy_lag_max"),
    }


def test_one_call_is_as_many_updates_as_it_says():
    data, network = make_data(CONFIG), make_network(CONFIG, SPEC)
    together, _ = make_update(network, CONFIG)(make_initial_state(network, SPEC, CONFIG, 1), tuple(data), np.ones(8))
    update, state = make_update(network, SINGLE), make_initial_state(network, SPEC, SINGLE, 1)
    for part in (slice(0, None, 2), slice(1, None, 2)):  # rows are dealt out in turn, see `split_updates`
        state, _ = update(state, jax.tree.map(operator.itemgetter(part), tuple(data)), np.ones(4))
    assert int(together.steps) == int(state.steps) == 2
    for one, other in zip(jax.tree.leaves(together.params), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_policy_lag_is_counted_from_the_weights_that_acted_to_the_update():
    network = make_network(SINGLE, SPEC)
    state = make_initial_state(network, SPEC, SINGLE, 1)._replace(steps=np.int32(10))
    data = make_data(SINGLE)
    data.mask[2, 1:] = data.mask[3] = 0
    # Rows that are masked, and the last one of each sequence, are not learned from.
    version = np.array([[9, 8, 8, 9, 3], [10, 10, 10, 10, 0], [10, 0, 0, 0, 0], [0, 0, 0, 0, 0]], np.int32)
    data = data._replace(extras={**data.extras, "version": version})
    _, output = make_update(network, SINGLE)(state, tuple(data), np.ones(4))
    assert float(output.metrics["policy_lag_mean"][0]) == pytest.approx((1 + 2 + 2 + 1) / 9)
    assert float(output.metrics["policy_lag_max"]) == 2


def test_the_metrics_have_the_mean_and_the_largest_lag_of_a_row(make_learner, rows, clock):
    learner = make_learner([make_batch(CONFIG, version=-6), make_batch(CONFIG, version=1)])
    learner.step()  # updates 0 and 1: lags 6 and 7
    clock.advance(2.0)
    learner.step()  # updates 2 and 3: lags 1 and 2
    (row,) = rows
    assert (row["policy_lag_mean"], row["policy_lag_max"], row["learner_steps"]) == (4.0, 7.0, 4)


def test_what_fills_a_sequence_does_not_change_an_update():
    network = make_network(RECURRENT, SPEC)
    update, state = make_update(network, RECURRENT), make_initial_state(network, SPEC, RECURRENT, 1)
    one = make_data(RECURRENT)
    one.mask[:, 2:] = one.discount[:, 2:] = one.reward[:, 2:] = 0.0
    other = jax.tree.map(np.copy, one)
    for leaf in (other.observation, other.extras["logits"], other.action, other.extras["version"]):
        leaf[:, 3:] = 1  # row 2 is the last observation; what follows it is nothing
    assert not np.array_equal(one.observation, other.observation)
    first, _ = update(state, tuple(one), np.ones(8))
    second, _ = update(state, tuple(other), np.ones(8))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_an_episode_that_begins_within_a_sequence_has_an_empty_memory():
    network = make_network(RECURRENT, SPEC)
    params, apply = make_initial_state(network, SPEC, RECURRENT, 1).params, jax.jit(network.apply)
    data = make_data(RECURRENT)
    observations, begins = np.moveaxis(data.observation, 0, 1), np.zeros((5, 8), bool)
    begins[3] = True
    logits, values, _ = apply(params, observations, begins, data.state)
    nothing = tuple(np.zeros_like(leaf) for leaf in data.state)
    alone, alone_values, _ = apply(params, observations[3:], np.zeros((2, 8), bool), nothing)
    np.testing.assert_allclose(logits[3:], alone, atol=1e-6)
    np.testing.assert_allclose(values[3:], alone_values, atol=1e-6)
    unbroken, _, after = apply(params, observations, np.zeros((5, 8), bool), data.state)
    assert not np.allclose(unbroken[3:], alone, atol=1e-6)
    np.testing.assert_array_equal(unbroken[:3], logits[:3])
    # Step by step it is the same: what an actor does is what the learner sees.
    state = data.state
    for t in range(5):
        step, _, state = apply(params, observations[t : t + 1], np.zeros((1, 8), bool), state)
        np.testing.assert_allclose(step[0], unbroken[t], atol=1e-6)
    np.testing.assert_allclose(state[0], after[0], atol=1e-6)


def test_an_update_sees_the_policy_as_the_actor_did_also_where_episodes_begin():
    """On policy every importance weight is 1; with a memory that went on over the end of an episode it is not."""
    network = make_network(RECURRENT, SPEC)
    update, state = make_update(network, RECURRENT), make_initial_state(network, SPEC, RECURRENT, 1)
    data = make_data(RECURRENT)
    data.mask[:, 1] = data.discount[:, 1] = data.reward[:, 1] = 0.0  # row 2 begins an episode
    ratios = []
    for begins in (2, None):
        at = np.zeros((5, 8), bool)
        if begins is not None:
            at[begins] = True
        logits, _, _ = jax.jit(network.apply)(state.params, np.moveaxis(data.observation, 0, 1), at, data.state)
        acted = data._replace(extras={**data.extras, "logits": np.moveaxis(np.asarray(logits), 0, 1)})
        # All the same action, so that differences of the policy cannot cancel out.
        _, output = update(state, tuple(acted._replace(action=np.zeros_like(data.action))), np.ones(8))
        ratios.append(abs(float(output.metrics["ratio"][0]) - 1.0))
    assert ratios[0] < 1e-6 < ratios[1]


def test_rewards_can_be_clipped_and_are_scaled_then():
    config = IMPALAConfig(**{**vars(CONFIG), "max_abs_reward": 10.0, "reward_scale": 0.1})
    network = make_network(CONFIG, SPEC)
    state = make_initial_state(network, SPEC, CONFIG, 1)
    large = make_data(CONFIG)
    large = large._replace(reward=np.full_like(large.reward, -100.0))
    clipped, _ = make_update(network, config)(state, tuple(large), np.ones(8))
    small, _ = make_update(network, CONFIG)(
        state, tuple(large._replace(reward=np.full_like(large.reward, -1.0))), np.ones(8)
    )
    assert same(clipped, small)


def test_gradients_are_clipped():
    config = IMPALAConfig(**{**vars(SINGLE), "max_gradient_norm": 1e-12})
    network = make_network(config, SPEC)
    state = make_initial_state(network, SPEC, config, 1)
    after, output = make_update(network, config)(state, tuple(make_data(config)), np.ones(4))
    assert float(output.metrics["gradient_norm"][0]) > 0.01  # before it is clipped
    # Adam divides by the size of the gradient, but one below its epsilon of 1e-8 moves hardly anything.
    for one, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(after.params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-2 * 1e-3)


def test_the_learning_rate_falls_to_its_end():
    config = IMPALAConfig(**{**vars(SINGLE), "final_learning_rate": 1e-9, "max_actor_steps": 4 * 4 * 4})
    assert config.num_updates == 4
    network, data = make_network(config, SPEC), make_data(config)
    update, states = make_update(network, config), [make_initial_state(network, SPEC, config, 1)]
    for _ in range(6):
        states.append(update(states[-1], tuple(data), np.ones(4))[0])
    moved = [
        not np.allclose(*(s.params["params"]["policy"]["bias"] for s in pair), atol=1e-6)
        for pair in itertools.pairwise(states)
    ]
    assert moved == [True, True, True, True, False, False]


@pytest.mark.parametrize("config", [CONFIG, RECURRENT], ids=["feed-forward", "recurrent"])
def test_it_goes_on_where_it_ended(make_learner, tmp_path, config):
    batches = [make_batch(config, seed) for seed in range(4)]
    straight = make_learner(batches, config=config)
    for _ in range(4):
        straight.step()
    make_learner(batches[:2], config=config, checkpointer=Checkpointer(tmp_path)).run()
    again = make_learner(batches[2:], config=config, checkpointer=Checkpointer(tmp_path), seed=99)
    assert again.steps == 4
    again.run()
    assert again.steps == straight.steps == 8
    assert same(again.state, straight.state)


def test_a_state_fits_a_run_of_another_length(make_learner, tmp_path):
    make_learner([make_batch(CONFIG)], checkpointer=Checkpointer(tmp_path)).run()
    endless = IMPALAConfig(**{**vars(CONFIG), "max_actor_steps": None})
    assert make_learner([], config=endless, checkpointer=Checkpointer(tmp_path)).steps == 2


def test_a_loss_that_is_not_finite_ends_the_learner(make_learner):
    reward = np.full((8, 5), np.nan, np.float32)
    with pytest.raises(FloatingPointError, match="after 2 updates"):
        make_learner([make_batch(CONFIG, reward=reward)]).step()


def test_images_pass_convolutions():
    spec = SPEC._replace(observations=specs.BoundedArray((36, 36, 2), np.uint8, 0, 255))
    network = make_network(RECURRENT, spec)
    images = jax.ShapeDtypeStruct((5, 3, 36, 36, 2), np.uint8)
    begins = jax.ShapeDtypeStruct((5, 3), bool)
    state = (jax.ShapeDtypeStruct((3, 6), np.float32),) * 2
    params = jax.eval_shape(network.init, jax.random.key(0), images, begins, state)
    assert "ImageTorso_0" in params["params"]["torso"]
    logits, values, after = jax.eval_shape(network.apply, params, images, begins, state)
    assert (logits.shape, values.shape, after[0].shape) == ((5, 3, 3), (5, 3), (3, 6))


def test_data_is_what_the_signature_says():
    item = signature(RECURRENT, SPEC)
    assert isinstance(item, StepSequence)
    assert item.observation.shape == (5, 10, 5)
    assert [leaf.shape for leaf in item.state] == [(6,), (6,)]
    assert (item.extras["logits"].shape, item.extras["version"].dtype) == ((5, 3), np.int32)
    assert signature(CONFIG, SPEC).state == ()
