"""Names of callables and plain data of arguments."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import json
import math
import operator
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.address import Address
from topology.graph_values import look_up, name_of, plain, short_text, stable
from topology.handle import Deferred


class Learner:
    def __init__(self, *args: Any) -> None:
        self.args = args

    def step(self):
        pass

    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def helper():
        pass

    def __call__(self):
        pass


class Special(Learner):
    pass


class Mode(enum.Enum):
    SYNC = 1


class Level(enum.IntEnum):
    HIGH = 3


class Spec(NamedTuple):
    shape: Any
    dtype: Any


@dataclasses.dataclass(frozen=True)
class Config:
    rate: Any = 0.5
    hidden: Any = (64, 64)


def read(value):
    return plain(value, lambda owner: "node/0")


def local():
    class Inner:
        def run(self):
            pass

    return Inner, lambda: None


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, ""),
        (Learner, "Learner"),
        (Learner().step, "Learner.step"),
        (Special().step, "Special.step"),
        (Special.make, "Special.make"),
        (Learner.helper, "Learner.helper"),
        (Learner(), "Learner"),
        (read, "read"),
        (lambda: None, "lambda"),
        (local()[0], "Inner"),
        (local()[0]().run, "Inner.run"),
        (local()[1], "lambda"),
        (functools.partial(Learner().step, 1), "partial(Learner.step)"),
        (functools.partial(functools.partial(read, 1), 2), "partial(read)"),
        (functools.cache(read), "read"),
        (len, "len"),
        ([].append, "list.append"),
        (operator.attrgetter("x"), "attrgetter"),
        (np.linspace, "linspace"),
    ],
)
def test_names_of_callables(value, name):
    assert name_of(value) == name


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (2.5, 2.5),
        ("text", "text"),
        (math.nan, "<nan>"),
        (-math.inf, "<-inf>"),
        ([1, (2, [3])], [1, [2, [3]]]),
        ({"b": 1, "a": {2: 3}}, {"a": {"2": 3}, "b": 1}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (np.float64(0.4), 0.4),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(2.5), 2.5),
        (np.array([math.nan]), ["<nan>"]),
        (np.datetime64("2026-01-01"), "<datetime64[D][] crc32="),
        (np.zeros((84, 84, 4), np.uint8), "<uint8[84, 84, 4] crc32="),
        (np.array([object()]), "<object[1]>"),
        (Mode.SYNC, "<Mode.SYNC>"),
        (Level.HIGH, "<Level.HIGH>"),
        (Config(), {"<Config>": {"rate": 0.5, "hidden": [64, 64]}}),
        (Spec((1,), "f4"), {"<Spec>": {"shape": [1], "dtype": "f4"}}),
        (functools.partial(read, 1, rate=2), {"<partial(read)>": {"args[0]": 1, "rate": 2}}),
        (Deferred(Learner, 1), {"<Deferred(Learner)>": {"args[0]": 1}}),
        (Config, "<Config>"),
        (Learner(), "<Learner>"),
        (Learner().step, "<Learner.step>"),
        (lambda: None, "<lambda>"),
        (len, "<len>"),
        (json, "<module json>"),
        (object(), "<object>"),
        (b"raw", "<b'raw'>"),
        (bytes(1000), "<bytes of 4003 characters>"),
        (2 + 1j, "<(2+1j)>"),
        (fractions.Fraction(1, 3), "<Fraction(1, 3)>"),
        (decimal.Decimal("0.1"), "<Decimal('0.1')>"),
        (range(3), "<range(0, 3)>"),
        (datetime.timedelta(seconds=2), "<datetime.timedelta(seconds=2)>"),
        (pathlib.PurePosixPath("/tmp/x"), "/tmp/x"),
        (np.dtype("f4"), "<Float32DType>"),
        (Address("x"), "<address of node/0>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_data(value, expected):
    result = read(value)
    if isinstance(expected, str) and expected.endswith("crc32="):
        assert result.startswith(expected)
        assert result == read(value)
    else:
        assert result == expected
        assert type(result) is type(expected)


def test_arrays_with_other_contents_differ():
    zeros = np.zeros(1000)
    ones = np.ones(1000)
    assert read(zeros) != read(ones)
    assert read(zeros) == read(zeros[::-1])  # not contiguous, same contents


def test_subclasses_of_numbers_and_text_become_the_built_in_types():
    class Text(str):
        __slots__ = ()

        def __str__(self):
            return "other"

    class Number(float):
        pass

    assert [type(part) for part in read([Text("x"), Number(1.5)])] == [str, float]
    assert read(Text("x")) == "x"


def test_a_container_that_holds_itself():
    value: list[Any] = [1]
    value.append({"me": value})
    assert read(value) == [1, {"me": "<cycle>"}]
    assert read([value[0], value[0]]) == [1, 1]
    shared = [2]
    assert read([shared, shared]) == [[2], [2]]


def test_no_memory_address_appears():
    text = json.dumps(read({object(): [object(), Learner().step], "x": (functools.partial(read, object()),)}))
    assert "0x" not in text
    assert stable(repr(object())) == "<object object>"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=3), parts, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_json_data_stays_as_it_is(value):
    assert read(value) == value
    assert json.loads(json.dumps(read(value), allow_nan=False)) == value


@given(JSON, st.integers(1, 30))
def test_short_text_is_one_short_line(value, width):
    text = short_text(value, width + 30)
    assert len(text) <= width + 30
    assert "\n" not in text


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("", "whole"),
        ("[0].rate", 0.1),
        ("[0].hidden[1]", 32),
        ("[1]['deep'][0]", "x"),
        ("[1][deep][0]", "x"),
        ("[1][3]", "three"),
    ],
)
def test_parts_are_found_by_path(path, part):
    value = read([Config(0.1, [64, 32]), {"deep": ["x"], 3: "three"}])
    assert look_up(value, path) == (value if part == "whole" else part)


@pytest.mark.parametrize("path", ["[2]", "[0].rat", "[0].rate.x", ".x", "[1]['deep']x", "junk"])
def test_a_path_to_nothing(path):
    with pytest.raises(LookupError):
        look_up(read([Config(0.1), {"deep": ["x"]}]), path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.logspace(1, 8, 4, base=0.4)[1], "0.0471556"),
        (Config(), "Config(rate=0.5, hidden=[64, 64])"),
        (Config(hidden=list(range(40))), "Config(...)"),
        (list(range(40)), "[40 items]"),
        ({str(i): i for i in range(40)}, "{40 items}"),
        ({"a": None}, "{a: None}"),
        ("x" * 100, "'" + "x" * 56 + "..."),
        (Learner(), "<Learner>"),
        ("name", "'name'"),
    ],
)
def test_short_texts(value, text):
    assert short_text(read(value)) == text


def test_numpy_is_not_imported_for_a_program_without_arrays():
    script = (
        "import sys; from topology.graph_values import plain; print(plain([1, 2.5, object()], str));"
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
