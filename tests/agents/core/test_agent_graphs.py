"""What the graphs of all agents have in common: evaluators, restarts, environments that are refused."""

import dm_env
import numpy as np
import pytest
from dm_env import specs

from topology.agents.dmpo import program as dmpo
from topology.agents.dqn import program as dqn
from topology.agents.impala import program as impala
from topology.agents.madqn import program as madqn
from topology.agents.r2d2 import program as r2d2
from topology.errors import ProgramError

AGENTS = {
    "dmpo": (dmpo, dmpo.DMPO, dmpo.DMPOConfig),
    "dqn": (dqn, dqn.DQN, dqn.DQNConfig),
    "impala": (impala, impala.IMPALA, impala.IMPALAConfig),
    "madqn": (madqn, madqn.MADQN, madqn.MADQNConfig),
    "r2d2": (r2d2, r2d2.R2D2, r2d2.R2D2Config),
}


@pytest.mark.parametrize("name", AGENTS)
def test_there_are_as_many_evaluators_as_asked_for(name):
    _, agent, config = AGENTS[name]
    for count in (0, 1, 2):
        program = agent(config(num_evaluators=count, max_actor_steps=5_000)).build()
        program.validate(serialize=True)
        assert len(program.groups.get("evaluator", [])) == count
        if count == 2:
            arguments = [node.describe().arguments for node in program.groups["evaluator"]]
            assert arguments[0] == arguments[1]


@pytest.mark.parametrize("name", AGENTS)
def test_restarts_name_every_group(name):
    module, agent, config = AGENTS[name]
    assert module.restarts(config()) == {}
    settings = config(max_restarts=3, inference_servers=1)
    assert module.restarts(settings) == dict.fromkeys(agent(settings).build().groups, 3)


class Odd(dm_env.Environment):
    """An environment of these specs, which is never played."""

    def __init__(self, observation, action, reward=None):
        self._specs = observation, action, reward

    def reset(self):
        raise NotImplementedError

    def step(self, action):
        raise NotImplementedError

    def observation_spec(self):
        return self._specs[0]

    def action_spec(self):
        return self._specs[1]

    def reward_spec(self):
        return self._specs[2] or super().reward_spec()


NUMBER = specs.Array((1,), np.float32)
ONE_ACTION = specs.DiscreteArray(1)
BOUNDED = specs.BoundedArray((1,), np.float32, -1, 1)


def action_of(name):
    return BOUNDED if name == "dmpo" else ONE_ACTION


@pytest.mark.parametrize("name", [name for name in AGENTS if name != "madqn"])
def test_environments_without_one_array_to_see_or_one_reward_are_refused(name):
    _, agent, config = AGENTS[name]
    action = action_of(name)
    with pytest.raises(ProgramError, match="whose observation is one array"):
        agent(config(), lambda: Odd({"a": NUMBER, "b": NUMBER}, action))
    with pytest.raises(ProgramError, match="shows something"):
        agent(config(), lambda: Odd(specs.Array((3, 0), np.float32), action))
    with pytest.raises(ProgramError, match="one reward for each step"):
        agent(config(), lambda: Odd(NUMBER, action, specs.Array((2,), np.float32)))
    agent(config(), lambda: Odd(specs.Array((), np.float64), action)).build().validate(serialize=False)


def test_agents_of_a_team_see_one_array_each():
    actions = {"a_0": ONE_ACTION, "a_1": ONE_ACTION}
    for seen in ({"left": NUMBER}, {"observation": {"deep": NUMBER}, "action_mask": NUMBER}, specs.StringArray(())):
        with pytest.raises(ProgramError, match="MADQN needs an agent 'a_0' whose observation is"):
            madqn.MADQN(madqn.MADQNConfig(), lambda seen=seen: Odd(dict.fromkeys(actions, seen), actions))


def test_a_team_gets_a_reward_for_each_of_its_agents():
    team = madqn.make_team(madqn.MADQN(madqn.MADQNConfig()).spec, shared_weights=True)
    for values in (1.0, {"agent_0": 1.0}, None):
        with pytest.raises(ProgramError, match="in dicts with all of their ids, agent_0, agent_1, but this one gave"):
            team.stack(values, np.float32)
