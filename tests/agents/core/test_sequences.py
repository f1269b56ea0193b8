"""Episodes as sequences, over a real replay service."""

import dm_env
import numpy as np
import pytest
from dm_env import specs

from topology.agents.core.sequences import SequenceAdder, StepSequence, sequence_signature
from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay import Client, Table, rate_limiters, selectors
from topology.nodes.replay.service import ReplayService

SPEC = EnvironmentSpec(
    observations=specs.Array((2,), np.float32),
    actions=specs.DiscreteArray(3),
    rewards=specs.Array((), np.float32),
    discounts=specs.Array((), np.float32),
)
STATE = (specs.Array((4,), np.float32), specs.Array((4,), np.float32))
EXTRAS = {"logits": specs.Array((3,), np.float32)}


@pytest.fixture
def replay():
    services = []

    def start(signature):
        table = Table(
            "steps", selectors.Fifo(), selectors.Fifo(), 100, rate_limiters.MinSize(1), max_times_sampled=1,
            signature=signature,
        )  # fmt: skip
        services.append(ReplayService([table]))
        return Client("local", service=services[-1])

    yield start
    for service in services:
        service.close()


def observation(step):
    return np.array([step, -step], np.float32)


def play(adder, steps, *, discount=0.0, extras=None, state=None):
    """An episode whose step t has observation t, action t mod 3 and reward t + 1."""
    adder.observe_first(dm_env.restart(observation(0)))
    for t in range(steps):
        last = t == steps - 1
        kind = dm_env.StepType.LAST if last else dm_env.StepType.MID
        timestep = dm_env.TimeStep(kind, float(t + 1), discount if last else 1.0, observation(t + 1))
        adder.observe(t % 3, timestep, extras and extras(t), state and state(t))


def read(client):
    size = client.server_info()["steps"].current_size
    return [client.sample_batch("steps", 1).data for _ in range(size)]


def make(client, length, period, discount=0.9, **options):
    writer = client.trajectory_writer(SequenceAdder.num_keep_alive_refs(length))
    return SequenceAdder(
        writer, table="steps", length=length, period=period, discount=discount, max_in_flight=0, **options
    )


def test_rows_of_an_episode_that_fills_its_sequences(replay):
    client = replay(sequence_signature(SPEC, 3))
    adder = make(client, 3, 2)
    play(adder, 4)
    first, second = (StepSequence(*data) for data in read(client))
    np.testing.assert_array_equal(first.observation[0, :, 0], [0, 1, 2])
    np.testing.assert_array_equal(second.observation[0, :, 0], [2, 3, 4])
    np.testing.assert_array_equal(second.action[0], [2, 0, 0])
    np.testing.assert_array_equal(second.reward[0], [3, 4, 0])
    np.testing.assert_allclose(second.discount[0], [0.9, 0, 0])
    np.testing.assert_array_equal(second.mask[0], [1, 1, 0])
    assert first.action.dtype == np.int32


def test_an_environment_may_write_all_it_shows_into_one_array(replay):
    client = replay(sequence_signature(SPEC, 3))
    adder, shown = make(client, 3, 2), observation(0)
    adder.observe_first(dm_env.restart(shown))
    for t in range(3):
        shown[:] = observation(t + 1)
        adder.observe(t, dm_env.transition(0.0, shown) if t < 2 else dm_env.termination(0.0, shown))
    first, second = (StepSequence(*data) for data in read(client))
    np.testing.assert_array_equal(first.observation[0, :, 0], [0, 1, 2])
    np.testing.assert_array_equal(second.observation[0, :2, 0], [2, 3])


def test_a_cut_off_episode_keeps_its_last_discount(replay):
    client = replay(sequence_signature(SPEC, 4))
    play(make(client, 4, 3), 2, discount=1.0)
    (data,) = read(client)
    np.testing.assert_allclose(data[3][0], [0.9, 0.9, 0, 0])
    np.testing.assert_array_equal(data[4][0], [1, 1, 0, 0])


@pytest.mark.parametrize("steps", range(1, 14))
@pytest.mark.parametrize(("length", "period"), [(2, 1), (4, 1), (4, 2), (4, 3), (5, 3), (6, 5)])
def test_every_action_is_with_its_next_observation_in_a_sequence(replay, length, period, steps):
    client = replay(sequence_signature(SPEC, length))
    adder = make(client, length, period)
    play(adder, steps)
    play(adder, steps)  # the second episode begins anew
    seen = []
    for data in read(client):
        sequence = StepSequence(*data)
        rows = [int(t) for t, mask in zip(sequence.observation[0, :-1, 0], sequence.mask[0, :-1], strict=True) if mask]
        seen.extend(rows)
        for t, next_t in zip(rows, sequence.observation[0, 1:, 0], strict=False):
            assert next_t == t + 1
    assert set(seen) == set(range(steps))
    assert len(read(client)) == 0
    if period == length - 1:
        assert sorted(seen) == sorted(2 * list(range(steps)))  # each once an episode


def test_extras_of_each_step_and_the_state_before_the_first(replay):
    client = replay(sequence_signature(SPEC, 4, extras=EXTRAS, state=STATE))
    play(
        make(client, 4, 2),
        5,
        extras=lambda t: {"logits": np.full(3, t, np.float32)},
        state=lambda t: (np.full(4, t, np.float32), np.full(4, -t, np.float32)),
    )
    first, second = (StepSequence(*data) for data in read(client))
    np.testing.assert_array_equal(first.extras["logits"][0, :, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(second.extras["logits"][0, :, 1], [2, 3, 4, 0])
    assert first.state[0].shape == (1, 4)
    np.testing.assert_array_equal(second.state[1][0], np.full(4, -2.0))


def test_an_episode_that_was_left_does_not_reach_into_the_next(replay):
    client = replay(sequence_signature(SPEC, 3))
    adder = make(client, 3, 2)
    adder.observe_first(dm_env.restart(observation(7)))
    adder.observe(1, dm_env.transition(1.0, observation(8)))
    play(adder, 2)
    (data,) = read(client)
    np.testing.assert_array_equal(data[0][0, :, 0], [0, 1, 2])


@pytest.mark.parametrize(("length", "period"), [(1, 1), (4, 0), (4, 4)])
def test_lengths_that_leave_steps_out_are_refused(replay, length, period):
    client = replay(None)
    with pytest.raises(ValueError, match="period from 1 to length - 1"):
        make(client, length, period)


def test_a_sequence_that_spans_episodes_goes_on_with_the_next(replay):
    client = replay(sequence_signature(SPEC, 4))
    adder = make(client, 4, 3, spans_episodes=True)
    for steps in (2, 1, 4):
        play(adder, steps)
    sequences = [StepSequence(*data) for data in read(client)]
    assert len(sequences) == 3  # of rows 0 to 3, 3 to 6 and 6 to 9
    np.testing.assert_array_equal(
        [s.observation[0, :, 0] for s in sequences], [[0, 1, 2, 0], [0, 1, 0, 1], [1, 2, 3, 4]]
    )
    np.testing.assert_array_equal([s.mask[0] for s in sequences], [[1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 0]])
    np.testing.assert_array_equal([s.reward[0] for s in sequences], [[1, 2, 0, 1], [1, 0, 1, 2], [2, 3, 4, 0]])
    np.testing.assert_allclose(sequences[0].discount[0], [0.9, 0, 0, 0])


@pytest.mark.parametrize("length", [2, 3, 5, 8])
def test_spanning_sequences_hold_every_action_once_with_its_next_observation(replay, length):
    client = replay(sequence_signature(SPEC, length))
    adder = make(client, length, length - 1, spans_episodes=True)
    played = [1, 4, 2, 7, 3, 5, 1, 1, 6]
    for steps in played:
        play(adder, steps)
    seen = []
    for data in read(client):
        sequence = StepSequence(*data)
        for t in np.flatnonzero(sequence.mask[0, :-1]):
            seen.append(int(sequence.observation[0, t, 0]))
            assert sequence.observation[0, t + 1, 0] == seen[-1] + 1
    everything = [t for steps in played for t in range(steps)]
    assert seen == everything[: len(seen)]
    assert len(seen) > len(everything) - length  # less than a sequence is left


def test_spanning_sequences_have_a_state_wherever_they_begin(replay):
    client = replay(sequence_signature(SPEC, 3, state=STATE))
    adder = make(client, 3, 2, spans_episodes=True)
    for _ in range(4):  # three rows each: every second sequence begins with a last observation
        play(adder, 2, state=lambda t: (np.full(4, t, np.float32), np.full(4, -t, np.float32)))
    sequences = [StepSequence(*data) for data in read(client)]
    assert [int(s.mask[0, 0]) for s in sequences] == [1, 0, 1, 1, 0]
    assert [int(s.state[0][0, 0]) for s in sequences if s.mask[0, 0]] == [0, 1, 0]


def test_an_episode_that_was_left_does_not_reach_into_the_next_where_sequences_span(replay):
    client = replay(sequence_signature(SPEC, 3))
    adder = make(client, 3, 2, spans_episodes=True)
    play(adder, 1)
    adder.observe_first(dm_env.restart(observation(7)))
    adder.observe(1, dm_env.transition(1.0, observation(8)))
    play(adder, 2)
    data = read(client)
    np.testing.assert_array_equal([d[0][0, :, 0] for d in data], [[0, 1, 7], [0, 1, 2]])


def test_observations_may_be_trees_and_rewards_arrays(replay):
    spec = EnvironmentSpec(
        observations={"b": {"mask": specs.Array((3,), np.int8)}, "a": specs.Array((2,), np.float32)},
        actions=specs.BoundedArray((2,), np.int32, 0, 2),
        rewards=specs.Array((2,), np.float32),
        discounts=specs.Array((2,), np.float32),
    )
    client = replay(sequence_signature(spec, 3))
    adder = make(client, 3, 2)
    seen = {"b": {"mask": np.ones(3, np.int8)}, "a": np.ones(2, np.float32)}
    adder.observe_first(dm_env.restart(seen))
    rewards, discounts = np.array([1.0, -1.0], np.float32), np.array([1.0, 0.0], np.float32)
    for kind in (dm_env.StepType.MID, dm_env.StepType.LAST):
        adder.observe(np.array([1, 2], np.int32), dm_env.TimeStep(kind, rewards, discounts, seen))
    adder.close()
    (sequence,) = read(client)
    np.testing.assert_array_equal(sequence.reward[0], [[1, -1], [1, -1], [0, 0]])
    np.testing.assert_array_equal(sequence.discount[0], np.float32([[0.9, 0], [0.9, 0], [0, 0]]))
    np.testing.assert_array_equal(sequence.action[0], [[1, 2], [1, 2], [0, 0]])
    np.testing.assert_array_equal(sequence.mask[0], [1, 1, 0])
    assert sequence.observation["b"]["mask"].shape == (1, 3, 3)
    assert sequence.observation["a"].shape == (1, 3, 2)
