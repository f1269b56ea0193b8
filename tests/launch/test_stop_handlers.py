"""A stop handler that saves something is not cut off by the end of its node."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import topology as lp
from topology.context import StopToken

NOT_YET_S = 0.3


def launch(function: Callable[[], Any], kind: str, *, colocated: type | None = None, **options: Any) -> lp.Run:
    node: Any = lp.PyNode(function)
    program = lp.Program("test")
    program.add_node(node if colocated is None else colocated([node]), label="node")
    return lp.launch(program, kind, serialize_py_nodes=False, **options)


class Gate:
    """Keeps whoever passes through waiting, in any process, until it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDWR)

    def open(self) -> None:
        os.write(self._descriptor, b"x")

    def pass_through(self) -> None:
        os.read(self._descriptor, 1)  # pytest-timeout is the deadline

    def close(self) -> None:
        os.close(self._descriptor)


def node_that_saves(
    gate: Path, saved: Path, *, ready: Path | None = None, asks: bool = False, waits: bool = True
) -> Callable[[], None]:
    def save() -> None:
        with gate.open("rb", buffering=0) as file:
            file.read(1)
        saved.write_text("state")

    def run() -> None:
        lp.register_stop_handler(save)
        if ready is not None:
            ready.write_bytes(b"x")
        if asks:
            lp.stop()
        if waits:
            lp.wait_for_stop()

    return run


@pytest.mark.parametrize("kind", ["test_mt", "test_mp"])
@pytest.mark.parametrize("colocated", [None, lp.MultiThreadingColocation, lp.MultiProcessingColocation])
def test_a_handler_that_saves_is_waited_for(kind: str, colocated: type | None, tmp_path: Path) -> None:
    gate, saved = Gate(tmp_path / "gate"), tmp_path / "saved"
    ready = Gate(tmp_path / "ready")
    run = launch(node_that_saves(gate.path, saved, ready=ready.path), kind, colocated=colocated)
    ready.pass_through()
    assert not run.stop(timeout=NOT_YET_S)
    gate.open()
    assert run.wait(timeout=30)
    assert saved.read_text() == "state"
    gate.close()
    ready.close()


@pytest.mark.parametrize("kind", ["test_mt", "test_mp"])
def test_a_node_that_asks_for_the_stop_and_returns_still_gets_its_handler_called(kind: str, tmp_path: Path) -> None:
    gate, saved = Gate(tmp_path / "gate"), tmp_path / "saved"
    run = launch(node_that_saves(gate.path, saved, asks=True, waits=False), kind)
    assert not run.wait(timeout=NOT_YET_S)
    gate.open()
    assert run.wait(timeout=30)
    assert saved.read_text() == "state"
    gate.close()


def test_a_handler_of_a_thread_node_that_has_returned_is_waited_for(tmp_path: Path) -> None:
    gate, saved = Gate(tmp_path / "gate"), tmp_path / "saved"
    run = launch(node_that_saves(gate.path, saved, waits=False), "test_mt")
    assert not run.wait(timeout=NOT_YET_S)
    gate.open()
    assert run.wait(timeout=30)
    assert saved.read_text() == "state"
    gate.close()


def test_the_script_waits_for_its_own_handlers() -> None:
    gate, saved = threading.Event(), threading.Event()

    def save() -> None:
        assert gate.wait(30)
        saved.set()

    run = launch(lp.wait_for_stop, "test_mt")
    lp.register_stop_handler(save)
    assert not run.stop(timeout=NOT_YET_S)
    gate.set()
    assert run.wait(timeout=30)
    assert saved.is_set()


def test_a_handler_of_the_script_may_wait_for_the_run() -> None:
    ended = threading.Event()
    run = launch(lp.wait_for_stop, "test_mt")
    lp.register_stop_handler(lambda: ended.set() if run.wait(timeout=30) else None)
    assert run.stop(timeout=30)
    assert ended.is_set()


def test_a_handler_that_never_returns_is_cut_off_after_the_notice(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()

    def stuck() -> None:
        gate.wait(30)

    def run() -> None:
        lp.register_stop_handler(stuck)
        lp.wait_for_stop()

    with caplog.at_level(logging.WARNING):
        assert launch(run, "test_mt", termination_notice_s=0.3).stop(timeout=20)
    gate.set()
    assert "stuck" in caplog.text
    assert "notice of 0.3 s" in caplog.text


def test_a_process_says_which_handler_it_cuts_off(tmp_path: Path) -> None:
    gate, ready = Gate(tmp_path / "gate"), Gate(tmp_path / "ready")
    node = node_that_saves(gate.path, tmp_path / "saved", ready=ready.path)
    run = launch(node, "local_mp", termination_notice_s=0.3)
    ready.pass_through()
    assert run.stop(timeout=30)
    assert "did not end within the notice of 0.3 s" in (run.run_directory / "logs" / "node-0.log").read_text()
    assert not (tmp_path / "saved").exists()
    gate.close()
    ready.close()


def test_without_a_stop_nothing_is_waited_for() -> None:
    token = StopToken()
    token.on_stop(print)
    assert token.join_handlers(None) == []


def test_a_handler_that_exits_keeps_no_other_from_hearing() -> None:
    token, heard = StopToken(), threading.Event()
    token.on_stop(lambda: exit(1))
    token.on_stop(heard.set)
    token.set()
    assert heard.is_set()
    assert token.join_handlers(0.0) == []
