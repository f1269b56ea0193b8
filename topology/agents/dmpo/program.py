"""DMPO as a program: the graph, and what its nodes are made of.

    import topology as lp
    from topology.agents.dmpo.program import DMPO, DMPOConfig
    lp.launch(DMPO(DMPOConfig(environment="gym:Pendulum-v1")).build(), "local_mp").wait()

Modules that load JAX are imported in the nodes that need them, so that a counter or a replay node never does.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, final

from topology.agents.core import distributed
from topology.agents.core.distributed import DistributedAgent, restarts_of
from topology.agents.core.replay import make_rate_limiter
from topology.agents.core.transitions import transition_signature
from topology.agents.core.types import VariableSource
from topology.agents.dmpo.config import TABLE, DMPOConfig
from topology.environments import EnvironmentFactory
from topology.environments.specs import check_arrays
from topology.environments.unit_actions import make_with_unit_actions
from topology.nodes.replay import Client, Table, selectors
from topology.program import Program

if TYPE_CHECKING:
    from topology.agents.core.actor_runner import ActorRunner
    from topology.agents.dmpo.builder import DMPOBuilder

__all__ = ["DMPO", "PRELOAD", "DMPOConfig", "dmpo", "restarts"]

PRELOAD = (*distributed.PRELOAD, "topology.agents.dmpo.builder")
"""Modules that a launcher of processes may import once for all nodes, before it forks them: they start nothing."""


def dmpo(config: DMPOConfig) -> Program:
    """DMPO: continuous actions, a distributional critic, n-step transitions."""
    return DMPO(config).build()


def restarts(config: DMPOConfig) -> dict[str, int]:
    """For `lp.launch(..., restarts=...)`: see `max_restarts`. The command `topology launch` asks it by itself."""
    return restarts_of(dmpo, config)


@final
class DMPO(DistributedAgent[DMPOConfig]):
    """A distributed DMPO; see `DistributedAgent`. Its environments have continuous actions with finite bounds."""

    has_policy: ClassVar[bool] = True

    def __init__(self, config: DMPOConfig, environment_factory: EnvironmentFactory | None = None) -> None:
        # Everything in here is between -1 and 1; only the environment knows its own bounds.
        environment = environment_factory or config.environment
        super().__init__(config, functools.partial(make_with_unit_actions, environment))

    def check_spec(self) -> None:
        check_arrays(self.spec, agent="DMPO")  # it was refused already if its actions do not fit

    def make_table(self, *, seed: int, lockstep: bool) -> Table:
        return Table(
            TABLE,
            selectors.Uniform(),
            selectors.Fifo(),
            self.config.max_replay_size,
            make_rate_limiter(self.config, lockstep=lockstep),
            signature=transition_signature(self.spec),
            seed=seed,
        )

    def make_builder(self, seed: int) -> DMPOBuilder:
        from topology.agents.dmpo.builder import DMPOBuilder

        return DMPOBuilder(self.config, self.spec, self.environment, seed)

    def actor(  # type: ignore[override]  # the last argument is the original's
        self, replay: Client, source: VariableSource, counter: Any, actor_id: int
    ) -> ActorRunner:
        """Plays, and writes what it sees into replay. `actor_id` tells the actors apart in the graph."""
        del actor_id
        return super().actor(replay, source, counter)

    def actor_arguments(self) -> list[list[Any]]:
        return [[actor_id] for actor_id in range(self.config.num_actors)]
