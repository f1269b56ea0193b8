"""DQN as a program: the graph, and what each of its nodes is made of.

    import topology as lp
    from topology.agents.dqn.program import DQN, DQNConfig
    lp.launch(DQN(DQNConfig(environment="catch")).build(), "local_mp").wait()

Modules that load JAX are imported in the nodes that need them, so that a counter or a replay node never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from topology.agents.core import distributed
from topology.agents.core.distributed import DistributedAgent, restarts_of
from topology.agents.core.exploration import epsilon_ladder
from topology.agents.dqn.config import DQNConfig
from topology.agents.dqn.replay import make_table
from topology.environments.specs import num_discrete_actions
from topology.nodes.replay import Table
from topology.program import Program

if TYPE_CHECKING:
    from topology.agents.dqn.builder import DQNBuilder

__all__ = ["DQN", "PRELOAD", "DQNConfig", "dqn", "restarts"]

PRELOAD = (*distributed.PRELOAD, "topology.agents.dqn.builder")
"""Modules that a launcher of processes may import once for all nodes, before it forks them: they start nothing."""


def dqn(config: DQNConfig) -> Program:
    """DQN: double, n-step, prioritized, with one exploration rate for each actor."""
    return DQN(config).build()


def restarts(config: DQNConfig) -> dict[str, int]:
    """For `lp.launch(..., restarts=...)`: see `max_restarts`. The command `topology launch` asks it by itself."""
    return restarts_of(dqn, config)


@final
class DQN(DistributedAgent[DQNConfig]):
    """A distributed DQN; see `DistributedAgent`."""

    has_policy = True

    def check_spec(self) -> None:
        num_discrete_actions(self.spec, agent="DQN")

    def explorations(self) -> list[float]:
        return [float(epsilon) for epsilon in epsilon_ladder(self.config.num_actors)]

    def make_table(self, *, seed: int, lockstep: bool) -> Table:
        return make_table(self.config, self.spec, seed=seed, lockstep=lockstep)

    def make_builder(self, seed: int) -> DQNBuilder:
        from topology.agents.dqn.builder import DQNBuilder

        return DQNBuilder(self.config, self.spec, self.environment, seed)
