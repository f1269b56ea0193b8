"""The parts of IMPALA, put together: for the nodes of the program and for a run in one process alike."""

from __future__ import annotations

import operator
from typing import final

from topology.agents.core.builder import WEIGHTS, AgentBuilder
from topology.agents.core.learner import Learning
from topology.agents.core.policy import Policy
from topology.agents.core.sequences import SequenceAdder
from topology.agents.impala.actor import make_policy
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

    def make_policy(self) -> Policy:
        return make_policy(self._network, greedy=False)

    def make_evaluation_policy(self) -> Policy:
        return make_policy(self._network, greedy=self.config.greedy_evaluation)

    def make_learning(self) -> Learning[TrainingState]:
        return Learning(
            state=make_initial_state(self._network, self.spec, self.config, self.seed(WEIGHTS)),
            update=make_update(self._network, self.config),
            variables={self.policy_variable: operator.attrgetter("params")},
            table=TABLE,
            signature=signature(self.config, self.spec),
            remedy="lower learning_rate or max_gradient_norm, or clip the rewards with max_abs_reward",
            overlaps=False,  # weights reach the actors a call sooner: it learns from what they have just done
        )
