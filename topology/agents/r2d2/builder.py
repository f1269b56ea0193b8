"""The parts of R2D2, put together: for the nodes of the program and for a run in one process alike."""

from __future__ import annotations

from typing import final

import numpy as np

from topology.agents.core.builder import EXPLORATION, WEIGHTS, AgentBuilder
from topology.agents.core.learner import Learning
from topology.agents.core.policy import Policy
from topology.agents.core.sequences import SequenceAdder
from topology.agents.core.types import Adder
from topology.agents.core.variables import VariableClient
from topology.agents.r2d2.actor import R2D2Actor, make_policy
from topology.agents.r2d2.config import R2D2Config
from topology.agents.r2d2.learner import TrainingState, make_initial_state, make_update
from topology.agents.r2d2.networks import make_network
from topology.agents.r2d2.state import TABLE, signature
from topology.environments import EnvironmentFactory
from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay import Client

__all__ = ["R2D2Builder"]


@final
class R2D2Builder(AgentBuilder[R2D2Config]):
    """Makes the parts of one node; see `AgentBuilder`."""

    def __init__(
        self, config: R2D2Config, spec: EnvironmentSpec, environment: str | EnvironmentFactory, node_seed: int
    ) -> None:
        super().__init__(config, spec, environment, node_seed)
        self._network = make_network(config, spec)

    def make_adder(self, replay: Client, *, max_in_flight: int) -> SequenceAdder:
        length = self.config.sequence_length
        return SequenceAdder(
            replay.trajectory_writer(SequenceAdder.num_keep_alive_refs(length)),
            table=TABLE,
            length=length,
            period=self.config.replay_period,
            discount=self.config.discount,
            max_in_flight=max_in_flight,
        )

    def make_actor(self, client: VariableClient, *, exploration: float | None, adder: Adder | None) -> R2D2Actor:
        if exploration is None:
            raise ValueError("an actor of R2D2 needs its epsilon")
        return R2D2Actor(
            network=self._network,
            epsilon=exploration,
            client=client,
            random=np.random.default_rng(self.seed(EXPLORATION)),
            adder=adder,
        )

    def make_policy(self) -> Policy:
        return make_policy(self._network)

    def make_evaluation_actor(self, client: VariableClient) -> R2D2Actor:
        return self.make_actor(client, exploration=self.config.evaluator_epsilon, adder=None)

    def make_learning(self) -> Learning[TrainingState]:
        return Learning(
            state=make_initial_state(self._network, self.spec, self.config, self.seed(WEIGHTS)),
            update=make_update(self._network, self.config),
            variables={"policy": lambda state: state.params, "target": lambda state: state.target_params},
            table=TABLE,
            signature=signature(self.config, self.spec),
        )
