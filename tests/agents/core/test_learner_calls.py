"""A learner that runs begins a call before it tells of the one before, and tells of every one."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.learner import Learner, UpdateOutput
from topology.agents.core.replay import Batch
from topology.context import StopToken
from topology.errors import ProgramError, ProgramStopped

UPDATES = 2


class State(NamedTuple):
    steps: Any


class Batches:
    """So many batches, and then the program has stopped."""

    def __init__(self, count):
        self.events = []
        self._left = iter(range(count))

    def sample(self):
        number = next(self._left, None)
        if number is None:
            raise ProgramStopped("no more batches")
        self.events.append(f"sample {number}")
        return Batch(np.full(3, number, np.uint64), np.ones(3), 3, np.full(3, number, np.float32))

    def update_priorities(self, keys, priorities):
        assert priorities.tolist() == [float(keys[0])] * 3
        self.events.append(f"priorities {keys[0]}")

    def close(self):
        pass


@pytest.fixture
def make_learner(rows):
    def make(replay, update=None, **options):
        def learn(state, data, probabilities):
            return State(state.steps + UPDATES), UpdateOutput({"loss": jnp.ones(UPDATES)}, jnp.asarray(data))

        counter = Counter()
        learner = Learner(
            state=State(jnp.asarray(0)),
            update=update or learn,
            updates_per_call=UPDATES,
            variables={"policy": lambda state: state.steps},
            replay=replay,
            example=np.zeros(3, np.float32),
            counts=ChildCounter(counter, "learner", max_delay_s=0),
            metrics=rows,
            stop=StopToken(),
            **options,
        )
        return learner, counter

    return make


def test_a_call_is_begun_before_the_one_before_is_told_of_and_all_are(make_learner):
    replay = Batches(3)
    learner, counter = make_learner(replay)
    learner.run()
    assert replay.events == ["sample 0", "sample 1", "priorities 0", "sample 2", "priorities 1", "priorities 2"]
    assert counter.get_counts() == {"learner_steps": 3 * UPDATES}
    assert learner.steps == int(learner.state.steps) == learner.get_variables(["policy"]).version == 3 * UPDATES


def test_a_learner_that_overlaps_nothing_tells_of_each_call_before_the_next(make_learner):
    replay = Batches(2)
    learner, counter = make_learner(replay, overlaps=False)
    learner.run()
    assert replay.events == ["sample 0", "priorities 0", "sample 1", "priorities 1"]
    assert counter.get_counts() == {"learner_steps": 2 * UPDATES}


def test_a_step_is_told_of_at_once(make_learner):
    replay = Batches(2)
    learner, counter = make_learner(replay)
    learner.step()
    assert replay.events == ["sample 0", "priorities 0"]
    assert counter.get_counts() == {"learner_steps": UPDATES}


def test_weights_are_those_of_calls_that_are_done(make_learner):
    """Whoever asks does not wait for what is being computed, and does not get what may turn out not to be finite."""
    served = []

    class Asking(Batches):
        def update_priorities(self, keys, priorities):
            served.append(learner.get_variables(["policy"]).version)

    learner, _ = make_learner(Asking(3))
    learner.run()
    assert served == [UPDATES, 2 * UPDATES, 3 * UPDATES]
    assert learner.steps == 3 * UPDATES


def test_nothing_is_told_of_a_call_that_fails_though_another_was_begun(make_learner):
    def update(state, data, probabilities):
        loss = jnp.where(data[0] == 1, jnp.nan, 1.0)
        return State(state.steps + UPDATES), UpdateOutput({"loss": loss[None]}, jnp.asarray(data))

    replay = Batches(5)
    learner, counter = make_learner(replay, update)
    with pytest.raises(FloatingPointError, match=f"after {2 * UPDATES} updates"):
        learner.run()
    assert replay.events == ["sample 0", "sample 1", "priorities 0", "sample 2"]
    assert counter.get_counts() == {"learner_steps": UPDATES}
    assert learner.get_variables(["policy"]).version == UPDATES


@pytest.mark.parametrize(("told", "total"), [(5, 8), (8, 8), (9, 9)], ids=["too few", "all", "of a state that is lost"])
def test_updates_of_an_earlier_run_that_the_counter_did_not_hear_of_are_counted(make_learner, told, total):
    learner, counter = make_learner(Batches(1))
    learner.restore(State(jnp.asarray(8)))
    counter.increment(learner_steps=told)
    learner.run()
    assert learner.steps == 8 + UPDATES
    assert counter.get_counts() == {"learner_steps": total + UPDATES}


def test_an_update_that_tells_of_no_loss_is_refused(make_learner):
    def update(state, data, probabilities):
        return State(state.steps + UPDATES), UpdateOutput({"error": jnp.ones(UPDATES)})

    learner, _ = make_learner(Batches(1), update)
    with pytest.raises(ProgramError, match=r"tells of \['error'\]: it must tell of the 'loss'"):
        learner.step()


def test_nothing_is_computed_on_the_device_to_tell_of_a_call(make_learner):
    """It would be computed after the call that was begun since: the device would stand still from then on."""

    class OnDevice:
        def __init__(self, value):
            self.value = value

        def __array__(self, dtype=None, copy=None):
            return self.value

        def mean(self, *_, **__):
            raise AssertionError("computed where the learner computes")

        astype = __mul__ = __gt__ = mean

    def update(state, data, probabilities):
        return State(state.steps + UPDATES), UpdateOutput({"loss": OnDevice(np.ones(UPDATES))}, OnDevice(data))

    replay = Batches(3)
    learner, _ = make_learner(replay, update)
    learner.run()
    assert replay.events[-1] == "priorities 2"
