"""The fork server: what it says when the system refuses, and what forks do not share."""

from __future__ import annotations

import errno
import functools
import os
import random
from pathlib import Path

import pytest

import topology as lp
from launch.channel import Channel
from launch.fork_client import ForkServer
from launch.fork_server import _ForkServer
from launch.python_process import PythonProcess
from topology.errors import LaunchError
from topology.testing import no_leaks


def test_a_fork_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fork() -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    ours, theirs = Channel.pair()
    server = object.__new__(_ForkServer)  # without its signal handlers
    server._channel = Channel(theirs)
    monkeypatch.setattr(os, "fork", no_fork)
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    server._fork({"key": 7, "name": "a/0"}, descriptors)
    message = next(ours.messages())
    assert message["event"] == "failed"
    assert message["key"] == 7
    assert "temporarily unavailable" in message["error"]
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    ours.close()
    server._channel.close()


def test_it_ends_when_it_is_asked_and_when_it_is_left(tmp_path: Path) -> None:
    with no_leaks():
        for ask in (True, False):
            temporary = tmp_path / str(ask)
            temporary.mkdir()
            server = ForkServer(PythonProcess(), [], [temporary])
            server.wait_until_ready()
            if ask:
                server.quit()
            else:
                server.channel.close()
            server.close()
            assert temporary.exists() == ask  # the launcher that asked removes its own
            with pytest.raises(LaunchError, match="gone"):
                server.fork(0, "a/0", control=0, output=1, setup=0)


def write_numbers(directory: Path) -> None:
    import numpy as np

    numbers = (random.random(), float(np.random.random()))  # the global generators are the point
    (directory / str(lp.get_context().index)).write_text(repr(numbers))


def test_forks_do_not_share_random_numbers(tmp_path: Path) -> None:
    program = lp.Program("test")
    with program.group("node"):
        for _ in range(3):
            program.add_node(lp.PyNode(functools.partial(write_numbers, tmp_path)))
    run = lp.launch(program, lp.Processes(preload=("numpy.random",)))
    assert run.wait(20)
    numbers = [eval(path.read_text()) for path in tmp_path.iterdir() if path.is_file()]
    assert len(numbers) == 3
    assert len({first for first, _ in numbers}) == 3
    assert len({second for _, second in numbers}) == 3
