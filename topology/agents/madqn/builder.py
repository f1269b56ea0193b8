"""The parts of MADQN, put together: for the nodes of the program and for a run in one process alike."""

from __future__ import annotations

from typing import final

import numpy as np

from topology.agents.core.builder import EXPLORATION, WEIGHTS, AgentBuilder
from topology.agents.core.learner import Learning
from topology.agents.core.sequences import SequenceAdder
from topology.agents.core.types import Adder, VariableSource
from topology.agents.core.variables import VariableClient
from topology.agents.madqn.actor import EPSILON, POLICY, MADQNActor, make_policy
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

    def make_variable_client(self, source: VariableSource, *, in_background: bool) -> VariableClient:
        """Pulls the weights, and with them, in the same request, how much to explore."""
        period = self.config.variable_update_period if in_background else None
        return VariableClient(source, [POLICY, EPSILON], update_period=period)

    def make_adder(self, replay: Client, *, max_in_flight: int) -> SequenceAdder:
        length = self.config.sequence_length
        return SequenceAdder(
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

    def make_actor(self, client: VariableClient, *, exploration: float | None, adder: Adder | None) -> MADQNActor:
        """All agents of one environment. They explore as the trainer says, so `exploration` must be None."""
        if exploration is not None:
            raise ValueError(f"an executor of MADQN gets its epsilon from the trainer, but was given {exploration}")
        size = (len(self._team.agents), self.config.memory_size)
        return MADQNActor(
            team=self._team,
            policy=make_policy(self._network),
            memory=np.zeros(size, np.float32) if self.config.recurrent else (),
            client=client,
            random=np.random.default_rng(self.seed(EXPLORATION)),
            adder=adder,
        )

    def make_evaluation_actor(self, client: VariableClient) -> MADQNActor:
        return self.make_actor(client, exploration=None, adder=None)

    def make_learning(self) -> Learning[TrainingState]:
        return Learning(
            state=make_initial_state(self._network, self.spec, self.config, self.seed(WEIGHTS)),
            update=make_update(self._network, self.config),
            variables={POLICY: lambda state: state.params, EPSILON: lambda state: state.epsilon},
            table=TABLE,
            signature=signature(self.config, self.spec),
        )
