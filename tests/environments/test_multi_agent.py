"""Environments of several agents: their rules, their known returns, and what each step must have."""

import itertools

import dm_env
import numpy as np
import pytest

from topology.environments import make_environment
from topology.environments.multi_agent import ACTION_MASK, mask_of, observation_of
from topology.environments.switch_riddle import SwitchRiddle
from topology.environments.two_step import TwoStepGame


def play(environment, policy):
    """The return of an episode, the same for each agent, and its length."""
    timestep, total, steps = environment.reset(), 0.0, 0
    while not timestep.last():
        timestep = environment.step(policy(timestep.observation))
        (reward,) = set(timestep.reward.values())
        total, steps = total + reward, steps + 1
    return total, steps


def random_policy(environment, seed):
    random = np.random.default_rng(seed)
    spec = environment.action_spec()

    def act(observation):
        legal = {agent: mask_of(view) for agent, view in observation.items()}
        choices = {a: range(spec[a].num_values) if m is None else np.flatnonzero(m) for a, m in legal.items()}
        return {agent: int(random.choice(choice)) for agent, choice in choices.items()}

    return act


def check_step(environment, timestep):
    """What the class of all multi-agent environments promises."""
    spec = environment.observation_spec()
    assert list(timestep.observation) == list(environment.agents) == list(spec)
    for agent, view in timestep.observation.items():
        own = spec[agent]
        observation_of(own).validate(observation_of(view))
        if mask_of(own) is not None:
            mask_of(own).validate(mask_of(view))
            assert mask_of(view).any()
    if timestep.first():
        assert timestep.reward is None
        return
    for agent in environment.agents:
        environment.reward_spec()[agent].validate(timestep.reward[agent])
        environment.discount_spec()[agent].validate(timestep.discount[agent])


@pytest.mark.parametrize("name", ["two_step", "switch_riddle"])
def test_each_step_has_an_entry_for_each_agent_as_the_specs_say(name):
    environment = make_environment(name, seed=1)
    act = random_policy(environment, 2)
    timestep = environment.step({})  # begins the first episode
    assert timestep.first()
    for _ in range(100):
        check_step(environment, timestep)
        timestep = environment.reset() if timestep.last() else environment.step(act(timestep.observation))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(0, (a, b), 7.0) for a in (0, 1) for b in (0, 1)]
    + [(1, (0, 0), 0.0), (1, (0, 1), 1.0), (1, (1, 0), 1.0), (1, (1, 1), 8.0)],
)
def test_the_two_step_game_pays_what_the_paper_says(first, second, expected):
    environment = TwoStepGame()
    for other in (0, 1):  # the other's first action changes nothing
        assert environment.reset().observation["agent_1"].tolist() == [1, 0, 0]
        middle = environment.step({"agent_0": first, "agent_1": other})
        assert middle.observation["agent_0"].tolist() == [[0, 1, 0], [0, 0, 1]][first]
        assert (middle.reward["agent_0"], middle.discount["agent_1"], middle.mid()) == (0.0, 1.0, True)
        last = environment.step(dict(zip(environment.agents, second, strict=True)))
        assert last.last()
        assert last.reward == {"agent_0": expected, "agent_1": expected}
        assert last.discount == {"agent_0": 0.0, "agent_1": 0.0}


def test_the_two_step_game_refuses_other_actions():
    environment = TwoStepGame()
    environment.reset()
    with pytest.raises(ValueError, match="takes the actions 0 and 1, got"):
        environment.step({"agent_0": 2, "agent_1": 0})


def count_days(days):
    """The best policy with a memory: on the last day, whoever is in the room tells."""
    day = itertools.count(1)

    def act(observation):
        tell = 2 if next(day) % days == 0 else 0
        return {agent: tell if mask_of(view)[2] else 0 for agent, view in observation.items()}

    return act


@pytest.mark.parametrize(("num_agents", "days"), [(2, 2), (3, 6), (4, 10)])
def test_counting_the_days_solves_the_riddle(num_agents, days):
    environment = SwitchRiddle(num_agents, seed=3)
    act = count_days(days)
    assert [play(environment, act) for _ in range(50)] == [(1.0, days)] * 50


def test_in_the_original_riddle_counting_is_a_gamble():
    environment = SwitchRiddle(everyone_visits=False, seed=3)
    act = count_days(6)
    mean = np.mean([play(environment, act)[0] for _ in range(1000)])
    # All three have come within six days with probability 1 - 3 (2/3)^6 + 3 (1/3)^6 = 0.741.
    assert mean == pytest.approx(2 * 0.741 - 1, abs=0.06)


def test_the_first_day_is_too_early_and_silence_gets_nothing():
    environment = SwitchRiddle(seed=0)
    tell = lambda observation: {a: 2 if mask_of(view)[2] else 0 for a, view in observation.items()}  # noqa: E731
    assert play(environment, tell) == (-1.0, 1)
    assert play(environment, lambda observation: dict.fromkeys(observation, 0)) == (0.0, 6)


def test_only_the_one_in_the_room_sees_the_switch_as_it_was_left():
    environment = SwitchRiddle(seed=5)
    timestep, left = environment.reset(), 0
    for day in range(5):
        inside = [agent for agent, view in timestep.observation.items() if observation_of(view)[0]]
        assert len(inside) == 1
        for agent, view in timestep.observation.items():
            assert view[ACTION_MASK].tolist() == ([1, 1, 1] if agent in inside else [1, 0, 0])
            assert observation_of(view)[1] == (left if agent in inside else 0)
        left = day % 2
        timestep = environment.step({agent: left if agent in inside else 0 for agent in environment.agents})


def test_nobody_tells_from_outside():
    environment = SwitchRiddle(seed=5)
    environment.reset()
    with pytest.raises(ValueError, match="in the room it takes 0"):
        environment.step(dict.fromkeys(environment.agents, 2))
    with pytest.raises(ValueError, match="at least 2 agents"):
        SwitchRiddle(1)


def test_the_seed_says_who_comes_when():
    def visits(seed):
        environment = SwitchRiddle(seed=seed)
        act = random_policy(environment, 0)
        timestep, seen = environment.reset(), []
        for _ in range(200):
            seen.append([int(observation_of(view)[0]) for view in timestep.observation.values()])
            timestep = environment.reset() if timestep.last() else environment.step(act(timestep.observation))
        return seen

    assert visits(4) == visits(4) != visits(5)


def test_they_are_environments_of_dm_env():
    assert all(isinstance(make_environment(name), dm_env.Environment) for name in ("two_step", "switch_riddle"))
