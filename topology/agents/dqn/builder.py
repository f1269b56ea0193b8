"""The parts of DQN, put together: for the nodes of the program and for a run in one process alike."""

from __future__ import annotations

from typing import final

import dm_env
import numpy as np

from topology.agents.core.checkpoint import Checkpointer
from topology.agents.core.counter import ChildCounter
from topology.agents.core.loop import EnvironmentLoop
from topology.agents.core.metrics import RowWriter
from topology.agents.core.replay import ReplayBatches
from topology.agents.core.seeding import derive_seed
from topology.agents.core.transitions import NStepTransitionAdder
from topology.agents.core.types import VariableSource
from topology.agents.core.variables import VariableClient
from topology.agents.dqn.actor import DQNActor, make_greedy
from topology.agents.dqn.config import DQNConfig
from topology.agents.dqn.learner import DQNLearner
from topology.agents.dqn.networks import make_network
from topology.agents.dqn.replay import TABLE
from topology.context import StopToken
from topology.environments import EnvironmentFactory, make_environment
from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay import Client

__all__ = ["DQNBuilder"]

_ENVIRONMENT, _EXPLORATION, _WEIGHTS = range(3)


@final
class DQNBuilder:
    """Makes the parts of one node.

    Args:
        config: settings.
        spec: of the environment.
        environment: makes it; see `make_environment`.
        node_seed: seed of the node. All that is random is a function of it and of `config.seed`.
    """

    def __init__(
        self, config: DQNConfig, spec: EnvironmentSpec, environment: str | EnvironmentFactory, node_seed: int
    ) -> None:
        self._config = config
        self._spec = spec
        self._environment = environment
        self._node_seed = node_seed
        self._network = make_network(spec, config.hidden_sizes)

    def _seed(self, use: int) -> int:
        return derive_seed(self._node_seed, self._config.seed, use)

    def make_environment(self) -> dm_env.Environment:
        """The environment of an actor or evaluator."""
        return make_environment(self._environment, seed=self._seed(_ENVIRONMENT))

    def make_variable_client(self, source: VariableSource, *, in_background: bool) -> VariableClient:
        """Pulls the policy: in the background, or only when it is waited for."""
        period = self._config.variable_update_period if in_background else None
        return VariableClient(source, ["policy"], update_period=period)

    def make_adder(self, replay: Client, *, max_in_flight: int) -> NStepTransitionAdder:
        """Writes an actor's steps into the table."""
        n_step = self._config.n_step
        writer = replay.trajectory_writer(NStepTransitionAdder.num_keep_alive_refs(n_step))
        return NStepTransitionAdder(
            writer,
            table=TABLE,
            n_step=n_step,
            discount=self._config.discount,
            max_in_flight=max_in_flight,
        )

    def make_actor(
        self, client: VariableClient, *, epsilon: float, adder: NStepTransitionAdder | None = None
    ) -> DQNActor:
        """An actor or, without an adder, an evaluator."""
        return DQNActor(
            policy=make_greedy(self._network),
            num_actions=self._network.num_actions,
            epsilon=epsilon,
            client=client,
            random=np.random.default_rng(self._seed(_EXPLORATION)),
            adder=adder,
        )

    def make_evaluation_loop(self, client: VariableClient, stop: StopToken) -> EnvironmentLoop:
        """Plays with the weights of `client` until asked to stop."""
        actor = self.make_actor(client, epsilon=self._config.evaluator_epsilon)
        return EnvironmentLoop(self.make_environment(), actor, should_stop=stop.is_set)

    def make_learner(
        self,
        replay: Client,
        *,
        counts: ChildCounter,
        metrics: RowWriter,
        stop: StopToken,
        prefetch: int,
        checkpointer: Checkpointer | None = None,
    ) -> DQNLearner:
        """The learner, restored from the newest checkpoint if there is one."""
        batch_size = self._config.updates_per_call * self._config.batch_size
        return DQNLearner(
            network=self._network,
            spec=self._spec,
            config=self._config,
            replay=ReplayBatches(replay, table=TABLE, batch_size=batch_size, prefetch=prefetch),
            counts=counts,
            metrics=metrics,
            stop=stop,
            seed=self._seed(_WEIGHTS),
            checkpointer=checkpointer,
        )
