"""Programs: groups, labels, validation, executables."""

from __future__ import annotations

import functools
import threading
from unittest import mock

import pytest

import topology as lp
from topology.errors import ProgramError, SerializationError


def noop(*args, **kwargs):
    return args, kwargs


def test_add_node_files_the_node_under_its_label(service):
    program, node = lp.Program("p"), service()
    program.add_node(node, "learner")
    assert program.groups == {"learner": [node]}


def test_nodes_of_a_group_keep_their_order(service):
    program, nodes = lp.Program("p"), [service() for _ in range(3)]
    with program.group("actor"):
        for node in nodes:
            program.add_node(node)
    assert program.groups["actor"] == nodes
    assert program.current_group is None


def test_add_node_returns_the_handle_of_the_node(service):
    node = service()
    handle = lp.Program("p").add_node(node, "learner")
    assert handle.address == node.own_address
    assert lp.Program("p").add_node(lp.PyNode(noop), "script") is None


@pytest.mark.parametrize("label", [None, ""])
def test_a_node_needs_a_label(service, label):
    with pytest.raises(ValueError, match=r"Label should not be empty\."):
        lp.Program("p").add_node(service(), label)


def test_a_group_needs_a_label():
    with pytest.raises(ValueError, match=r"Label should not be empty\."), lp.Program("p").group(""):
        pytest.fail("the block must not run")


def test_a_label_inside_a_group_must_be_the_group(service):
    program = lp.Program("p")
    with program.group("actor"):
        program.add_node(service(), "actor")
        with pytest.raises(ValueError, match="label does not match the current group") as caught:
            program.add_node(service(), "learner")
    assert "'learner'" in str(caught.value)
    assert "'actor'" in str(caught.value)
    assert list(program.groups) == ["actor"]


def test_groups_cannot_be_nested(service):
    program = lp.Program("p")
    with program.group("actor"):
        with pytest.raises(ValueError, match=r"group\(\) cannot be nested\."), program.group("learner"):
            pytest.fail("the block must not run")
        assert program.current_group == "actor"  # the open group is still open
        program.add_node(service())
    assert len(program.groups["actor"]) == 1


def test_a_group_is_closed_when_its_block_raises(service):
    program = lp.Program("p")
    with pytest.raises(KeyError), program.group("actor"):
        raise KeyError
    program.add_node(service(), "learner")
    assert list(program.groups) == ["learner"]


def test_a_label_used_again_appends(service):
    program, nodes = lp.Program("p"), [service() for _ in range(4)]
    program.add_node(nodes[0], "actor")
    program.add_node(nodes[1], "actor")
    for node in nodes[2:]:
        with program.group("actor"):
            program.add_node(node)
    assert program.groups == {"actor": nodes}


def test_get_all_nodes_goes_group_by_group(service):
    program, nodes = lp.Program("p"), [service() for _ in range(3)]
    for node, label in zip(nodes, ["a", "b", "a"], strict=True):
        program.add_node(node, label)
    assert program.get_all_nodes() == [nodes[0], nodes[2], nodes[1]]
    assert [name for *name, _ in program.named_nodes()] == [["a", 0], ["a", 1], ["b", 0]]


def test_stand_ins_that_only_have_create_handle_are_nodes():
    program, node = lp.Program("p"), mock.Mock()
    assert program.add_node(node, "label") is node.create_handle.return_value
    assert program.groups["label"] == [node]


def test_a_node_has_one_place(service):
    program, node = lp.Program("p"), service()
    program.add_node(node, "a")
    with pytest.raises(ValueError, match="in the program already"):
        program.add_node(node, "b")


def test_only_nodes_are_added():
    with pytest.raises(TypeError, match="takes a node such as CourierNode"):
        lp.Program("p").add_node(noop, "a")


def test_make_program_gives_each_node_a_group():
    program = lp.make_program(lp.PyNode(noop), lp.PyNode(noop), name="two")
    assert (program.name, list(program.groups)) == ("two", ["pynode_0", "pynode_1"])


def test_repr_shows_the_groups(service):
    program = lp.Program("p")
    assert repr(program) == "<Program 'p': empty>"
    program.add_node(service(), "a")
    program.add_node(service(), "a")
    assert repr(program) == "<Program 'p': a x2>"


def test_a_sound_program_has_no_faults(service):
    program = lp.Program("p")
    handle = program.add_node(service(), "a")
    program.add_node(lp.PyNode(noop, [handle]), "b")
    assert program.faults(serialize=True, labels=["a"]) == []
    program.validate(serialize=True, labels=["a"])


def test_one_error_lists_every_fault(service):
    program = lp.Program("p")
    outside = service().create_handle()
    shared = service()
    program.add_node(lp.PyNode(noop, sources=[1, outside]), "script")
    program.add_node(shared, "learner")
    program.add_node(lp.MultiThreadingColocation([shared, lp.PyNode(noop, outside)]), "box")
    program.add_node(lp.PyNode(noop, threading.Lock(), key={"deep": (threading.Lock(),)}), "actor")
    program.add_node(mock.Mock(), "stand-in")
    with pytest.raises(SerializationError) as caught:
        program.validate(serialize=True, labels=["lerner"])
    text = str(caught.value)
    assert "8 faults" in text
    for expected in (
        "unknown label 'lerner' in the launch options: did you mean 'learner'?; the groups are 'script', 'learner', "
        "'box', 'actor', 'stand-in'",
        "stand-in/0: Mock is not a kind of lp.Node",
        "box/0.nodes[0]: this ServiceNode is learner/0 already",
        "box/0 and learner/0 both listen at <Address service>",
        "script/0: the argument sources[1] is a handle of a node that is not in the program",
        "box/0: the argument nodes[1].args[0] is a handle of a node that is not in the program",
        "actor/0: args[0] = <unlocked _thread.lock object",
        "actor/0: key['deep'][0] = <unlocked _thread.lock object",
    ):
        assert f"  - {expected}" in text
    assert len(caught.value.faults) == 8


def test_pickling_matters_only_to_programs_that_travel():
    program = lp.make_program(lp.PyNode(noop, threading.Lock()))
    program.validate()
    with pytest.raises(SerializationError, match=r"1 fault:\n  - pynode_0/0: args\[0\] .* cannot be pickled"):
        program.validate(serialize=True)


def test_an_empty_program_is_a_fault():
    with pytest.raises(ProgramError, match="'nothing' has no nodes"):
        lp.Program("nothing").validate()


def test_executables_say_what_to_run(service):
    class Stubborn(service):
        max_restarts = 3

    program = lp.Program("p")
    node = Stubborn()
    with program.group("a"):
        program.add_node(service())
        program.add_node(node)
    first, second = program.executables()
    assert (first.name, first.group_size, first.max_restarts) == ("a/0", 2, 0)
    assert (second.name, second.addresses, second.max_restarts) == ("a/1", (node.own_address,), 3)
    assert second.entry == node.run


def test_an_address_allocated_twice_is_one(service):
    node = service()
    node.allocate_address(node.own_address)
    assert node.addresses == (node.own_address,)


def test_a_colocation_listens_where_its_parts_do(service):
    parts = [service(), service()]
    assert lp.MultiThreadingColocation(parts).addresses == tuple(part.own_address for part in parts)


def test_partial_constructors_show_and_check_their_arguments(service):
    program = lp.Program("p")
    program.add_node(lp.PyNode(functools.partial(noop, service().create_handle(), rate=3)), "a")
    assert program.graph().node("a/0").argument("rate") == 3
    assert "the argument args[0] is a handle" in program.faults()[0]


def test_partial_constructors_get_clients_too():
    calls = []
    made = functools.partial(lambda *args, **kwargs: calls.append((args, kwargs)), lp.Deferred(list, "ab"), key=1)
    lp.PyNode(made, 2, key=3).run()
    assert calls == [((["a", "b"], 2), {"key": 3})]


def needs_two(first, second):
    raise AssertionError("never called")


class NeedsOne:
    def __init__(self, only):
        raise AssertionError("never made")


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(1, *args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (lambda: lp.PyNode(needs_two, 1), "missing a required argument: 'second'"),
        (lambda: lp.PyNode(needs_two, 1, thrid=2), "needs_two(first, second) cannot be called"),
        (lambda: lp.CourierNode(NeedsOne, 1, 2), "too many positional arguments"),
        (lambda: lp.MultiThreadingColocation([lp.PyClassNode(NeedsOne)]), "nodes[0]: NeedsOne"),
    ],
)
def test_arguments_that_do_not_fit_are_a_fault(node, text):
    program = lp.Program("p")
    program.add_node(node(), label="a")
    (fault,) = program.faults()
    assert fault.startswith("a/0: ")
    assert text in fault


def test_what_a_decorator_adds_is_not_missed():
    program = lp.Program("p")
    program.add_node(lp.PyNode(wrapped(needs_two), 2), label="a")
    program.add_node(lp.PyNode(functools.partial(needs_two, 1), second=2), label="a")
    assert program.faults() == []


def test_a_node_in_place_of_its_handle_is_a_fault():
    program = lp.Program("p")
    node = lp.CourierNode(dict)
    program.add_node(node, label="a")
    program.add_node(lp.PyNode(print, {"servers": [node]}), label="b")
    (fault,) = program.faults()
    assert fault.startswith("b/0: the argument args[0]['servers'][0] is a node: give its handle")


def test_a_misspelt_label_names_the_one_that_was_meant():
    program = lp.Program("p")
    program.add_node(lp.PyNode(print), label="worker")
    (fault,) = program.faults(labels=["wroker"])
    assert "did you mean 'worker'?" in fault


def test_a_node_stands_in_one_place_only():
    node, other = lp.PyNode(print), lp.PyNode(print)
    program = lp.Program("p")
    program.add_node(lp.MultiThreadingColocation([node, node]), label="box")
    program.add_node(node, label="a")
    program.add_node(lp.MultiThreadingColocation([lp.MultiProcessingColocation([other])]), label="b")
    program.add_node(lp.MultiThreadingColocation([other]), label="c")
    assert program.faults() == [
        f"{place}: this PyNode is {first} already: make a new node for each place"
        for place, first in [
            ("box/0.nodes[1]", "box/0.nodes[0]"),
            ("a/0", "box/0.nodes[0]"),
            ("c/0.nodes[0]", "b/0.nodes[0].nodes[0]"),
        ]
    ]


@pytest.mark.parametrize("kind", [lp.MultiThreadingColocation, lp.MultiProcessingColocation])
@pytest.mark.parametrize(
    ("nodes", "text"), [("x", "got 'x' at 0"), ([1], "got 1 at 0"), (5, "got 5"), (None, "got None")]
)
def test_a_colocation_is_of_nodes(kind, nodes, text):
    with pytest.raises(TypeError, match=text):
        kind(nodes)
