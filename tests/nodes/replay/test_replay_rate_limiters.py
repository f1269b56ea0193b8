import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.nodes.replay.rate_limiters import (
    LimiterState,
    MinSize,
    Queue,
    RateLimiter,
    SampleToInsertRatio,
    Stack,
)

limiters = st.one_of(
    st.builds(MinSize, st.integers(1, 20)),
    st.builds(Queue, st.integers(1, 20)),
    st.builds(
        lambda ratio, size, slack: SampleToInsertRatio(ratio, size, slack * max(1.0, ratio)),
        st.floats(0.01, 50),
        st.integers(1, 20),
        st.floats(1, 10),
    ),
    st.builds(
        lambda ratio, size, low, span: RateLimiter(ratio, size, low, low + span),
        st.floats(0.01, 50),
        st.integers(1, 20),
        st.floats(-100, 100),
        st.floats(0, 100),
    ),
)


@settings(deadline=None, derandomize=True)
@given(limiters, st.lists(st.tuples(st.sampled_from("isd"), st.integers(1, 30)), max_size=40))
def test_lets_pass_exactly_what_the_inequality_allows(limiter, calls):
    state = LimiterState(limiter)
    for kind, count in calls:
        if kind == "i":
            passed = state.insertable(count)
            expected = 0
            probe = LimiterState(limiter)
            probe.inserts, probe.samples, probe.deletes = state.inserts, state.samples, state.deletes
            while expected < count and probe.can_insert(1):
                probe.inserts += 1
                expected += 1
            assert passed == expected
            state.inserts += passed
            error = state.inserts * limiter.samples_per_insert - state.samples
            assert not passed or error <= limiter.max_diff or state.size <= limiter.min_size_to_sample
        elif kind == "s":
            passed = state.samplable(count)
            assert state.can_sample(passed) or not passed
            assert passed == count or not state.can_sample(passed + 1)
            state.samples += passed
            error = state.inserts * limiter.samples_per_insert - state.samples
            assert not passed or (error >= limiter.min_diff and state.size >= limiter.min_size_to_sample)
        else:
            state.deletes += min(count, state.size)


def test_deletes_below_the_minimum_block_samples_and_let_inserts_pass():
    state = LimiterState(SampleToInsertRatio(1.0, 2, 2.0))
    state.inserts, state.deletes = 4, 0
    assert state.can_sample(1)
    assert not state.can_insert(1)
    state.deletes = 3
    assert not state.can_sample(1)
    assert state.can_insert(1)


def test_min_size_waits_for_items_only():
    state = LimiterState(MinSize(3))
    state.inserts = 2
    assert not state.can_sample(1)
    state.inserts = 3
    assert state.can_sample(10**9)
    assert state.can_insert(10**9)


@pytest.mark.parametrize("make", [Queue, Stack])
def test_queue_and_stack_bound_both_sides(make):
    state = LimiterState(make(2))
    assert state.insertable(5) == 2
    state.inserts = 2
    assert not state.can_insert(1)
    assert state.samplable(5) == 2


def test_number_as_error_buffer_is_centred_on_the_start_of_stage_two():
    limiter = SampleToInsertRatio(2.0, 10, 4.0)
    assert (limiter.min_diff, limiter.max_diff) == (16.0, 24.0)
    assert SampleToInsertRatio(2.0, 10, (16.0, 24.0)) == limiter


@pytest.mark.parametrize(
    ("ratio", "size", "buffer"),
    [
        (0.5, 10, 0.9),  # less than one sample
        (2.0, 10, 1.9),  # less than one insert
        (1.0, 10, (5.0, 6.0)),  # too narrow
        (2.0, 10, (10.0, 13.9)),
        (1.0, 10, (11.0, 20.0)),  # above min_size: samples could never begin
        (0.0, 10, 10.0),
        (-1.0, 10, 10.0),
        (1.0, 0, 10.0),
        (1.0, -1, 10.0),
    ],
)
def test_ratio_refuses_settings_that_block_for_ever(ratio, size, buffer):
    with pytest.raises(ValueError, match=r"error_buffer|samples_per_insert|min_size_to_sample"):
        SampleToInsertRatio(ratio, size, buffer)


def test_a_range_below_the_minimum_is_allowed():
    SampleToInsertRatio(1.0, 10, (0.0, 5.0))


@pytest.mark.parametrize("size", [0, -1])
def test_min_size_must_be_positive(size):
    with pytest.raises(ValueError, match="min_size_to_sample"):
        MinSize(size)


def test_general_limiter_refuses_an_empty_range():
    with pytest.raises(ValueError, match="min_diff"):
        RateLimiter(1.0, 1, 2.0, 1.0)


def test_pickles_and_compares():
    limiter = SampleToInsertRatio(8.0, 100, 80.0)
    assert pickle.loads(pickle.dumps(limiter)) == limiter
    assert hash(limiter) == hash(SampleToInsertRatio(8.0, 100, 80.0))
    assert limiter != MinSize(100)
    assert "min_size_to_sample=100" in repr(limiter)
