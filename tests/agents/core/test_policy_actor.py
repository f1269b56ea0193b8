"""The actor of a policy: what it gives to its adder, and the state it keeps."""

import dm_env
import numpy as np

from topology.agents.core.policy import Policy, PolicyOutput
from topology.agents.core.policy_actor import PolicyActor


class Adds:
    """A policy that adds the observation to its memory, and acts with the sum and how much it explores."""

    version = 7
    updates = 0

    def __call__(self, observations, states, explorations):
        sums = states + observations
        return PolicyOutput(np.int64(10 * sums + explorations), {"sum": sums}, sums)

    def update(self):
        self.updates += 1


AGENT = Policy(
    act=None,
    initial_state=np.float32(0),
    advance=lambda state, action, reward: state + np.float32(100 * reward),
    annotate=lambda extras, version: extras | {"version": version},
)


class Adder(list):
    def observe_first(self, timestep):
        self.append(timestep)

    def observe(self, action, next_timestep, extras=None, state=None):
        self.append((action, next_timestep.reward, extras, state))


def play(actor):
    first = dm_env.restart(np.float32(1))
    actor.observe_first(first)
    actions = [actor.select_action(first.observation)]
    actor.observe(actions[0], dm_env.transition(2.0, np.float32(3)))
    actor.update()
    actions.append(actor.select_action(np.float32(3)))
    actor.observe(actions[1], dm_env.termination(0.0, np.float32(0)))
    actor.update()
    return actions


def test_it_keeps_a_state_and_gives_what_was_said_of_each_step_to_its_adder():
    adder, policy = Adder(), Adds()
    actor = PolicyActor(AGENT, policy, exploration=5.0, adder=adder)
    assert play(actor) == [15, 2045]  # 10 * 1 + 5; then 1 + 100 * 2 + 3 = 204
    assert adder[1:] == [(15, 2.0, {"sum": 1.0, "version": 7}, 0.0), (2045, 0.0, {"sum": 204.0, "version": 7}, 201.0)]
    assert type(adder[1][0]) is int
    assert policy.updates == 2
    adder.clear()
    assert play(actor) == [15, 2045], "an episode begins with the initial state"


def test_an_evaluator_needs_no_adder_and_does_not_explore():
    assert play(PolicyActor(AGENT, Adds())) == [10, 2040]
