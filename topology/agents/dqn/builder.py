"""The parts of DQN, put together: for the nodes of the program and for a run in one process alike."""

from __future__ import annotations

from typing import final

import numpy as np

from topology.agents.core.builder import EXPLORATION, WEIGHTS, AgentBuilder
from topology.agents.core.learner import Learning
from topology.agents.core.policy import Policy
from topology.agents.core.transitions import NStepTransitionAdder, transition_signature
from topology.agents.core.types import Adder
from topology.agents.core.variables import VariableClient
from topology.agents.dqn.actor import DQNActor, make_greedy, make_policy
from topology.agents.dqn.config import DQNConfig
from topology.agents.dqn.learner import TrainingState, make_initial_state, make_update
from topology.agents.dqn.networks import make_network
from topology.agents.dqn.replay import TABLE
from topology.environments import EnvironmentFactory
from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay import Client

__all__ = ["DQNBuilder"]


@final
class DQNBuilder(AgentBuilder[DQNConfig]):
    """Makes the parts of one node; see `AgentBuilder`."""

    def __init__(
        self, config: DQNConfig, spec: EnvironmentSpec, environment: str | EnvironmentFactory, node_seed: int
    ) -> None:
        super().__init__(config, spec, environment, node_seed)
        self._network = make_network(config, spec)

    def make_adder(self, replay: Client, *, max_in_flight: int) -> NStepTransitionAdder:
        n_step = self.config.n_step
        return NStepTransitionAdder(
            replay.trajectory_writer(NStepTransitionAdder.num_keep_alive_refs(n_step)),
            table=TABLE,
            n_step=n_step,
            discount=self.config.discount,
            max_in_flight=max_in_flight,
        )

    def make_actor(self, client: VariableClient, *, exploration: float | None, adder: Adder | None) -> DQNActor:
        if exploration is None:
            raise ValueError("an actor of DQN needs its epsilon")
        return DQNActor(
            policy=make_greedy(self._network),
            num_actions=self._network.num_actions,
            epsilon=exploration,
            client=client,
            random=np.random.default_rng(self.seed(EXPLORATION)),
            adder=adder,
        )

    def make_evaluation_actor(self, client: VariableClient) -> DQNActor:
        return self.make_actor(client, exploration=self.config.evaluator_epsilon, adder=None)

    def make_policy(self) -> Policy:
        return make_policy(self._network)

    def make_learning(self) -> Learning[TrainingState]:
        return Learning(
            state=make_initial_state(self._network, self.spec, self.config, self.seed(WEIGHTS)),
            update=make_update(self._network, self.config),
            variables={"policy": lambda state: state.params, "target": lambda state: state.target_params},
            table=TABLE,
            signature=transition_signature(self.spec),
            remedy="lower learning_rate or max_gradient_norm, or clip the rewards with max_abs_reward",
        )
