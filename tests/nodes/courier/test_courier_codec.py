"""What goes in comes out, arrays as the same arrays; errors keep what they can."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import typing

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from topology import errors
from topology.nodes.courier import codec
from topology.nodes.courier.keys import canonical_key


def round_trip(value):
    body, buffers = codec.encode(value)
    return codec.decode(body, [bytearray(buffer) for buffer in buffers])


dtypes = (
    hnp.scalar_dtypes()
    | hnp.unicode_string_dtypes()
    | hnp.byte_string_dtypes()
    | hnp.array_dtypes(subtype_strategy=hnp.scalar_dtypes(), max_size=3)
)
arrays = hnp.arrays(dtype=dtypes, shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))


def same(left, right):
    assert type(left) is type(right)
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert left.tobytes() == right.tobytes()


@given(arrays, st.sampled_from(["C", "F", "strided", "reversed", "transposed"]))
def test_arrays_of_every_kind_and_layout(array, layout):
    if layout in {"C", "F"}:
        array = array.copy(layout)
    elif layout == "transposed":
        array = array.T
    elif array.ndim:
        array = array[:: 2 if layout == "strided" else -1]
    result = round_trip([array])[0]
    same(result, array)
    assert result.flags.writeable
    assert result.flags.f_contiguous or not array.flags.f_contiguous


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("dtype", ["f4", "M8[ns]", "m8[s]", [("a", "i4"), ("b", "f8")], "S5", "U5", "c16", "?", ">i4"])
def test_large_and_small_arrays(size, dtype):
    array = np.zeros(size, dtype)
    body, buffers = codec.encode({"x": array})
    assert bool(buffers) == (array.nbytes >= 2048)
    assert len(body) < 4096
    same(codec.decode(body, [bytearray(b) for b in buffers])["x"], array)


def test_extension_types_travel_out_of_band():
    array = np.asarray(jnp.ones((100, 100), jnp.bfloat16))
    _, buffers = codec.encode(array)
    assert [len(buffer) for buffer in buffers] == [20_000]
    same(round_trip(array), array)


def test_arrays_are_views_until_sent():
    array = np.zeros((1000, 1000))
    for given_array in (array, array.T, array[:500]):
        _, (buffer,) = codec.encode(given_array)
        assert np.shares_memory(np.frombuffer(buffer, "u1"), array)


def test_objects_subclasses_and_scalars():
    objects = np.array([{"a": 1}, None, "x"], dtype=object)
    assert round_trip(objects).tolist() == objects.tolist()
    masked = np.ma.masked_array([1, 2], [True, False])
    assert type(round_trip(masked)) is type(masked)
    for scalar in (np.float32(1.5), np.int64(2), np.bool_(True), np.datetime64("2020-01-01")):
        result = round_trip(scalar)
        assert (type(result), result) == (type(scalar), scalar)


def test_jax_arrays_come_back_as_jax_arrays():
    array = jnp.arange(5000.0)
    result = round_trip([array])[0]
    assert type(result) is type(array)
    np.testing.assert_array_equal(result, array)


class Point(typing.NamedTuple):
    x: object
    y: object


@dataclasses.dataclass
class Record:
    a: np.ndarray
    b: str


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=5000),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            | st.builds(Point, inner, inner)
            | st.tuples(inner)
        ),
        max_leaves=10,
    )
)
def test_nested_values(value):
    assert round_trip(value) == value
    args, kwargs = codec.decode(*codec.encode_call((value,), {"k": value}))
    assert (args, kwargs) == ((value,), {"k": value})


def test_structures_of_arrays_and_shared_parts():
    array = np.arange(1000.0)
    result = round_trip({"r": Record(array, "b"), "again": array, "bytes": bytearray(b"ab")})
    assert result["again"] is result["r"].a
    assert result["bytes"] == bytearray(b"ab")


def test_more_buffers_than_a_frame_has_room_for(monkeypatch):
    monkeypatch.setattr(codec, "MAX_BUFFERS", 10)
    many = [np.full(300, i) for i in range(11)]
    assert len(codec.encode(many[:10])[1]) == 10
    assert len(codec.encode(many)[1]) == 0
    assert round_trip(many)[-1][0] == 10


def test_what_pickle_refuses_goes_by_value():
    class Local:
        def __init__(self):
            self.value = np.arange(1000)

    result = round_trip(Local())
    np.testing.assert_array_equal(result.value, np.arange(1000))
    assert round_trip(lambda x: x + 1)(1) == 2


def test_classes_of_the_main_module_go_by_value():
    program = (
        "import sys, typing\n"
        "from topology.nodes.courier import codec\n"
        "class Step(typing.NamedTuple):\n    reward: float\n"
        "body, _ = codec.encode(Step(1.5))\n"
        "sys.stdout.buffer.write(body)\n"
    )
    body = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout
    assert codec.decode(body, []).reward == 1.5


def test_neither_numpy_nor_jax_is_imported_before_it_is_needed():
    program = (
        "import sys\n"
        "from topology.nodes.courier import Server, Client, codec\n"
        "server = Server('x'); server.bind('echo', lambda x: x); server.start()\n"
        "client = Client(server.address)\n"
        "assert client.echo({'a': [1, b'x']}) == {'a': [1, b'x']}\n"
        "assert client.echo(b'x' * 1_000_000) == b'x' * 1_000_000\n"
        "client.close(); server.stop()\n"
        "heavy = {'numpy', 'jax', 'asyncio', 'multiprocessing'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "body, buffers = sys.stdin.buffer.read(), []\n"
        "assert codec.decode(body, buffers).sum() == 45\n"
    )
    body, _ = codec.encode(np.arange(10))
    subprocess.run([sys.executable, "-c", program], check=True, input=body)


def test_an_error_keeps_type_text_cause_and_notes():
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            error = ValueError("outer")
            error.add_note("a note")
            raise error from inner
    except ValueError as caught:
        body, _ = codec.encode_error(caught)
    result = codec.decode_error(body)
    assert (type(result), str(result), result.__notes__) == (ValueError, "outer", ["a note"])
    text = str(result.__cause__)
    assert "KeyError: 'inner'" in text
    assert "ValueError: outer" in text


def test_an_error_of_a_local_class_is_told_about():
    class LocalError(Exception):
        def __str__(self):
            raise RuntimeError

    body, _ = codec.encode_error(LocalError())
    result = codec.decode_error(body)
    assert isinstance(result, errors.RemoteError)
    assert "LocalError" in result.type_name
    assert "whose __str__ raised RuntimeError" in str(result)


# --- keys -----------------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.text(max_size=2) | st.binary(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=1), inner, max_size=2)
        | st.frozensets(st.integers(0, 3), max_size=2)
    ),
    max_leaves=5,
)


def shape(value):
    """A value in which equality also means equal types."""
    if isinstance(value, dict):
        return dict, {key: shape(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [shape(element) for element in value]
    return type(value), repr(value) if isinstance(value, float) else value


@given(values, values)
def test_keys_are_equal_exactly_when_the_calls_are(left, right):
    equal = shape(left) == shape(right)
    assert (canonical_key("m", (left,), {}) == canonical_key("m", (right,), {})) == equal
    assert (canonical_key("m", (), {"k": left}) == canonical_key("m", (), {"k": right})) == equal


def test_keys_ignore_order_where_order_means_nothing():
    assert canonical_key("m", (), {"a": 1, "b": 2}) == canonical_key("m", (), {"b": 2, "a": 1})
    assert canonical_key("m", ({"a": 1, "b": 2},), {}) == canonical_key("m", ({"b": 2, "a": 1},), {})
    assert canonical_key("m", (1, 2), {}) != canonical_key("m", (2, 1), {})


def test_keys_tell_arrays_apart():
    def key(array):
        return canonical_key("m", (array,), {})

    assert key(np.zeros(4)) == key(np.zeros(4))
    different = [np.zeros(4), np.ones(4), np.zeros((2, 2)), np.zeros(4, "f4"), np.zeros(4, "i8")]
    assert len({key(array) for array in different}) == len(different)
