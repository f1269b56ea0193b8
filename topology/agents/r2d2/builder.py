"""The parts of R2D2, put together: for the nodes of the program and for a run in one process alike."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from topology.agents.core.builder import EXPLORATION, WEIGHTS, AgentBuilder
from topology.agents.core.checkpoint import Checkpointer
from topology.agents.core.counter import ChildCounter
from topology.agents.core.learner import Learner, zeros_like_spec
from topology.agents.core.metrics import RowWriter
from topology.agents.core.policy import Policy
from topology.agents.core.replay import ReplayBatches
from topology.agents.core.sequences import SequenceAdder
from topology.agents.core.types import Adder
from topology.agents.core.variables import VariableClient
from topology.agents.r2d2.actor import R2D2Actor, make_policy
from topology.agents.r2d2.config import R2D2Config
from topology.agents.r2d2.learner import TrainingState, make_initial_state, make_update
from topology.agents.r2d2.networks import make_network
from topology.agents.r2d2.state import TABLE, signature
from topology.context import StopToken
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

    def make_learner(
        self,
        replay: Client,
        *,
        counts: ChildCounter,
        metrics: RowWriter,
        stop: StopToken,
        prefetch: int,
        checkpointer: Checkpointer | None = None,
    ) -> Learner[Any]:
        config = self.config
        batches = ReplayBatches(replay, table=TABLE, batch_size=config.items_per_call, prefetch=prefetch)
        return Learner[TrainingState](
            state=make_initial_state(self._network, self.spec, config, self.seed(WEIGHTS)),
            update=make_update(self._network, config),
            updates_per_call=config.updates_per_call,
            variables={"policy": lambda state: state.params, "target": lambda state: state.target_params},
            replay=batches,
            example=zeros_like_spec(signature(config, self.spec), config.items_per_call),
            counts=counts,
            metrics=metrics,
            stop=stop,
            checkpointer=checkpointer,
            checkpoint_period_s=config.checkpoint_period_s,
        )
