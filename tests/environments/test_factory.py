"""Environments by name, by factory, and as they are."""

import functools

import pytest

from topology.environments import Catch, make_environment, make_environment_spec
from topology.environments.specs import num_discrete_actions
from topology.errors import ProgramError


def test_catch_by_name_is_seeded():
    first, second = make_environment("catch", seed=3), make_environment("catch", 3)
    assert [first.reset().observation.argmax() for _ in range(9)] == [
        second.reset().observation.argmax() for _ in range(9)
    ]


def test_gymnasium_by_name():
    assert make_environment("gym:CartPole-v1").action_spec().num_values == 2


def test_an_environment_is_returned_as_it_is():
    environment = Catch()
    assert make_environment(environment) is environment


def test_a_factory_gets_the_seed_if_it_takes_one():
    seeds = []

    def seeded(*, seed=None):
        seeds.append(seed)
        return Catch(seed=seed)

    make_environment(seeded, seed=4)
    assert seeds == [4]
    assert isinstance(make_environment(functools.partial(Catch, 10), seed=4), Catch)


@pytest.mark.parametrize(
    ("name", "suggestion"), [("Catsh", "'catch'"), ("CartPole-v1", "'gym:CartPole-v1'"), ("gym_CartPole-v1", "gym:")]
)
def test_an_unknown_name_names_near_ones(name, suggestion):
    with pytest.raises(ProgramError, match=f"Did you mean .*{suggestion}"):
        make_environment(name)


def test_what_is_not_an_environment_is_refused():
    with pytest.raises(ProgramError, match="got 3"):
        make_environment(3)
    with pytest.raises(ProgramError, match="returned 5"):
        make_environment(lambda: 5)


def test_the_spec_says_what_the_environment_says():
    environment = Catch()
    spec = make_environment_spec(environment)
    assert spec.observations == environment.observation_spec()
    assert num_discrete_actions(spec, agent="DQN") == 3
    with pytest.raises(ProgramError, match="DQN needs an environment with discrete actions"):
        num_discrete_actions(spec._replace(actions=spec.observations), agent="DQN")
