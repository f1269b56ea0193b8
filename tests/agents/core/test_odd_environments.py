"""Environments with odd specs and habits, in one process: they are played and learned from, or refused with words."""

import dm_env
import numpy as np
import pytest
from dm_env import specs

from topology.agents.core.local import run_local
from topology.agents.dmpo.program import DMPO, DMPOConfig
from topology.agents.dqn.program import DQN, DQNConfig
from topology.agents.impala.program import IMPALA, IMPALAConfig
from topology.agents.madqn.program import MADQN, MADQNConfig
from topology.agents.r2d2.program import R2D2, R2D2Config
from topology.environments.multi_agent import MultiAgentEnvironment
from topology.errors import ProgramError

LIMITS = {"num_actors": 1, "evaluation_episodes": 2, "final_evaluation_episodes": 3, "hidden_sizes": (8,)}
REPLAY = {"min_replay_size": 8, "batch_size": 4, "updates_per_call": 1, "samples_per_insert": 1.0}
SEQUENCES = {"environments_per_actor": 1, "batch_size": 2, "sequence_length": 3, "max_actor_steps": 60}
AGENTS = {
    "dmpo": (DMPO, DMPOConfig, {"num_samples": 2, "max_actor_steps": 60, **REPLAY}),
    "dqn": (DQN, DQNConfig, {"max_actor_steps": 60, **REPLAY}),
    "dqn-of-images": (DQN, DQNConfig, {"max_actor_steps": 20, **REPLAY}),
    "impala": (IMPALA, IMPALAConfig, SEQUENCES),
    "impala-recurrent": (IMPALA, IMPALAConfig, {"lstm_size": 4, "spans_episodes": False, **SEQUENCES}),
    "madqn": (MADQN, MADQNConfig, {"sequence_length": 3, "replay_period": 2, "max_actor_steps": 60, **REPLAY}),
    "r2d2": (
        R2D2,
        R2D2Config,
        {"lstm_size": 4, "head_size": 4, "burn_in_length": 1, "trace_length": 2, "replay_period": 2}
        | {"max_actor_steps": 60, **REPLAY},
    ),
}
EACH = [pytest.param(name, marks=[] if name == "dqn" else pytest.mark.slow) for name in AGENTS]


class Odd(dm_env.Environment):
    """One observation, one action (or a number without axes), reward 1; the episode ends after `length` steps."""

    def __init__(self, spec, action, *, length=None, shows=0.5):
        self._spec, self._action, self._length, self._shows = spec, action, length, shows

    def reset(self):
        self._steps = 0
        return dm_env.restart(self._observation())

    def step(self, action):
        self._action.validate(np.asarray(action, self._action.dtype))
        self._steps += 1
        make = dm_env.termination if self._steps == self._length else dm_env.transition
        return make(1.0, self._observation())

    def _observation(self):
        return np.full(self._spec.shape, self._shows, self._spec.dtype)

    def observation_spec(self):
        return self._spec

    def action_spec(self):
        return self._action


class OddTeam(MultiAgentEnvironment):
    """Two agents with the one action there is."""

    agents = ("a", "b")

    def __init__(self, spec, *, length=None, shows=0.5):
        self._inner = Odd(spec, specs.DiscreteArray(1), length=length, shows=shows)

    def reset(self):
        return self._for_all(self._inner.reset())

    def step(self, action):
        return self._for_all(self._inner.step(action["a"]))

    def _for_all(self, timestep):
        return timestep._replace(
            observation=self.for_all(timestep.observation),
            reward=None if timestep.reward is None else self.for_all(timestep.reward),
            discount=None if timestep.discount is None else self.for_all(timestep.discount),
        )

    def observation_spec(self):
        return self.for_all(self._inner.observation_spec())

    def action_spec(self):
        return self.for_all(self._inner.action_spec())


def make(name, **options):
    agent, config, settings = AGENTS[name]
    spec = specs.Array((9, 9, 1), np.uint8) if name == "dqn-of-images" else specs.Array((), np.float64)
    action = specs.BoundedArray((), np.float64, -2.0, 2.0) if name == "dmpo" else specs.DiscreteArray(1)

    def environment():
        return OddTeam(spec, **options) if name == "madqn" else Odd(spec, action, **options)

    return agent(config(max_evaluation_steps=7, **LIMITS, **settings), environment)


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("length", [1, None], ids=["episodes of one step", "an episode without end"])
def test_numbers_without_axes_one_action_and_episodes_of_any_length(name, length):
    result = run_local(make(name, length=length))
    assert result.counts["learner_steps"] > 0
    assert result.evaluations[-1][1][:2] == (length or 7, 3)


@pytest.mark.parametrize("name", [param for param in EACH if "dqn-of-images" not in param.values])
def test_observations_that_are_not_finite_are_named(name):
    with pytest.raises(FloatingPointError, match=r"not finite .*see to it in the environment"):
        run_local(make(name, length=3, shows=np.nan))


@pytest.mark.parametrize("several", [False, True])
def test_observations_that_are_not_of_their_spec_are_named(several):
    wrong = DQNConfig(num_actors=1, environments_per_actor=1 + several, max_actor_steps=60, **REPLAY)

    class Wrong(Odd):
        def _observation(self):
            return np.zeros((3,))

    def environment():
        return Wrong(specs.Array((3,), np.float32), specs.DiscreteArray(2))

    with pytest.raises(ProgramError, match=r"environment Wrong .* the observation is float64\[3\], .* float32\[3\]"):
        run_local(DQN(wrong, environment))


@pytest.mark.parametrize("name", EACH)
def test_rewards_that_are_not_finite_are_refused(name, monkeypatch):
    monkeypatch.setattr(dm_env, "transition", lambda reward, observation: dm_env.TimeStep(1, np.nan, 1.0, observation))
    with pytest.raises(ProgramError, match=r"gave the reward .*nan"):
        run_local(make(name))
