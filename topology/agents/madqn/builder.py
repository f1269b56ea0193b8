"""The parts of MADQN, put together: for the nodes of the program and for a run in one process alike."""

from __future__ import annotations

from typing import final

from topology.agents.core.builder import WEIGHTS, AgentBuilder
from topology.agents.core.learner import Learning
from topology.agents.core.policy import Policy
from topology.agents.core.sequences import SequenceAdder
from topology.agents.madqn.actor import TeamAdder, make_policy
from topology.agents.madqn.config import MADQNConfig
from topology.agents.madqn.learner import TrainingState, make_initial_state, make_update
from topology.agents.madqn.networks import make_team_network
from topology.agents.madqn.team import TABLE, make_team, signature
from topology.environments import EnvironmentFactory
from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay import Client

__all__ = ["MADQNBuilder"]


@final
class MADQNBuilder(AgentBuilder[MADQNConfig]):
    """Makes the parts of one node; see `AgentBuilder`."""

    def __init__(
        self, config: MADQNConfig, spec: EnvironmentSpec, environment: str | EnvironmentFactory, node_seed: int
    ) -> None:
        super().__init__(config, spec, environment, node_seed)
        self._team = make_team(spec, shared_weights=config.shared_weights)
        self._network = make_team_network(self._team, config)

    def make_adder(self, replay: Client, *, max_in_flight: int) -> TeamAdder:
        length = self.config.sequence_length
        adder = SequenceAdder(
            replay.trajectory_writer(SequenceAdder.num_keep_alive_refs(length)),
            table=TABLE,
            length=length,
            period=self.config.replay_period,
            discount=self.config.discount,
            max_in_flight=max_in_flight,
            # Without a memory nothing is lost by going on across episodes. With one, most sequences of short episodes
            # would begin in the middle of one, with a memory of weights that are long gone.
            spans_episodes=not self.config.recurrent,
        )
        return TeamAdder(self._team, adder)

    def make_policy(self) -> Policy:
        """All agents of an environment, who explore as the trainer says: its epsilon comes with the weights."""
        return make_policy(self._network, explores=True)

    def make_evaluation_policy(self) -> Policy:
        return make_policy(self._network, explores=False)

    def make_learning(self) -> Learning[TrainingState]:
        return Learning(
            state=make_initial_state(self._network, self.spec, self.config, self.seed(WEIGHTS)),
            update=make_update(self._network, self.config),
            variables={self.policy_variable: lambda state: (state.params, state.epsilon)},
            table=TABLE,
            signature=signature(self.config, self.spec),
        )
