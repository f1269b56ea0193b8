"""What an agent is made of: one class says how each part is made, for the nodes of a program and one process alike."""

from __future__ import annotations

import abc
import functools
from typing import Any, Generic, TypeVar

import dm_env

from topology.agents.core.actor_runner import ActorParts
from topology.agents.core.checkpoint import Checkpointer
from topology.agents.core.config import AgentConfig
from topology.agents.core.counter import ChildCounter
from topology.agents.core.inference import ServedPolicy
from topology.agents.core.learner import Learner, Learning, zeros_like_spec
from topology.agents.core.loop import EnvironmentLoop
from topology.agents.core.metrics import RowWriter
from topology.agents.core.policy import LocalPolicy, Policy
from topology.agents.core.policy_actor import PolicyActor
from topology.agents.core.replay import ReplayBatches
from topology.agents.core.seeding import derive_seed
from topology.agents.core.types import Actor, Adder, VariableSource
from topology.agents.core.variables import VariableClient
from topology.agents.core.vector import VectorLoop
from topology.context import StopToken
from topology.environments import EnvironmentFactory, make_environment
from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay import Client

__all__ = ["ENVIRONMENT", "EXPLORATION", "WEIGHTS", "AgentBuilder"]

ENVIRONMENT, EXPLORATION, WEIGHTS = range(3)
"""Uses of a node's seed; see `AgentBuilder.seed`."""

ConfigT = TypeVar("ConfigT", bound=AgentConfig)


class AgentBuilder(abc.ABC, Generic[ConfigT]):
    """Makes the parts of one node of an agent.

    Args:
        config: settings.
        spec: of the environment.
        environment: makes it; see `make_environment`.
        node_seed: seed of the node. All that is random is a function of it and of `config.seed`.
    """

    policy_variable = "policy"
    """Name of the weights that actors and evaluators pull."""

    def __init__(
        self, config: ConfigT, spec: EnvironmentSpec, environment: str | EnvironmentFactory, node_seed: int
    ) -> None:
        self.config = config
        self.spec = spec
        self._environment = environment
        self._node_seed = node_seed

    def seed(self, use: int, index: int = 0) -> int:
        """A seed for one use, e.g. `EXPLORATION`; `index` tells several of one node apart."""
        return derive_seed(self._node_seed, self.config.seed, use, *([index] if index else []))

    def make_environment(self, index: int = 0) -> dm_env.Environment:
        """An environment of an actor, or that of an evaluator."""
        return make_environment(self._environment, seed=self.seed(ENVIRONMENT, index))

    def make_variable_client(self, source: VariableSource, *, in_background: bool) -> VariableClient:
        """Pulls the policy: in the background, or only when it is waited for."""
        period = self.config.variable_update_period if in_background else None
        return VariableClient(source, [self.policy_variable], update_period=period)

    @abc.abstractmethod
    def make_adder(self, replay: Client, *, max_in_flight: int) -> Adder:
        """Writes an actor's steps into the table; lets so many items be on their way before it waits."""

    def make_policy(self) -> Policy:
        """How actors act. An agent that has such a policy says so with `DistributedAgent.has_policy`.

        Raises:
            NotImplementedError: the agent has none.
        """
        raise NotImplementedError(f"{type(self).__name__} has no policy for many observations at once")

    def make_evaluation_policy(self) -> Policy:
        """How evaluators act: as actors, with an exploration of 0."""
        return self.make_policy()

    def make_actor(self, client: VariableClient, *, exploration: float | None, adder: Adder) -> Actor:
        """An actor that explores.

        Args:
            client: gives the weights.
            exploration: what the graph gave this actor, e.g. its epsilon; None where it gives nothing.
            adder: gets the steps.
        """
        return self._act_by(self.make_policy(), client, exploration=exploration, adder=adder)

    def make_evaluation_actor(self, client: VariableClient) -> Actor:
        """The actor of an evaluator: plays as well as it can, adds nothing."""
        return self._act_by(self.make_evaluation_policy(), client)

    def _act_by(
        self, agent: Policy, client: VariableClient, *, exploration: float | None = None, adder: Adder | None = None
    ) -> PolicyActor:
        policy = LocalPolicy(agent, client, seed=self.seed(EXPLORATION))
        return PolicyActor(agent, policy, exploration=exploration, adder=adder)

    def make_actor_parts(
        self, source: Any, replay: Client, *, exploration: float | None, max_in_flight: int, served: bool
    ) -> ActorParts:
        """What an actor is made of, by the settings: one environment or several, its own weights or a server's.

        Args:
            source: of weights or, where `served`, courier client of an inference server.
            replay: gets the steps.
            exploration: see `make_actor`.
            max_in_flight: see `make_adder`; of each environment.
            served: whether an inference server chooses the actions.
        """
        indices = range(self.config.environments_per_actor)
        environments = [self.make_environment(index) for index in indices]
        adders = [self.make_adder(replay, max_in_flight=max_in_flight) for _ in indices]
        closables = (*adders, *environments)
        make_loop = functools.partial(
            VectorLoop, environments, adders, exploration=exploration, observations=self.spec.observations
        )
        if served:
            server = ServedPolicy(source)
            return ActorParts(make_loop(agent=self.make_policy(), policy=server), server, closables)
        client = self.make_variable_client(source, in_background=True)
        if len(indices) == 1:
            actor = self.make_actor(client, exploration=exploration, adder=adders[0])
            loop = EnvironmentLoop(environments[0], actor, observations=self.spec.observations)
            return ActorParts(loop, client, closables)
        agent = self.make_policy()
        policy = LocalPolicy(agent, client, seed=self.seed(EXPLORATION))
        return ActorParts(make_loop(agent=agent, policy=policy), client, closables)

    def make_evaluation_loop(self, client: VariableClient, stop: StopToken) -> EnvironmentLoop:
        """Plays with the weights of `client` until asked to stop."""
        return EnvironmentLoop(
            self.make_environment(),
            self.make_evaluation_actor(client),
            should_stop=stop.is_set,
            max_episode_steps=self.config.max_evaluation_steps,
            observations=self.spec.observations,
        )

    @abc.abstractmethod
    def make_learning(self) -> Learning[Any]:
        """What the learner of this agent learns, and from which table."""

    def make_learner(
        self,
        replay: Client,
        *,
        counts: ChildCounter,
        metrics: RowWriter,
        stop: StopToken,
        checkpointer: Checkpointer | None = None,
    ) -> Learner[Any]:
        """The learner, restored from the newest checkpoint if there is one."""
        learning, config = self.make_learning(), self.config
        batch_size = config.items_per_call
        return Learner(
            state=learning.state,
            update=learning.update,
            updates_per_call=config.updates_per_call,
            variables=learning.variables,
            replay=ReplayBatches(replay, table=learning.table, batch_size=batch_size),
            example=zeros_like_spec(learning.signature, batch_size),
            counts=counts,
            metrics=metrics,
            stop=stop,
            checkpointer=checkpointer,
            checkpoint_period_s=config.checkpoint_period_s,
            remedy=learning.remedy,
            overlaps=learning.overlaps,
        )
