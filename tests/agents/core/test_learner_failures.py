"""A learner whose loss is not finite says what to do: about the environment, if that is to blame."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.learner import Learner, UpdateOutput
from topology.agents.core.replay import Batch
from topology.agents.core.transitions import Transition
from topology.context import StopToken


class State(NamedTuple):
    steps: Any


class Batches:
    def __init__(self, observations):
        self._data = Transition(
            observations, np.arange(3), np.ones(3, np.float32), np.ones(3, np.float32), observations
        )

    def sample(self):
        return Batch(np.arange(3, dtype=np.uint64), np.ones(3), 3, self._data)

    def update_priorities(self, keys, priorities):
        raise AssertionError("priorities that are not finite were sent to the table")

    def close(self):
        pass


def make_learner(rows, observations):
    def update(state, data, probabilities):
        return State(state.steps + 1), UpdateOutput({"loss": jnp.asarray([1.0, math.nan])}, jnp.full(3, math.nan))

    return Learner(
        state=State(0),
        update=update,
        updates_per_call=2,
        variables={},
        replay=Batches(observations),
        example=observations,
        counts=ChildCounter(Counter(), "learner", max_delay_s=0),
        metrics=rows,
        stop=StopToken(),
    )


def fail(rows, observations):
    learner = make_learner(rows, observations)
    with pytest.raises(FloatingPointError) as error:
        learner.step()
    return str(error.value)


def test_the_settings_are_to_blame_where_all_that_was_seen_is_finite(rows):
    text = fail(rows, np.zeros((3, 2), np.float32))
    assert text == "The loss is nan after 2 updates: lower learning_rate or max_gradient_norm"


def test_the_environment_is_to_blame_where_what_was_seen_is_not_finite(rows):
    observations = np.zeros((3, 2), np.float32)
    observations[1] = math.inf
    assert "not finite (o_tm1 of 1, o_t of 1): see to it in the environment" in fail(rows, observations)


def test_a_program_that_ends_before_the_first_update_says_so(rows, caplog):
    learner = make_learner(rows, np.zeros((3, 2), np.float32))
    learner._stop.set()
    learner.run()
    assert "the program ended before the first update" in caplog.text
