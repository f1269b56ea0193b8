"""PettingZoo behind the adapter."""

import sys
import types

import dm_env
import numpy as np
import pytest

from topology.environments import make_environment
from topology.errors import ProgramError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def zoo():
    pytest.importorskip("pettingzoo")
    return pytest.importorskip("topology.environments.pettingzoo").PettingZooEnvironment


class Fading:
    """Two agents; `a` terminates at the first step, `b` is truncated at the third. All that was asked is kept."""

    possible_agents = ("a", "b")

    def __init__(self):
        self.taken, self.seeds, self.closed = [], [], False

    def observation_space(self, agent):
        from gymnasium import spaces

        box = spaces.Box(-1, 1, (2,), np.float64)
        return box if agent == "a" else spaces.Dict(observation=box, action_mask=spaces.MultiBinary(3))

    def action_space(self, agent):
        from gymnasium import spaces

        return spaces.Discrete(2 if agent == "a" else 3)

    def _views(self, agents):
        view = np.full(2, len(self.taken), np.float64)
        masked = {"observation": view, "action_mask": np.array([0, 1, 1], np.int8)}
        return {agent: view if agent == "a" else masked for agent in agents}

    def reset(self, seed=None):
        self.seeds.append(seed)
        self.agents, self.taken = ["a", "b"], []
        return self._views(self.agents), {}

    def step(self, actions):
        self.taken.append(actions)
        there, step = self.agents, len(self.taken)
        terminated, truncated = {a: a == "a" for a in there}, dict.fromkeys(there, step == 3)
        self.agents = [a for a in there if not terminated[a] and not truncated[a]]
        return self._views(there), {a: float(step) for a in there}, terminated, truncated, {}

    def close(self):
        self.closed = True


def test_agents_that_leave_early_stay_as_zeros(zoo):
    raw = Fading()
    environment = zoo(raw, seed=7)
    assert environment.agents == ("a", "b")
    first = environment.reset()
    assert first.observation["b"]["action_mask"].tolist() == [0, 1, 1]
    one = environment.step({"a": 1, "b": 2})
    assert (one.reward, one.discount, one.mid()) == ({"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 1.0}, True)
    assert one.observation["a"].tolist() == [1, 1]
    two = environment.step({"a": 1, "b": 1})
    assert (two.reward, two.discount) == ({"a": 0.0, "b": 2.0}, {"a": 0.0, "b": 1.0})
    assert (two.observation["a"].tolist(), two.observation["a"].dtype) == ([0, 0], np.float32)
    assert raw.taken[1] == {"b": 1}
    three = environment.step({"a": 0, "b": 1})
    assert three.last()
    assert three.discount == {"a": 0.0, "b": 1.0}  # cut off, so that its last state still has a value
    assert environment.step({}).first()
    assert raw.seeds == [7, None]
    environment.close()
    assert raw.closed


def test_simple_spread_by_name_is_seeded(zoo):
    pytest.importorskip("mpe2")
    first, second = (make_environment("pettingzoo:mpe.simple_spread_v3", seed=3) for _ in range(2))
    for environment in (first, second):
        assert environment.observation_spec()["agent_2"].shape == (18,)
        assert environment.action_spec()["agent_0"].num_values == 5
    steps = [environment.reset() for environment in (first, second)]
    rewards = []
    while not steps[0].last():
        np.testing.assert_array_equal(steps[0].observation["agent_1"], steps[1].observation["agent_1"])
        steps = [environment.step({"agent_0": 1, "agent_1": 2, "agent_2": 4}) for environment in (first, second)]
        rewards.append(steps[0].reward["agent_0"])
    assert len(rewards) == 25
    assert set(steps[0].discount.values()) == {1.0}
    assert np.sum(rewards) < 0
    for environment in (first, second):
        environment.close()


def test_one_of_a_users_function_is_adapted(zoo):
    simple = pytest.importorskip("mpe2.simple_spread_v3")
    environment = make_environment(lambda: simple.parallel_env(N=2, max_cycles=4), seed=1)
    assert isinstance(environment, dm_env.Environment)
    assert environment.agents == ("agent_0", "agent_1")
    environment.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mpe.simple_sprad_v3", "Did you mean 'pettingzoo:mpe.simple_spread_v3'"),
        ("mpee.simple", "There is no environment 'pettingzoo:mpee.simple'"),
        ("mpe", "has no parallel_env"),
    ],
)
def test_an_unknown_name_is_refused(zoo, name, text):
    pytest.importorskip("mpe2")
    with pytest.raises(ProgramError, match=text):
        make_environment(f"pettingzoo:{name}")


@pytest.mark.parametrize("missing", ["pettingzoo", "mpe2"])
def test_a_missing_package_names_the_extra(monkeypatch, missing):
    if missing == "mpe2":
        pytest.importorskip("pettingzoo")
    for module in [m for m in sys.modules if m.split(".")[0] == missing or m == "topology.environments.pettingzoo"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ProgramError, match=r"rl-topology\[multiagent\]"):
        make_environment("pettingzoo:mpe.simple_spread_v3")


def test_spaces_that_do_not_fit_are_named(zoo):
    from gymnasium import spaces

    raw = Fading()
    raw.action_space = types.MethodType(lambda self, agent: spaces.Box(0, 1, (2,)), raw)
    with pytest.raises(ProgramError, match="the actions of a are Box"):
        zoo(raw)
    raw = Fading()
    raw.observation_space = types.MethodType(lambda self, agent: spaces.Text(3), raw)
    with pytest.raises(ProgramError, match="the observations of a are Text"):
        zoo(raw)
