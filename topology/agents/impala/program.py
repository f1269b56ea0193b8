"""IMPALA as a program: the graph, and what its nodes are made of.

    import topology as lp
    from topology.agents.impala.program import IMPALA, IMPALAConfig
    lp.launch(IMPALA(IMPALAConfig(environment="catch")).build(), "local_mp").wait()

Modules that load JAX are imported in the nodes that need them, so that a counter or a replay node never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from topology.agents.core import distributed
from topology.agents.core.distributed import DistributedAgent, restarts_of
from topology.agents.impala.config import IMPALAConfig
from topology.agents.impala.replay import make_queue
from topology.environments.specs import num_discrete_actions
from topology.nodes.replay import Table
from topology.program import Program

if TYPE_CHECKING:
    from topology.agents.impala.builder import IMPALABuilder

__all__ = ["IMPALA", "PRELOAD", "IMPALAConfig", "impala", "restarts"]

PRELOAD = (*distributed.PRELOAD, "topology.agents.impala.builder")
"""Modules that a launcher of processes may import once for all nodes, before it forks them: they start nothing."""


def impala(config: IMPALAConfig) -> Program:
    """IMPALA: actors that never wait for the learner's weights, a queue, and V-trace."""
    return IMPALA(config).build()


def restarts(config: IMPALAConfig) -> dict[str, int]:
    """For `lp.launch(..., restarts=...)`: see `max_restarts`. The command `topology launch` asks it by itself."""
    return restarts_of(impala, config)


@final
class IMPALA(DistributedAgent[IMPALAConfig]):
    """A distributed IMPALA; see `DistributedAgent`."""

    has_policy = True

    def check_spec(self) -> None:
        num_discrete_actions(self.spec, agent="IMPALA")

    def make_table(self, *, seed: int, lockstep: bool) -> Table:
        return make_queue(self.config, self.spec, seed=seed, lockstep=lockstep)

    def make_builder(self, seed: int) -> IMPALABuilder:
        from topology.agents.impala.builder import IMPALABuilder

        return IMPALABuilder(self.config, self.spec, self.environment, seed)
