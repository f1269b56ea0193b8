"""Runs of Launchpad's programs and tests: errors, places of nodes, waiting, ends, and what nodes know of themselves."""

from __future__ import annotations

import os
import threading
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import topology
from topology.compat import provided
from topology.testing import Gate, no_leaks

with provided():
    import launchpad as lp

pytestmark = pytest.mark.usefixtures("provided")

TIMEOUT_S = 20


def program_of(**functions: Callable[[], Any]) -> Any:
    program = lp.Program("test")
    for label, function in functions.items():
        program.add_node(lp.PyNode(function), label=label)
    return program


def test_the_error_of_a_node_in_a_thread_keeps_its_type() -> None:
    def fail() -> None:
        raise KeyError("its own type")

    with no_leaks(), pytest.raises(KeyError, match="its own type"):
        lp.launch(program_of(main=fail), "test_mt").wait()


def fail() -> None:
    raise RuntimeError("the error of the node")


@pytest.mark.parametrize("kind", ["test_mt", "test_mp"])
@pytest.mark.parametrize("asks", [True, False])
def test_a_test_fails_with_a_node_that_nobody_asks_about(kind: str, asks: bool) -> None:
    class OfSomebody(unittest.TestCase):
        def runTest(self) -> None:
            run = lp.launch(program_of(fails=fail), kind, test_case=self)
            if asks:
                with pytest.raises(RuntimeError, match="the error of the node"):
                    run.wait()
            else:
                run.wait(raise_error=False)

    with no_leaks():
        result = OfSomebody().run()
    assert result is not None
    assert result.testsRun == 1
    assert len(result.errors) == (0 if asks else 1)
    assert asks or "the error of the node" in result.errors[0][1]


@pytest.mark.parametrize("how", ["in order", "by name"])
def test_waiting_takes_the_parameters_of_the_original(how: str) -> None:
    with no_leaks():
        run = lp.launch(program_of(main=fail, daemon=lp.wait_for_stop), "test_mp")
        worker = run._active_workers["main"][0]
        if how == "in order":
            run.wait(["main"], False)
        else:
            run.wait(labels_to_wait_for=["main"], raise_error=False, return_on_first_completed=True)
        assert worker.returncode == worker.wait(TIMEOUT_S) == 1
        with pytest.raises(
            RuntimeError, match=r"(?s)main/0.*One of the workers exited with code 1\..*the error of the node$"
        ):
            run.wait()


def test_a_node_without_a_service_runs_in_each_of_its_places() -> None:
    ran: list[str] = []
    program = lp.Program("places")
    node, stand_in = lp.PyNode(lambda: ran.append(topology.get_context().name)), object.__new__(StandIn)
    for label in ("one", "other"):
        with program.group(label):
            program.add_node(node)
            program.add_node(node)
    with no_leaks():
        lp.launch(program, "local_mt").wait()
    assert sorted(ran) == ["one/0", "one/1", "other/0", "other/1"]
    for label in ("a", "a", "b"):
        program.add_node(stand_in, label)
    assert program.groups["a"] == [stand_in, stand_in]
    served = lp.CourierNode(dict)
    program.add_node(served, "served")
    with pytest.raises(ValueError, match="make a new node for each place"):
        program.add_node(served, "served")


class HalfMade(lp.PyNode):  # type: ignore[misc]  # any of the classes that are provided
    """A node whose class leaves out the constructor of its base; it serves as a function here."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self) -> None:
        self.event.set()


def test_what_cannot_travel_need_not_have_a_name_to_be_told() -> None:
    with pytest.raises(RuntimeError, match="The nodes associated to the label 'bad'"):
        lp.launch(program_of(bad=HalfMade()), "test_mt", serialize_py_nodes=True)


class StandIn:
    """For a node, in somebody's test."""

    def create_handle(self) -> None:
        return None


def test_a_run_can_be_asked_without_waiting(tmp_path: Path) -> None:
    del tmp_path
    with no_leaks():
        run = lp.launch(program_of(main=lp.wait_for_stop), "test_mp")
        assert not run.wait(timeout=0.01)
        assert run.status() == {"main/0": "running"}
        assert run.exit_codes == {"main/0": None}
        run.stop()
        assert (run.status(), run.exit_codes) == ({"main/0": "stopped"}, {"main/0": 0})


def test_what_a_node_leaves_at_the_stop_can_be_read_after_it() -> None:
    results: list[int] = []

    def work() -> None:
        lp.wait_for_stop()
        results.append(17)

    with no_leaks():
        run = lp.launch(program_of(works=work), "local_mt")
        lp.stop()
        run.wait()
    assert results == [17]


def test_two_programs_in_one_process_do_not_stop_each_other() -> None:
    gate = Gate()
    with no_leaks():
        first = lp.launch(program_of(waits=lp.wait_for_stop), "local_mt")
        second = lp.launch(program_of(stops=lambda: (gate(), lp.stop())), "local_mt")
        gate.wait_entered()
        gate.release()
        assert second.wait(timeout=TIMEOUT_S)
        assert first.state == "running"
        first.stop()


class Ready:
    """A learner that compiles before it lets others begin."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._is_ready = threading.Event()

    def wait_until_ready(self) -> None:
        assert self._is_ready.wait(TIMEOUT_S)

    def run(self) -> None:
        self._gate()
        self._is_ready.set()
        lp.wait_for_stop()


def test_actors_wait_until_the_learner_is_ready() -> None:
    """A call of the learner is the barrier; it costs a thread of the learner for every actor that waits."""
    gate, begun = Gate(), []

    def act(learner: Any) -> None:
        learner.wait_until_ready()
        begun.append(topology.get_context().name)

    program = lp.Program("barrier")
    learner = program.add_node(lp.CourierNode(Ready, gate), label="learner")
    with program.group("actor"):
        for _ in range(4):
            program.add_node(lp.PyNode(act, learner))
    with no_leaks():
        run = lp.launch(program, "local_mt")
        gate.wait_entered()
        assert begun == []
        gate.release()
        assert run.wait(["actor"], timeout=TIMEOUT_S)
        assert sorted(begun) == [f"actor/{i}" for i in range(4)]
        run.stop()


def write_surroundings(path: Path) -> None:
    context = topology.get_context()
    text = f"{context.index} of {context.group_size} sees {os.environ['CUDA_VISIBLE_DEVICES']!r}"
    (path / context.name.replace("/", "-")).write_text(text)


def test_nodes_know_their_rank_and_see_their_cards(tmp_path: Path) -> None:
    program = lp.Program("cards")
    for label, count in (("learner", 1), ("actor", 2)):
        with program.group(label):
            for _ in range(count):
                program.add_node(lp.PyNode(write_surroundings, tmp_path))
    with no_leaks():
        lp.launch(program, "test_mp", local_resources=topology.gpu_map(program, {"learner": [0, 1]})).wait()
    assert {path.name: path.read_text() for path in tmp_path.glob("*-*")} == {
        "learner-0": "0 of 1 sees '0,1'",
        "actor-0": "0 of 2 sees ''",
        "actor-1": "1 of 2 sees ''",
    }
