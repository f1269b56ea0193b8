"""Handles nested in arguments: found, named by path, and turned into clients."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.address import Address
from topology.handle import Deferred, Handle, dereference, find_handles


class Number(Handle[Any]):
    """Dereferences to a new list with its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.times = 0

    @property
    def address(self) -> Address | None:
        return None

    def dereference(self) -> list[int]:
        self.times += 1
        return [self.number]


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Open:
    value: Any
    other: Any = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any
    other: Any = 0


@dataclasses.dataclass
class Slots:
    __slots__ = ("value",)
    value: Any


class Names(dict):
    """A dict of its own type, as configuration libraries have."""


def call(*args, **kwargs):
    return "called", args, kwargs


LEAVES = st.one_of(st.integers(), st.text(max_size=3), st.none(), st.builds(Number, st.integers(0, 99)))


def containers(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), parts, max_size=3),
        st.dictionaries(st.text(max_size=2), parts, max_size=3).map(Names),
        st.builds(Pair, parts, parts),
        st.builds(Open, parts, parts),
        st.builds(Frozen, parts, parts),
        st.builds(Slots, parts),
        st.builds(functools.partial, st.just(call), parts, key=parts),
        st.builds(lambda part: Deferred(call, part, key=part), parts),
    )


VALUES = st.recursive(LEAVES, containers, max_leaves=12)


def expected(value: Any) -> Any:
    """What `dereference` should give, written down once more without care for identity and speed."""
    if isinstance(value, Handle):
        return [value.number]
    if isinstance(value, Deferred):
        return value.constructor(*map(expected, value.args), **{k: expected(v) for k, v in value.kwargs.items()})
    if isinstance(value, functools.partial):
        keywords = {k: expected(v) for k, v in value.keywords.items()}
        return functools.partial(value.func, *map(expected, value.args), **keywords)
    if isinstance(value, Pair):
        return Pair(*map(expected, value))
    if isinstance(value, dict):
        return type(value)({k: expected(v) for k, v in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(map(expected, value))
    if dataclasses.is_dataclass(value):
        return type(value)(*(expected(getattr(value, field.name)) for field in dataclasses.fields(value)))
    return value


def comparable(value: Any) -> Any:
    """Partials compare by identity; everything else as it is."""
    if isinstance(value, functools.partial):
        return "partial", comparable(value.args), comparable(value.keywords)
    if isinstance(value, dict):
        return type(value), {k: comparable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [comparable(part) for part in value]
    if dataclasses.is_dataclass(value):
        return type(value), [comparable(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return value


def handles_in(value: Any) -> list[Handle[Any]]:
    return [handle for _, handle in find_handles(value)]


def holds_deferred(value: Any) -> bool:
    if isinstance(value, Deferred):
        return True
    if isinstance(value, functools.partial):
        return any(map(holds_deferred, [*value.args, *value.keywords.values()]))
    if isinstance(value, dict):
        return any(map(holds_deferred, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_deferred, value))
    if dataclasses.is_dataclass(value):
        return any(holds_deferred(getattr(value, field.name)) for field in dataclasses.fields(value))
    return False


@given(VALUES)
def test_every_nested_handle_becomes_its_client(value):
    assert comparable(dereference(value)) == comparable(expected(value))


@given(VALUES)
def test_what_holds_no_handle_is_returned_as_it_is(value):
    if not handles_in(value) and not holds_deferred(value):
        assert dereference(value) is value


@given(VALUES)
def test_dereferencing_changes_nothing_in_the_arguments(value):
    before = [(path, id(handle)) for path, handle in find_handles(value)]
    dereference(value)
    assert [(path, id(handle)) for path, handle in find_handles(value)] == before


@given(VALUES)
def test_each_handle_is_dereferenced_once(value):
    handles = handles_in(value)
    before = {id(handle): handle.times for handle in handles}
    dereference(value)
    assert {id(handle): handle.times - before[id(handle)] for handle in handles} == dict.fromkeys(before, 1)


@given(VALUES)
def test_paths_lead_to_their_handles(value):
    for path, handle in find_handles(value, path="value"):
        if not any(part in path for part in (".args", ".key")):  # not the syntax of calls
            assert eval(path, {"value": value}) is handle


def test_paths_of_every_kind_of_container():
    h = Number(0)
    value = {
        "list": [0, h],
        "pair": Pair(h, 0),
        "open": Open(h),
        "partial": functools.partial(call, 0, h, key=h),
        "deferred": Deferred(call, h, key=[h]),
        3: (h,),
    }
    assert [path for path, _ in find_handles(value, "x")] == [
        "x['list'][1]",
        "x['pair'].left",
        "x['open'].value",
        "x['partial'].args[1]",
        "x['partial'].key",
        "x['deferred'].args[0]",
        "x['deferred'].key[0]",
        "x[3][0]",
    ]


def test_a_shared_handle_becomes_one_client():
    h = Number(1)
    a, (b, c) = dereference(([h], {"k": (h, Deferred(list, [h]))}["k"]))
    assert a[0] is b is c[0]


def test_a_shared_container_stays_shared():
    inner = [Number(1)]
    first, second = dereference([inner, inner])
    assert first is second


def test_a_shared_deferred_is_called_once():
    made = Deferred(object)
    first, second = dereference([made, made])
    assert first is second


def test_a_list_that_holds_itself():
    value: list[Any] = [Number(1)]
    value.append(value)
    result = dereference(value)
    assert result[0] == [1]
    assert result[1] is result
    assert [path for path, _ in find_handles(value, "v")] == ["v[0]"]


def test_cycles_through_every_kind_of_container():
    value: dict[str, Any] = {"handle": Number(1)}
    value["pair"] = Pair((value,), Open(value))
    result = dereference(value)
    assert result["handle"] == [1]
    assert result["pair"].left[0] is result
    assert result["pair"].right.value is result


def test_a_tuple_in_a_cycle_is_made_once():
    inner: list[Any] = [Number(1)]
    value = (inner,)
    inner.append(value)
    result = dereference(value)
    assert result[0][1] is result


def test_a_cycle_without_handles_is_returned_as_it_is():
    value: list[Any] = [1]
    value.append({"me": value})
    assert dereference([value, Number(1)])[0] is value


def test_type_and_state_of_a_container_are_kept():
    counts = collections.defaultdict(list, a=Number(1))
    result = dereference(counts)
    assert isinstance(result, collections.defaultdict)
    assert result["missing"] == []
    ordered = collections.OrderedDict(b=Number(1), a=2)
    assert list(dereference(ordered)) == ["b", "a"]


def test_a_field_without_a_value_is_left_alone():
    @dataclasses.dataclass
    class Late:
        value: Any
        later: Any = dataclasses.field(init=False)

    result = dereference(Late(Number(1)))
    assert result.value == [1]
    assert not hasattr(result, "later")


def test_fields_that_give_a_new_object_each_time_are_not_confused():
    @dataclasses.dataclass
    class Fresh:
        handle: Any

        def __getattribute__(self, name):
            value = super().__getattribute__(name)
            return [list(value)] if name == "handle" and isinstance(value, list) else value

    assert dereference([Fresh([1]), Fresh([2]), Number(3)])[2] == [3]


def test_handles_inside_a_handle_are_its_own_business():
    @dataclasses.dataclass
    class Wrapper(Number):
        inner: Any

    wrapper = Wrapper(Number(1))
    assert list(find_handles([wrapper])) == [("[0]", wrapper)]


def test_deferred_calls_with_dereferenced_arguments():
    deferred = Deferred(call, Number(1), rate=[Number(2)])
    assert deferred.dereference() == ("called", ([1],), {"rate": [[2]]})
    assert repr(deferred) == "Deferred(call)"


def test_deferred_takes_a_callable():
    with pytest.raises(TypeError, match="takes a callable and its arguments, got 3"):
        Deferred(3)


def test_an_error_of_a_constructor_comes_through():
    with pytest.raises(ZeroDivisionError):
        dereference([Deferred(divmod, 1, 0)])
