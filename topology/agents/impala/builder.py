"""The parts of IMPALA, put together: for the nodes of the program and for a run in one process alike."""

from __future__ import annotations

import operator
from typing import final

from topology.agents.core.builder import EXPLORATION, WEIGHTS, AgentBuilder
from topology.agents.core.learner import Learning
from topology.agents.core.policy import LocalPolicy, Policy
from topology.agents.core.sequences import SequenceAdder
from topology.agents.core.types import Adder
from topology.agents.core.variables import VariableClient
from topology.agents.impala.actor import IMPALAActor, make_policy
from topology.agents.impala.config import IMPALAConfig
from topology.agents.impala.learner import TrainingState, make_initial_state, make_update
from topology.agents.impala.networks import make_network
from topology.agents.impala.replay import TABLE, signature
from topology.environments import EnvironmentFactory
from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay import Client

__all__ = ["IMPALABuilder"]


@final
class IMPALABuilder(AgentBuilder[IMPALAConfig]):
    """Makes the parts of one node; see `AgentBuilder`."""

    def __init__(
        self, config: IMPALAConfig, spec: EnvironmentSpec, environment: str | EnvironmentFactory, node_seed: int
    ) -> None:
        super().__init__(config, spec, environment, node_seed)
        self._network = make_network(config, spec)

    def make_adder(self, replay: Client, *, max_in_flight: int) -> SequenceAdder:
        config = self.config
        return SequenceAdder(
            replay.trajectory_writer(SequenceAdder.num_keep_alive_refs(config.sequence_length)),
            table=TABLE,
            length=config.sequence_length,
            period=config.period,
            discount=config.discount,
            max_in_flight=max_in_flight,
            spans_episodes=config.spans_episodes,
        )

    def make_actor(self, client: VariableClient, *, exploration: float | None, adder: Adder) -> IMPALAActor:  # noqa: ARG002
        return self._make_actor(self.make_policy(), client, adder)

    def make_policy(self) -> Policy:
        return make_policy(self._network, greedy=False)

    def make_evaluation_actor(self, client: VariableClient) -> IMPALAActor:
        return self._make_actor(make_policy(self._network, greedy=self.config.greedy_evaluation), client)

    def _make_actor(self, agent: Policy, client: VariableClient, adder: Adder | None = None) -> IMPALAActor:
        return IMPALAActor(agent=agent, policy=LocalPolicy(agent, client, seed=self.seed(EXPLORATION)), adder=adder)

    def make_learning(self) -> Learning[TrainingState]:
        return Learning(
            state=make_initial_state(self._network, self.spec, self.config, self.seed(WEIGHTS)),
            update=make_update(self._network, self.config),
            variables={self.policy_variable: operator.attrgetter("params")},
            table=TABLE,
            signature=signature(self.config, self.spec),
            remedy="lower learning_rate or max_gradient_norm, or clip the rewards with max_abs_reward",
        )
