"""Agents of `topology.agents.core` as an algorithm that is scaled out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, final

from topology.agents.core.builder import AgentBuilder
from topology.agents.core.loop import EnvironmentLoop
from topology.agents.core.seeding import derive_seed
from topology.agents.scaleout.agent_config import ScaleOutAgentConfig, load_agent
from topology.agents.scaleout.agent_items import Catch
from topology.agents.scaleout.agent_learning import AgentLearner
from topology.agents.scaleout.agent_playing import AgentActing, AgentPlayed, AgentPlayer, PolicySource, RenewedAdder
from topology.agents.scaleout.algorithm import Algorithm
from topology.agents.scaleout.config import Synchronization
from topology.agents.scaleout.roles import Cast, Columns, Follow
from topology.environments import EnvironmentFactory
from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay import Client

__all__ = ["AnyAgent"]


@final
class AnyAgent(Algorithm[ScaleOutAgentConfig]):
    """The parts of an agent, with stores between those who play and the one who learns; see `Algorithm`."""

    def __init__(
        self, config: ScaleOutAgentConfig, spec: EnvironmentSpec, environment_factory: EnvironmentFactory | None = None
    ) -> None:
        super().__init__(config, spec, environment_factory)
        self._agent = load_agent(config, environment_factory)

    def make_worker(self, index: int, *, seed: int, follow: Follow | None, should_stop: Callable[[], bool]) -> Cast:
        builder, source = self._make_builder(seed)
        catch = Catch(self._agent.make_table(seed=0, lockstep=True))
        exploration = self._agent.explorations()[index]
        replay = cast(Client, catch)  # it has all that an adder asks a client for
        if follow is None:
            return self._make_sync_worker(builder, source, catch, exploration, should_stop)
        parts = builder.make_actor_parts(source, replay, exploration=exploration, max_in_flight=0, served=False)
        acting = AgentActing(source, parts.weights)
        player = AgentPlayer(
            loop=parts.loop,
            acting=acting,
            catch=catch,
            closables=parts.closables,
            should_stop=should_stop,
            follow=follow,
        )
        return Cast(player, acting, _columns_of)

    def _make_sync_worker(
        self,
        builder: AgentBuilder[Any],
        source: PolicySource,
        catch: Catch,
        exploration: float | None,
        should_stop: Callable[[], bool],
    ) -> Cast:
        """One that plays whole episodes, each share with adders that know of no other."""
        client = builder.make_variable_client(source, in_background=False)
        environment = builder.make_environment()
        adder = RenewedAdder(lambda: builder.make_adder(cast(Client, catch), max_in_flight=0))
        actor = builder.make_actor(client, exploration=exploration, adder=adder)
        loop = EnvironmentLoop(environment, actor, should_stop=should_stop)
        acting = AgentActing(source, client)
        player = AgentPlayer(
            loop=loop,
            acting=acting,
            catch=catch,
            closables=(adder, environment),
            should_stop=should_stop,
            run_episode=loop.run_episode,
            begin_share=adder.renew,
        )
        return Cast(player, acting, _columns_of)

    def make_evaluation(self, *, seed: int, should_stop: Callable[[], bool]) -> Cast:
        builder, source = self._make_builder(seed)
        client = builder.make_variable_client(source, in_background=False)
        environment = builder.make_environment()
        loop = EnvironmentLoop(environment, builder.make_evaluation_actor(client), should_stop=should_stop)
        acting = AgentActing(source, client)
        player = AgentPlayer(
            loop=loop,
            acting=acting,
            catch=None,
            closables=(environment,),
            should_stop=should_stop,
            run_episode=loop.run_episode,
        )
        return Cast(player, acting, _columns_of)

    def make_learner(self, seed: int) -> AgentLearner:
        return AgentLearner(
            self._agent,
            self._agent.make_builder(seed),
            seed=derive_seed(seed, self.config.seed),
            by_rounds=self.config.synchronization is Synchronization.SYNC,
            keep_replay=self.config.checkpoint_replay,
        )

    def _make_builder(self, seed: int) -> tuple[AgentBuilder[Any], PolicySource]:
        """The builder of a node that plays, and where its actors have their weights from."""
        builder = self._agent.make_builder(seed)
        learning = builder.make_learning()
        return builder, PolicySource(learning.variables[builder.policy_variable](learning.state))


def _columns_of(played: AgentPlayed, acting: AgentActing) -> Columns:
    del acting
    return played.columns
