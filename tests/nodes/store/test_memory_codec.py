"""The codec: what goes in comes out, and bytes of others come to nothing."""

from __future__ import annotations

import contextlib
import json
import pickle
import struct

import hypothesis
import hypothesis.extra.numpy as arrays_of
import hypothesis.strategies as st
import numpy as np
import pytest

from topology.errors import StoreDataError
from topology.nodes.store import codec, packing
from topology.nodes.store.packing import AUTO, Packer

DTYPES = ["?", "u1", "i2", ">i4", "<u8", "f2", "f4", "f8", "c8", "c16", "M8[us]", "m8[s]", "S3", "U2"]
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(max_size=10))
PACKINGS = [None, "zlib", *(name for name in ("lz4", "zstd") if name in packing.PACKINGS)]


def available(name):
    if name is not None:
        pytest.importorskip({"lz4": "lz4.block", "zstd": "zstandard", "zlib": "zlib"}[name])
    return name


def same(left, right):
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("name", PACKINGS)
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=40)
def test_what_goes_in_comes_out(name, data):
    shapes = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=20)
    one = st.sampled_from(DTYPES).flatmap(lambda dtype: arrays_of.arrays(np.dtype(dtype), shapes))
    arrays = data.draw(st.dictionaries(st.text(min_size=1, max_size=5), one, max_size=4))
    meta = data.draw(st.dictionaries(st.text(min_size=1, max_size=5), PLAIN, max_size=4))
    frame = codec.encode_bytes(arrays, meta, packing=available(name))
    got = codec.decode(frame)
    assert list(got.arrays) == list(arrays)
    for key, array in arrays.items():
        same(got.arrays[key], array)
    assert repr(got.meta) == repr(meta)  # which tells True from 1, and nan from nothing
    assert codec.size_of(codec.encode(arrays, meta, packing=name)) == len(frame)


def test_types_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="it comes with jax")
    array = np.arange(6, dtype=np.float32).reshape(2, 3).astype(ml_dtypes.bfloat16)
    got = codec.decode(codec.encode_bytes({"x": array, "y": array.astype(ml_dtypes.float8_e4m3fn)}))
    same(got.arrays["x"], array)
    assert got.arrays["y"].dtype == ml_dtypes.float8_e4m3fn


def test_large_arrays_are_not_copied():
    array = np.zeros((100, 100))
    parts = codec.encode({"small": np.zeros(3), "x": array, "turned": array.T})
    assert sum(np.shares_memory(np.frombuffer(part, "u1"), array) for part in parts) == 1
    data = bytearray(codec.encode_bytes({"x": array}))
    view = codec.decode(data).arrays["x"]
    view[0, 0] = 1
    assert np.frombuffer(data, np.float64, 1, len(data) - array.nbytes)[0] == 1
    assert codec.decode(bytes(data)).arrays["x"].flags.writeable is False
    assert codec.decode(bytes(data), copy=True).arrays["x"].flags.writeable is True


def test_arrays_are_aligned_within_a_frame():
    frame = codec.encode_bytes(
        {"a": np.zeros(3, "u1"), "b": np.arange(5.0), "c": np.zeros(2000, "u1"), "d": np.arange(9)}
    )
    start = np.frombuffer(frame, "u1").__array_interface__["data"][0]
    got = codec.decode(frame)
    assert [(array.__array_interface__["data"][0] - start) % 64 for array in got.arrays.values()] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"it": np.array([{}], object)}, "array 'it'.*pickled"),
        ({"it": np.zeros(2, [("a", "i4")])}, "of its own"),
        ({"it": ["text", None]}, "pickled"),
        ({"it": np.zeros(2, "V5")}, "not kept"),
    ],
)
def test_what_would_have_to_be_pickled_is_refused(arrays, text):
    with pytest.raises(TypeError, match=text):
        codec.encode(arrays)


def test_numbers_of_numpy_are_plain():
    frame = codec.encode_bytes({}, {"i": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True), "s": np.str_("a")})
    meta = codec.decode(frame).meta
    assert meta == {"i": 3, "f": 0.5, "b": True, "s": "a"}
    assert type(meta["b"]) is bool


@pytest.mark.parametrize("number", [1 << 64, -(1 << 63) - 1])
def test_integers_have_64_bits(number):
    with pytest.raises(ValueError, match="64 bits"):
        codec.encode({}, {"it": number})


# --- bytes of others --------------------------------------------------------------------------------------------------


def frame(layout, rest, body=b""):
    layout, rest = (text if isinstance(text, bytes) else json.dumps(text).encode() for text in (layout, rest))
    head = struct.pack("<4sIII", b"tpf1", len(layout), len(rest), 0) + layout + rest
    return head + bytes(-len(head) % 64) + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"tpf1",
        pickle.dumps([1, 2]),
        struct.pack("<4sIII", b"tpf1", 0xFFFFFFFF, 0, 0),
        struct.pack("<4sIII", b"tpf1", 2, 2, 1) + b"[][]",
        frame(b"not json", [{}]),
        frame(b"[" * 5000, [{}]),
        frame({}, [{}]),
        frame([], {}),
        frame([], [[]]),
        frame([], [{"": 1}]),
        frame([], [{"a": [1]}]),
        frame([], [{"a": 1 << 70}]),
        frame([["x", "f8"]], [{}]),
        frame([[1, "<f8", [1]]], [{}], b" " * 8),
        frame([["x", "|O", [1]]], [{}], b" " * 8),
        frame([["x", "O", [1]]], [{}], b" " * 8),
        frame([["x", "<f8,<f8", [1]]], [{}], b" " * 16),
        frame([["x", "float64", [1]]], [{}], b" " * 8),
        frame([["x", "__class__", [1]]], [{}], b" " * 8),
        frame([["x", "<f8", [-1]]], [{}]),
        frame([["x", "<f8", [True]]], [{}], b" " * 8),
        frame([["x", "<f8", [1.0]]], [{}], b" " * 8),
        frame([["x", "<f8", "11"]], [{}], b" " * 8),
        frame([["x", "<f8", [1] * 40]], [{}], b" " * 8),
        frame([["x", "<f8", [1 << 40, 1 << 40]]], [{}], b" " * 8),
        frame([["x", "<f8", [0, 1 << 47, 1 << 47]]], [{}]),
        frame([["x", "<f8", [2]]], [{}], b" " * 8),
        frame([["x", "<f8", [1]]], [{}], b" " * 9),
        frame([["x", "<f8", [1]], ["x", "<f8", [1]]], [{}], b" " * 72),
        frame([["x", "|u1", [500]]], [{}, "rar", [8]], b" " * 8),
        frame([["x", "|u1", [500]]], [{}, "zlib", [8]], b" " * 8),
        frame([["x", "|u1", [500]]], [{}, "zlib", [501]], b" " * 501),
        frame([["x", "|u1", [500]]], [{}, "zlib", [-8]], b" " * 8),
        frame([["x", "|u1", [500]]], [{}, "zlib", []], b" " * 8),
    ],
)
def test_bytes_of_others_are_refused(data):
    with pytest.raises(StoreDataError):
        codec.decode(data)


@hypothesis.given(data=st.binary(max_size=300))
def test_any_bytes_are_refused_or_decoded(data):
    good = codec.encode_bytes({"x": np.arange(20), "y": np.zeros(300, "u1")}, {"a": 1}, packing="zlib")
    for bytes_ in (data, b"tpf1" + data, good[: len(data)] + data, data + good[len(data) :]):
        with contextlib.suppress(StoreDataError):
            codec.decode(bytes_)


@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
def test_a_bomb_does_not_go_off(name):
    available(name)
    bomb = codec.encode_bytes({"x": np.zeros(10_000_000, "u1")}, packing=name)
    assert len(bomb) < 100_000
    with pytest.raises(StoreDataError, match="at most 1000"):
        codec.decode(bomb, max_bytes=1000)
    # One that unpacks to more than it says.
    body = packing.pack(name, bytes(10_000_000))
    with pytest.raises(StoreDataError, match="unpack"):
        codec.decode(frame([["x", "|u1", [50_000]]], [{}, name, [len(body)]], bytes(body)))


def test_a_damaged_frame_is_refused_wherever_it_is_cut():
    whole = codec.encode_bytes({"x": np.arange(20), "y": np.zeros((2, 3))}, {"a": 1})
    for end in range(len(whole)):
        with pytest.raises(StoreDataError):
            codec.decode(whole[:end])


def test_packing_by_itself_is_tried_again_and_again_and_given_up_where_it_does_not_pay():
    pytest.importorskip("lz4")
    packer = Packer(AUTO)
    assert packer.choose() == "lz4"
    packer.note(1000, 699)
    assert packer.choose() == "lz4"
    packer.note(1000, 701)
    assert [packer.choose() for _ in range(16)] == [None] * 15 + ["lz4"]
    asked_for = Packer("zlib")
    asked_for.note(1000, 1000)
    assert asked_for.choose() == "zlib"
    assert Packer(None).choose() is None


def test_packing_by_itself_is_none_where_the_package_is_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert Packer(AUTO).choose() is None
