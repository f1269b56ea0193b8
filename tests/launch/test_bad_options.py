"""Options that cannot be meant: refused before anything starts, with a text that says what to give."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topology as lp
from launch.catalog import Agent
from launch.plan import LaunchOptions
from topology.errors import LaunchError, ProgramError


def node() -> lp.PyNode:
    return lp.PyNode(print)


@pytest.mark.parametrize("programs", [None, 5, "dqn", [], [None], [lp.make_program(node())] * 2])
def test_no_program(programs: Any) -> None:
    with pytest.raises(ProgramError, match="takes one program, or a list with one"):
        lp.launch(programs, "test_mt")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"launch_type": lp.Processes}, r"Processes is a class: give an object, such as lp.Processes\(\)"),
        ({"launch_type": lp.Threads}, "Threads is a class"),
        ({"launch_type": lp.LaunchType}, "LaunchType is a class"),
        ({"restarts": 5}, "restarts is a dict of labels and whole numbers, got 5"),
        ({"restarts": {"pynode_0": "a"}}, r"restarts\['pynode_0'\] is a whole number, got 'a'"),
        ({"restarts": {"pynode_0": -1}}, "must be at least 0, got -1"),
        ({"local_resources": [1]}, r"local_resources is a dict of labels and PythonProcess\(...\), got \[1\]"),
        ({"local_resources": {"pynode_0": 1}}, "An entry of local_resources"),
        ({"local_resources": {"pynode_0": {"env": None}}}, r"PythonProcess\(env=...\) is a dict, got None"),
        ({"termination_notice_s": math.nan}, "termination_notice_s is a number of seconds, got nan"),
        ({"termination_notice_s": "soon"}, "termination_notice_s is a number of seconds, got 'soon'"),
        ({"termination_notice_s": -1}, "termination_notice_s must be at least 0"),
        ({"seed": "x"}, "seed is a whole number, got 'x'"),
        ({"seed": 1.5}, "seed is a whole number, got 1.5"),
        ({"seed": None}, "seed is a whole number, got None"),
        ({"test_case": 3}, "test_case is a unittest.TestCase"),
        ({"terminal": 7}, "Unknown terminal 7"),
    ],
)
def test_options_that_cannot_be_meant(runs: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(LaunchError, match=text):
        lp.launch(lp.make_program(node()), **{"launch_type": "local_mt", **options})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: lp.PythonProcess(args=None), r"PythonProcess\(args=...\) is a dict, got None"),  # type: ignore[arg-type]
        (lambda: lp.PythonProcess(interpreter_args="-O"), "is a dict, got '-O'"),  # type: ignore[arg-type]
        (lambda: lp.PythonProcess(env={"A=": "1"}), "no variable 'A='"),
        (lambda: lp.PythonProcess(env={"": "1"}), "no variable ''"),
        (lambda: lp.PythonProcess(env={"A": "1\0"}), "no variable 'A'"),
        (lambda: lp.Processes(preload="numpy"), r"such as \('numpy',\); got 'numpy'"),  # type: ignore[arg-type]
        (lambda: lp.Processes(preload=(1,)), "tuple of names of modules"),  # type: ignore[arg-type]
        (lambda: lp.Processes(preload=3), "tuple of names of modules"),  # type: ignore[arg-type]
        (lambda: Agent("mine", print, types.SimpleNamespace(PRELOAD="numpy")).preload, "PRELOAD of agent 'mine'"),  # type: ignore[arg-type]
    ],
)
def test_objects_that_cannot_be_meant(make: Callable[[], object], text: str) -> None:
    with pytest.raises(LaunchError, match=text):
        make()


def test_numbers_of_numpy_are_numbers() -> None:
    options = LaunchOptions(
        launch_type="local_mt",
        seed=np.int64(3),  # type: ignore[arg-type]
        restarts={"a": np.int32(2)},  # type: ignore[dict-item]
        termination_notice_s=np.float32(0.5),  # type: ignore[arg-type]
    )
    assert type(options.seed) is int
    assert type(options.restarts["a"]) is int
    assert options.termination_notice_s == 0.5


def test_times_without_end_are_waited_for() -> None:
    run = lp.launch(lp.make_program(node()), "test_mt", serialize_py_nodes=False, termination_notice_s=math.inf)
    assert run.wait(timeout=math.inf)
