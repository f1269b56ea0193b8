import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.nodes.replay.storage import Allocator, Column, ColumnSpec, RowGroup


def group(*columns, **options):
    return RowGroup([ColumnSpec((i,), np.dtype(dtype), shape) for i, (dtype, shape) in enumerate(columns)], **options)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30), st.integers(0, 2**31)), max_size=60))
def test_allocator_hands_out_each_number_once(calls):
    allocator, held = Allocator(), set()
    for take, count, seed in calls:
        if take:
            numbers = allocator.take(count).tolist()
            assert len(set(numbers)) == count
            assert not held & set(numbers)
            held |= set(numbers)
        elif held:
            some = np.random.default_rng(seed).choice(sorted(held), min(count, len(held)), replace=False)
            allocator.give_back(some)
            held -= set(some.tolist())
        assert allocator.live == len(held)
        assert allocator.high <= 60 * 30


def test_allocator_reuses_before_it_grows():
    allocator = Allocator()
    for _ in range(1000):
        allocator.give_back(allocator.take(50))
    assert allocator.high == 50


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.lists(st.integers(0, 199), min_size=1, max_size=100), st.integers(1, 8))
def test_columns_read_back_what_was_written_over_several_segments(rows, cells_per_segment):
    column = Column(np.dtype(np.float32), (3,), segment_bytes=12 * cells_per_segment)
    column.reserve(200)
    everything = np.arange(600, dtype=np.float32).reshape(200, 3)
    column.write(np.arange(200), everything)
    out = np.empty((len(rows), 3), np.float32)
    column.read(np.array(rows), out)
    np.testing.assert_array_equal(out, everything[rows])
    distinct = np.array(sorted(set(rows)))
    column.write(distinct, -everything[distinct])
    column.read(np.array(rows), out)
    np.testing.assert_array_equal(out, -everything[rows])


def test_zero_dimensional_and_odd_dtypes():
    for dtype in (np.bool_, np.uint8, np.float16, np.complex128, "datetime64[s]", [("a", "i4"), ("b", "f8")]):
        column = Column(np.dtype(dtype), ())
        column.reserve(4)
        values = np.arange(3).astype(np.dtype(dtype)) if not isinstance(dtype, list) else np.ones(3, dtype)
        column.write(np.array([0, 3, 1]), values)
        out = np.empty(2, dtype)
        column.read(np.array([3, 0]), out)
        assert out.tolist() == values[[1, 0]].tolist()


def test_rows_live_as_long_as_something_refers_to_them():
    rows_of = group((np.int32, ()))
    rows = rows_of.take(3)
    rows_of.retain(np.array([[rows[0], rows[1]], [rows[1], rows[2]]]))
    rows_of.release(rows)
    assert rows_of.live_rows == 3
    rows_of.release(np.array([rows[0], rows[1]]))
    assert rows_of.live_rows == 2
    rows_of.release(np.array([rows[1], rows[2], rows[2]])[:2])
    assert rows_of.live_rows == 0
    assert sorted(rows_of.take(3).tolist()) == sorted(rows.tolist())


def test_a_row_released_twice_in_one_call_is_freed_once():
    rows_of = group((np.int32, ()))
    rows = rows_of.take(1)
    rows_of.retain(rows)
    rows_of.release(np.array([rows[0], rows[0]]))
    assert rows_of.live_rows == 0
    assert len(set(rows_of.take(2).tolist())) == 2
