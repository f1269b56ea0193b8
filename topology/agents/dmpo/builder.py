"""The parts of DMPO, put together: for the nodes of the program and for a run in one process alike."""

from __future__ import annotations

from typing import final

from topology.agents.core.builder import WEIGHTS, AgentBuilder
from topology.agents.core.learner import Learning
from topology.agents.core.policy import Policy
from topology.agents.core.transitions import NStepTransitionAdder, transition_signature
from topology.agents.dmpo.actor import make_policy
from topology.agents.dmpo.config import TABLE, DMPOConfig
from topology.agents.dmpo.learner import TrainingState, make_initial_state, make_networks, make_update
from topology.environments import EnvironmentFactory
from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay import Client

__all__ = ["DMPOBuilder"]


@final
class DMPOBuilder(AgentBuilder[DMPOConfig]):
    """Makes the parts of one node; see `AgentBuilder`."""

    def __init__(
        self, config: DMPOConfig, spec: EnvironmentSpec, environment: str | EnvironmentFactory, node_seed: int
    ) -> None:
        super().__init__(config, spec, environment, node_seed)
        self._networks = make_networks(spec, config)

    def make_adder(self, replay: Client, *, max_in_flight: int) -> NStepTransitionAdder:
        n_step = self.config.n_step
        return NStepTransitionAdder(
            replay.trajectory_writer(NStepTransitionAdder.num_keep_alive_refs(n_step)),
            table=TABLE,
            n_step=n_step,
            discount=self.config.discount,
            max_in_flight=max_in_flight,
        )

    def make_policy(self) -> Policy:
        return make_policy(self._networks.policy, self.spec.actions.shape, explore=True)

    def make_evaluation_policy(self) -> Policy:
        return make_policy(self._networks.policy, self.spec.actions.shape, explore=False)

    def make_learning(self) -> Learning[TrainingState]:
        return Learning(
            state=make_initial_state(self._networks, self.spec, self.config, self.seed(WEIGHTS)),
            update=make_update(self._networks, self.config),
            variables={
                "policy": lambda state: state.target_params.policy,
                "critic": lambda state: state.target_params.critic,
            },
            table=TABLE,
            signature=transition_signature(self.spec),
        )
