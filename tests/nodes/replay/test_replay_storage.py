import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.nodes.replay.columns import ArrayColumn, ColumnSpec, ObjectColumn
from topology.nodes.replay.compression import Compression, find_codec
from topology.nodes.replay.storage import Allocator, RowGroup


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
    column = ArrayColumn(np.dtype(np.float32), (3,), segment_bytes=12 * cells_per_segment)
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
        column = ArrayColumn(np.dtype(dtype), ())
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


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def fill(rows_of, count):
    rows = rows_of.take(count)
    for column in rows_of.columns:
        column.write(rows, np.ones((count, *column.shape), column.dtype))
    return rows


def test_memory_goes_back_when_rows_are_freed_in_the_mass():
    rows_of = group((np.uint8, (1 << 16,)))
    before = resident_bytes()
    rows = fill(rows_of, 1000)  # 65 MB
    assert resident_bytes() - before > 60e6
    kept = rows[[3, 700]]
    rows_of.release(np.setdiff1d(rows, kept))
    assert resident_bytes() - before < 20e6
    out = np.empty((2, 1 << 16), np.uint8)
    rows_of.columns[0].read(kept, out)
    assert out.all()
    assert sorted(rows_of.take(2).tolist()) == [0, 1]
    rows_of.release(np.concatenate([kept, [0, 1]]))
    assert rows_of.live_rows == 0


def test_segments_that_are_empty_are_dropped():
    rows_of = group((np.uint8, (1 << 16,)), segment_bytes=1 << 20)
    rows = fill(rows_of, 1000)
    assert len(rows_of.columns[0]._segments) == 63
    rows_of.release(rows)
    assert rows_of._allocator.high < 300
    assert len(rows_of.columns[0]._segments) < 20
    again = fill(rows_of, 1000)
    assert sorted(again.tolist()) == list(range(1000))


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 2**31)), max_size=40))
def test_trimming_keeps_every_row_in_use(calls):
    rows_of = group((np.int64, (40_000,)), segment_bytes=1 << 20)
    held = {}
    for take, count, seed in calls:
        rng = np.random.default_rng(seed)
        if take:
            rows = rows_of.take(count)
            values = rng.integers(0, 1 << 40, count)
            rows_of.columns[0].write(rows, np.broadcast_to(values[:, None], (count, 40_000)))
            assert not held.keys() & set(rows.tolist())
            held.update(zip(rows.tolist(), values.tolist(), strict=True))
        elif held:
            some = rng.choice(sorted(held), min(count, len(held)), replace=False)
            rows_of.release(some)
            for row in some.tolist():
                del held[row]
        out = np.empty((1, 40_000), np.int64)
        for row, value in held.items():
            rows_of.columns[0].read(np.array([row]), out)
            assert (out == value).all()
        assert rows_of.live_rows == len(held)


def test_cells_of_bytes_are_let_go_of():
    column = ObjectColumn()
    column.reserve(70_000)
    rows = np.array([0, 69_999])
    column.write(rows, np.array([b"a", b"bc"], object))
    out = np.empty(2, object)
    column.read(rows[::-1].copy(), out)
    assert out.tolist() == [b"bc", b"a"]
    column.discard(rows)
    column.read(rows, out)
    assert out.tolist() == [None, None]


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd"])
def test_compressed_columns(codec):
    package = {"zlib": "zlib", "lz4": "lz4", "zstd": "zstandard"}[codec]
    if importlib.util.find_spec(package) is None:
        with pytest.raises(ImportError, match=r"rl-topology\[compression\]"):
            Compression({"*": codec})
        return
    compression = Compression({"*": codec})
    rows_of = RowGroup(
        [ColumnSpec(("frame",), np.dtype(np.uint8), (84, 84)), ColumnSpec(("r",), np.dtype(np.float32), ())],
        compression,
    )
    rows = rows_of.take(50)
    frames = np.zeros((50, 84, 84), np.uint8)
    frames[:, 10:12] = np.arange(50)[:, None, None]
    rows_of.columns[0].write(rows, frames)
    out = np.empty((3, 84, 84), np.uint8)
    rows_of.columns[0].read(rows[[4, 4, 49]], out)
    np.testing.assert_array_equal(out, frames[[4, 4, 49]])
    packed = sum(len(cell) for cell in rows_of.columns[0]._packed._segments[0][:50])
    assert packed < frames.nbytes / 20
    rows_of.release(rows)
    assert rows_of.columns[0]._packed._segments[0][0] is None


def test_unknown_codecs():
    with pytest.raises(ValueError, match=r"no compression 'gzip': there are zlib, lz4 and zstd"):
        find_codec("gzip")
