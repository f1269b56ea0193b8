"""Addresses: identity, and resolving in nodes and in the launching script."""

from __future__ import annotations

import copy
import pickle

import pytest

import topology as lp
from topology.address import register_endpoints
from topology.context import NodeContext, StopToken, bind_context
from topology.errors import ProgramError


def context(**kwargs):
    return NodeContext(label="a", index=0, launch_type="test_mt", **kwargs)


def test_equality_goes_by_identity_and_survives_pickling():
    address = lp.Address("learner", needs_port=False)
    again = pickle.loads(pickle.dumps(address))
    assert again == address
    assert hash(again) == hash(address)
    assert (again.service, again.needs_port) == ("learner", False)
    assert copy.deepcopy(address) == address
    assert lp.Address("learner") != address
    assert address != "learner"


def test_repr_names_the_service():
    assert repr(lp.Address("learner")) == "<Address learner>"
    assert repr(lp.Address()).startswith("<Address ")


def test_an_unknown_address_says_what_to_do():
    for ask in (lp.Address("learner").resolve, lp.Address("learner").secret):
        with pytest.raises(ProgramError, match="<Address learner> was resolved, but no running program has it"):
            ask()


def test_a_node_resolves_by_its_context():
    address = lp.Address()
    with bind_context(context(endpoints={address.id: "localhost:1"}, secret=b"s")):
        assert (address.resolve(), address.secret()) == ("localhost:1", b"s")


def test_a_script_resolves_while_the_program_runs():
    address = lp.Address()
    remove = register_endpoints({address.id: "unix:/tmp/x"}, b"secret", StopToken())
    try:
        assert (address.resolve(), address.secret()) == ("unix:/tmp/x", b"secret")
    finally:
        remove()
    with pytest.raises(ProgramError):
        address.resolve()
    remove()  # again: nothing happens


def test_the_program_launched_last_wins():
    address = lp.Address()
    removers = [register_endpoints({address.id: endpoint}, b"", StopToken()) for endpoint in ("first:1", "second:2")]
    try:
        assert address.resolve() == "second:2"
        removers[1]()
        assert address.resolve() == "first:1"
    finally:
        for remove in removers:
            remove()


def test_a_node_of_one_program_resolves_addresses_of_another_by_the_script():
    address = lp.Address()
    remove = register_endpoints({address.id: "other:1"}, b"other", StopToken())
    try:
        with bind_context(context(endpoints={}, secret=b"own")):
            assert (address.resolve(), address.secret()) == ("other:1", b"other")
    finally:
        remove()


@pytest.mark.parametrize(("endpoint", "port"), [("localhost:8001", 8001), ("[::1]:80", 80)])
def test_the_port_of_an_endpoint(endpoint, port):
    assert lp.get_port_from_address(endpoint) == port


@pytest.mark.parametrize("endpoint", ["unix:/tmp/learner-0", "localhost", "", "memory:x"])
def test_an_endpoint_without_a_port(endpoint):
    with pytest.raises(ValueError, match="has no port"):
        lp.get_port_from_address(endpoint)
