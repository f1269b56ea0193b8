"""Environments of users, by the path of a function that makes them."""

import sys

import gymnasium
import pytest

from topology.environments import Catch, make_environment
from topology.environments.by_path import _files
from topology.environments.gymnasium import GymnasiumEnvironment
from topology.errors import ProgramError

SOURCE = """
import gymnasium
from topology.environments import Catch
from beside import ROWS

seeds = []

def seeded(seed: int | None):
    seeds.append(seed)
    return Catch(ROWS, seed=seed)

def unseeded():
    return Catch(ROWS)

def cart(seed=None):
    return gymnasium.make("CartPole-v1")

def pendulum(seed=None):
    return gymnasium.make("Pendulum-v1")

def nothing(seed=None):
    return 3

def broken(seed=None):
    return {}["key"]

NUMBER = 3
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The file `own_worlds.py`, in the current directory."""
    (tmp_path / "own_worlds.py").write_text(SOURCE)
    (tmp_path / "beside.py").write_text("ROWS = 6\n")
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    before = dict(_files)
    yield tmp_path
    _files.clear()
    _files.update(before)
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


@pytest.mark.parametrize("target", ["own_worlds.py", "own_worlds", "{place}/own_worlds.py"])
def test_a_function_of_a_file_or_module_makes_it(place, target):
    target = target.format(place=place)
    assert make_environment(f"{target}:seeded", seed=4).observation_spec().shape == (6, 5)
    assert make_environment(f"{target}:unseeded", seed=4).observation_spec().shape == (6, 5)
    assert sys.modules["own_worlds"].seeds == [4]


def test_a_gymnasium_environment_is_adapted_and_seeded(place):
    first, second = (make_environment("own_worlds.py:cart", seed=3) for _ in range(2))
    assert isinstance(first, GymnasiumEnvironment)
    assert first.reset().observation.tolist() == second.reset().observation.tolist()


def test_a_gymnasium_environment_comes_from_a_factory_or_as_it_is():
    assert make_environment(lambda: gymnasium.make("CartPole-v1")).action_spec().num_values == 2
    assert make_environment(gymnasium.make("CartPole-v1"), 1).action_spec().num_values == 2


def test_a_file_runs_once(place):
    (place / "counted.py").write_text("import os\nos.mkdir('ran')\n" + SOURCE)
    for _ in range(2):
        make_environment("counted.py:unseeded")  # a second time it could not make the directory


def test_a_file_called_like_a_module_in_use(place):
    (place / "topology.py").write_text("from topology.environments import Catch\n")
    assert isinstance(make_environment("topology.py:Catch"), Catch)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("own_worlds.py:seded", ["own_worlds.py has no function 'seded' (did you mean 'seeded'"]),
        ("own_worlds.py:NUMBER", ["NUMBER is 3, not a function"]),
        ("own_worlds.py", ["is a file: say which function makes it, own_worlds.py:FUNCTION"]),
        ("no_file.py:f", ["there is no file 'no_file.py' (looked in"]),
        ("no_module:f", ["the module 'no_module' cannot be imported: ModuleNotFoundError"]),
        ("own_worlds.py:nothing", ["the function returned 3, not a dm_env.Environment or a gymnasium.Env"]),
        ("own_worlds.py:broken", ["could not be made: KeyError: 'key'", "own_worlds.py, line 25)"]),
        ("unknown", ["path/to/file.py:function"]),
    ],
)
def test_what_does_not_fit_is_said(place, name, parts):
    with pytest.raises(ProgramError) as caught:
        make_environment(name)
    for part in parts:
        assert part in str(caught.value)


def test_a_file_that_fails_leaves_no_module_behind(place):
    (place / "half_done.py").write_text("x = 1\nraise OSError('no disk')\n")
    with pytest.raises(ProgramError, match=r"cannot be imported: OSError: no disk \(.*half_done.py, line 2\)"):
        make_environment("half_done.py:f")
    assert "half_done" not in sys.modules
