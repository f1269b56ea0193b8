"""The Gymnasium adapter: conformance, ends of episodes, spaces, seeds."""

import gymnasium
import numpy as np
import pytest
from absl.testing import absltest
from dm_env import specs, test_utils
from gymnasium import spaces

from topology.environments.gymnasium import GymnasiumEnvironment, make_gymnasium
from topology.errors import ProgramError


class CartPoleConformanceTest(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self):
        return make_gymnasium("CartPole-v1", seed=1)

    def make_action_sequence(self):
        random = np.random.default_rng(3)
        for _ in range(200):
            yield int(random.integers(2))


class FrozenLakeConformanceTest(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self):
        return make_gymnasium("FrozenLake-v1", seed=1)

    def make_action_sequence(self):
        random = np.random.default_rng(3)
        for _ in range(100):
            yield int(random.integers(4))


class Scripted(gymnasium.Env):
    """Plays back (observation, terminated, truncated); remembers what it was given."""

    def __init__(self, script, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.script = script
        self.actions, self.seeds, self.closed = [], [], False

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.position = 0
        return self.script[0][0], {}

    def step(self, action):
        self.actions.append(action)
        self.position += 1
        observation, terminated, truncated = self.script[self.position]
        return observation, 1.5, terminated, truncated, {}

    def close(self):
        self.closed = True


UNIT = spaces.Box(0.0, 1.0, (2,), np.float64)


@pytest.mark.parametrize(
    ("terminated", "truncated", "discount"), [(True, False, 0.0), (False, True, 1.0), (True, True, 0.0)]
)
def test_the_discount_tells_termination_from_truncation(terminated, truncated, discount):
    environment = GymnasiumEnvironment(
        Scripted([(np.zeros(2), False, False), (np.ones(2), terminated, truncated)], UNIT)
    )
    environment.reset()
    timestep = environment.step(0)
    assert timestep.last()
    assert (timestep.reward, timestep.discount) == (1.5, discount)
    assert timestep.observation.dtype == np.float32
    assert environment.step(0).first()


def test_the_seed_goes_to_the_first_reset_only():
    inner = Scripted([(np.zeros(2), False, False)], UNIT)
    environment = GymnasiumEnvironment(inner, seed=11)
    environment.reset()
    environment.reset()
    assert inner.seeds == [11, None]


def test_equal_seeds_give_equal_episodes():
    first, second, other = (make_gymnasium("CartPole-v1", seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.reset().observation, second.reset().observation)
    assert not np.array_equal(first.step(1).observation, other.reset().observation)


def test_actions_that_start_elsewhere_are_shifted():
    inner = Scripted([(np.zeros(2), False, False)] * 2, UNIT, spaces.Discrete(3, start=-1))
    environment = GymnasiumEnvironment(inner)
    environment.reset()
    environment.step(0)
    assert environment.action_spec().num_values == 3
    assert inner.actions == [-1]


def test_images_stay_bytes_and_are_copied():
    image = np.zeros((4, 4, 1), np.uint8)
    environment = GymnasiumEnvironment(Scripted([(image, False, False)], spaces.Box(0, 255, (4, 4, 1), np.uint8)))
    observation = environment.reset().observation
    assert observation.dtype == environment.observation_spec().dtype == np.uint8
    image[:] = 9
    assert observation.max() == 0


def test_discrete_observations_become_one_hot():
    environment = GymnasiumEnvironment(Scripted([(np.int64(3), False, False)], spaces.Discrete(3, start=2)))
    np.testing.assert_array_equal(environment.reset().observation, [0.0, 1.0, 0.0])


def test_bounds_beyond_float32_become_infinite():
    big = np.finfo(np.float64).max
    environment = GymnasiumEnvironment(Scripted([], spaces.Box(-big, big, (1,), np.float64)))
    spec = environment.observation_spec()
    assert isinstance(spec, specs.BoundedArray)
    assert np.isneginf(spec.minimum).all()
    assert np.isposinf(spec.maximum).all()


def test_close_closes_the_inner_environment():
    inner = Scripted([], UNIT)
    GymnasiumEnvironment(inner).close()
    assert inner.closed


class PendulumConformanceTest(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self):
        return make_gymnasium("Pendulum-v1", seed=1)

    def make_action_sequence(self):
        random = np.random.default_rng(3)
        for _ in range(250):
            yield random.uniform(-2.0, 2.0, 1).astype(np.float32)


def test_continuous_actions_keep_their_bounds_and_get_the_type_of_their_space():
    space = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64)
    inner = Scripted([(np.zeros(2), False, False)] * 2, UNIT, space)
    environment = GymnasiumEnvironment(inner)
    spec = environment.action_spec()
    assert isinstance(spec, specs.BoundedArray)
    np.testing.assert_array_equal([spec.minimum, spec.maximum], [[-2.0, 0.0], [2.0, 5.0]])
    environment.reset()
    environment.step(np.array([1.5, 4.5], np.float32))
    (action,) = inner.actions
    assert action.dtype == spec.dtype == np.float64
    np.testing.assert_array_equal(action, [1.5, 4.5])


@pytest.mark.parametrize(
    ("space", "fault"),
    [
        (spaces.Box(-np.inf, 1.0, (2,), np.float32), "must have bounds"),
        (spaces.Box(0, 9, (2,), np.int32), "only discrete and continuous ones are supported"),
        (spaces.MultiDiscrete([2, 3]), "only discrete and continuous ones are supported"),
    ],
)
def test_other_actions_are_refused(space, fault):
    with pytest.raises(ProgramError, match=fault):
        GymnasiumEnvironment(Scripted([], UNIT, space))


def test_structured_observations_are_refused_with_a_way_out():
    inner = Scripted([], spaces.Dict({"a": UNIT}))
    with pytest.raises(ProgramError, match="FlattenObservation"):
        GymnasiumEnvironment(inner)


def test_an_unknown_id_names_near_ones():
    with pytest.raises(ProgramError, match="Did you mean 'gym:CartPole-v1'"):
        make_gymnasium("CartPoel-v1")


def test_a_package_that_announces_its_namespace_need_not_be_imported(tmp_path, monkeypatch):
    (tmp_path / "boards.py").write_text(
        "import gymnasium\n"
        "def register():\n"
        "    gymnasium.register('Boards/Pole-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    metadata = tmp_path / "boards-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: boards\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gymnasium.envs]\nBoards = boards:register\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert make_gymnasium("Boards/Pole-v0").observation_spec().shape == (4,)
        with pytest.raises(ProgramError, match="no environment 'Boards/Board-v0'"):
            make_gymnasium("Boards/Board-v0")
    finally:
        gymnasium.registry.pop("Boards/Pole-v0", None)
