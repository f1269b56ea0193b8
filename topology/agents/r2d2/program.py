"""R2D2 as a program: the graph, and what its nodes are made of.

    import topology as lp
    from topology.agents.r2d2.program import R2D2, R2D2Config
    lp.launch(R2D2(R2D2Config(environment="memory_chain:10")).build(), "local_mp").wait()

Modules that load JAX are imported in the nodes that need them, so that a counter or a replay node never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import topology as lp
from topology.agents.core import distributed
from topology.agents.core.distributed import DistributedAgent, restarts_of
from topology.agents.core.exploration import epsilon_ladder
from topology.agents.core.replay import make_rate_limiter
from topology.agents.r2d2.config import R2D2Config
from topology.agents.r2d2.state import TABLE, signature
from topology.environments.specs import num_discrete_actions
from topology.nodes.replay import Table, selectors
from topology.program import Program

if TYPE_CHECKING:
    from topology.agents.r2d2.builder import R2D2Builder

__all__ = ["PRELOAD", "R2D2", "R2D2Config", "r2d2", "restarts"]

PRELOAD = (*distributed.PRELOAD, "topology.agents.r2d2.builder")
"""Modules that a launcher of processes may import once for all nodes, before it forks them: they start nothing."""


def r2d2(config: R2D2Config) -> Program:
    """R2D2: recurrent, n-step, prioritized sequences, with one exploration rate for each actor."""
    return R2D2(config).build()


def restarts(config: R2D2Config) -> dict[str, int]:
    """For `lp.launch(..., restarts=...)`: see `max_restarts`. The command `topology launch` asks it by itself."""
    return restarts_of(r2d2, config)


@final
class R2D2(DistributedAgent[R2D2Config]):
    """A distributed R2D2; see `DistributedAgent`."""

    has_policy = True

    def check_spec(self) -> None:
        num_discrete_actions(self.spec, agent="R2D2")

    def explorations(self) -> list[float]:
        return [float(epsilon) for epsilon in epsilon_ladder(self.config.num_actors)]

    def make_table(self, *, seed: int, lockstep: bool) -> Table:
        return Table(
            TABLE,
            selectors.Prioritized(self.config.priority_exponent),
            selectors.Fifo(),
            self.config.max_replay_size,
            make_rate_limiter(self.config, lockstep=lockstep),
            signature=signature(self.config, self.spec),
            seed=seed,
        )

    def make_builder(self, seed: int) -> R2D2Builder:
        from topology.agents.r2d2.builder import R2D2Builder

        return R2D2Builder(self.config, self.spec, self.environment, seed)

    def build(self, name: str | None = None) -> Program:
        """The graph: replay, counter, learner, one cacher, evaluator, actors. All weights come through the cacher."""
        program = lp.Program(name=name or "r2d2")
        with program.group("replay"):
            replay = program.add_node(self.make_replay())
        with program.group("counter"):
            counter = self.add_counter(program)
        with program.group("learner"):
            learner = program.add_node(lp.CourierNode(self.learner, replay, counter))
        with program.group("cacher"):
            cacher = program.add_node(self.make_cacher(learner))
        self.add_evaluators(program, cacher, counter)
        sources = self.add_inference(program, [cacher])
        with program.group("actor"):
            for actor_id, epsilon in enumerate(self.explorations()):
                source = sources[actor_id % len(sources)]
                program.add_node(lp.CourierNode(self.actor, replay, source, counter, epsilon))
        return program
