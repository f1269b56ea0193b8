"""Nodes as bytes, and which part of them does not travel."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest

import topology as lp
from topology.serialization import dumps, find_unpicklable


def run(*args, **kwargs):
    return args, kwargs


@dataclasses.dataclass
class Config:
    rate: float
    resource: Any


class Unwilling:
    def __reduce__(self):
        raise ZeroDivisionError("not today")

    def __repr__(self):
        return "Unwilling" * 20


def test_a_node_travels(service):
    node = service(run, 1, rate=2)
    again = pickle.loads(dumps(node))
    assert again.addresses == node.addresses
    assert again.describe().arguments == {"args[0]": 1, "rate": 2}


def test_lambdas_and_closures_travel():
    rate = 3
    assert pickle.loads(dumps(lambda x: x * rate))(2) == 6


def test_cached_functions_of_main_travel():
    """Cloudpickle refuses them: it takes a cache for a part of the interpreter."""
    script = """
import functools, pickle
from topology.serialization import dumps

@functools.lru_cache(maxsize=7, typed=True)
def square(x):
    return x * x

@functools.cache
def recursive(n):
    return n if n < 2 else recursive(n - 1) + recursive(n - 2)

square(3)
again, same, other = pickle.loads(dumps((square, square, recursive)))
assert again is not square and again is same, "shared within one pickle"
assert again(4) == 16 and other(30) == 832040
assert again.cache_parameters() == {"maxsize": 7, "typed": True}
assert again.cache_info().misses == 1, "arrives empty"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("args", "kwargs", "paths"),
    [
        ((threading.Lock(),), {}, ["args[0]"]),
        ((), {"lock": threading.Lock()}, ["lock"]),
        (([1, {"a": (threading.Lock(),)}],), {}, ["args[0][1]['a'][0]"]),
        ((Config(0.1, threading.Lock()),), {}, ["args[0].resource"]),
        ((functools.partial(run, threading.Lock()),), {}, ["args[0].args[0]"]),
        ((lp.Deferred(run, key=threading.Lock()),), {}, ["args[0].key"]),
        ((threading.Lock(), 1, threading.Lock()), {"rate": 2}, ["args[0]", "args[2]"]),
    ],
)
def test_every_part_that_does_not_travel_is_named(args, kwargs, paths):
    faults = find_unpicklable(lp.PyNode(run, *args, **kwargs))
    assert [fault.partition(" = ")[0] for fault in faults] == paths
    assert all("cannot be pickled: TypeError: cannot pickle '_thread.lock'" in fault for fault in faults)


def test_a_constructor_that_does_not_travel_is_named():
    lock = threading.Lock()
    [fault] = find_unpicklable(lp.PyNode(lambda: lock))
    assert fault.startswith("constructor = <function")


def test_parts_of_a_colocation_are_named():
    inner = lp.MultiThreadingColocation([lp.PyNode(run), lp.PyNode(run, threading.Lock())])
    [fault] = find_unpicklable(lp.MultiThreadingColocation([inner]))
    assert fault.startswith("nodes[0].nodes[1].args[0] = ")


def test_whatever_pickling_raises_is_reported_short():
    [fault] = find_unpicklable(lp.PyNode(run, Unwilling()))
    assert fault.endswith("cannot be pickled: ZeroDivisionError: not today")
    assert len(fault) < 160


def test_a_fault_in_a_container_that_holds_itself():
    value: list[Any] = [threading.Lock()]
    value.append(value)
    assert [fault.partition(" = ")[0] for fault in find_unpicklable(lp.PyNode(run, value))] == ["args[0][0]"]


def test_a_node_with_a_fault_of_its_own(service):
    node = service()
    node.resource = threading.Lock()
    assert find_unpicklable(node) == ["node itself cannot be pickled: TypeError: cannot pickle '_thread.lock' object"]


def test_a_sound_node_has_no_faults(service):
    assert find_unpicklable(service(run, [1], key=service().create_handle())) == []
