"""n-step transitions against sums made by hand."""

import dm_env
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.agents.core.transitions import NStepReturns


def play(maker, steps, *, end):
    """What each step completes, as (start, action, reward, discount, end). Actions are 10, 11, and so on."""
    maker.begin()
    made = []
    for i, reward in enumerate(steps, 1):
        if i < len(steps) or end is None:
            timestep = dm_env.transition(reward, i)
        else:
            timestep = dm_env.termination(reward, i) if end == "terminated" else dm_env.truncation(reward, i)
        made.append([(i - r.span, *r[1:], i) for r in maker.step(9 + i, timestep)])
    return made


def test_three_steps_of_one_episode():
    made = play(NStepReturns(3, 0.5), [1.0, 2.0, 4.0, 8.0], end="terminated")
    assert [len(step) for step in made] == [0, 0, 1, 3]
    assert made[2] == [(0, 10, 1 + 1 + 1, 0.125, 3)]
    assert made[3] == [(1, 11, 2 + 2 + 2, 0.0, 4), (2, 12, 4 + 4, 0.0, 4), (3, 13, 8.0, 0.0, 4)]


def test_a_truncated_episode_keeps_the_value_of_its_last_state():
    made = play(NStepReturns(2, 0.5), [1.0, 2.0, 4.0], end="truncated")
    assert made[2] == [(1, 11, 2 + 2, 0.25, 3), (2, 12, 4.0, 0.5, 3)]


def test_an_episode_shorter_than_n_gives_one_transition_a_step():
    made = play(NStepReturns(5, 1.0), [1.0, 1.0], end="terminated")
    assert made[1] == [(0, 10, 2.0, 0.0, 2), (1, 11, 1.0, 0.0, 2)]


def test_one_step_transitions_come_at_once():
    assert [len(step) for step in play(NStepReturns(1, 0.9), [1.0, 1.0], end="terminated")] == [1, 1]


def test_an_abandoned_episode_leaves_nothing_to_the_next():
    maker = NStepReturns(3, 1.0)
    play(maker, [5.0, 5.0], end=None)
    made = play(maker, [1.0], end="terminated")
    assert made[0] == [(0, 10, 1.0, 0.0, 1)]


def test_no_step_is_refused():
    with pytest.raises(ValueError, match="n_step must be at least 1, got 0"):
        NStepReturns(0, 0.9)


@given(
    rewards=st.lists(st.integers(-5, 5), min_size=1, max_size=30),
    n_step=st.integers(1, 6),
    end=st.sampled_from(["terminated", "truncated"]),
)
def test_every_step_starts_one_transition_with_the_right_sum(rewards, n_step, end):
    made = [row for step in play(NStepReturns(n_step, 0.5), rewards, end=end) for row in step]
    assert [row[0] for row in made] == list(range(len(rewards)))
    for start, _, reward, discount, last in made:
        assert last == min(start + n_step, len(rewards))
        span = rewards[start:last]
        assert reward == pytest.approx(sum(r * 0.5**k for k, r in enumerate(span)))
        ended = last == len(rewards) and end == "terminated"
        assert discount == (0.0 if ended else 0.5 ** len(span))
