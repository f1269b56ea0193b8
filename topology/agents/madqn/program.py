"""MADQN as a program: the graph, and what its nodes are made of.

    import topology as lp
    from topology.agents.madqn.program import MADQN, MADQNConfig
    lp.launch(MADQN(MADQNConfig(environment="two_step", mixing="qmix")).build(), "local_mp").wait()

Modules that load JAX are imported in the nodes that need them, so that a counter or a replay node never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import topology as lp
from topology.agents.core import distributed
from topology.agents.core.distributed import DistributedAgent, restarts_of
from topology.agents.core.replay import make_rate_limiter
from topology.agents.core.types import VariableSource
from topology.agents.madqn.config import MADQNConfig
from topology.agents.madqn.team import TABLE, make_team, signature
from topology.nodes.replay import Client, Table, selectors
from topology.program import Program

if TYPE_CHECKING:
    from topology.agents.core.actor_runner import ActorRunner
    from topology.agents.core.evaluator import Evaluator
    from topology.agents.core.learner import Learner
    from topology.agents.madqn.builder import MADQNBuilder

__all__ = ["MADQN", "PRELOAD", "MADQNConfig", "madqn", "restarts"]

PRELOAD = (*distributed.PRELOAD, "topology.agents.madqn.builder")
"""Modules that a launcher of processes may import once for all nodes, before it forks them: they start nothing."""


def madqn(config: MADQNConfig) -> Program:
    """MADQN: several agents in one environment, by themselves or with mixed values (VDN, QMIX)."""
    return MADQN(config).build()


def restarts(config: MADQNConfig) -> dict[str, int]:
    """For `lp.launch(..., restarts=...)`: see `max_restarts`. The command `topology launch` asks it by itself."""
    return restarts_of(madqn, config)


@final
class MADQN(DistributedAgent[MADQNConfig]):
    """A distributed MADQN; see `DistributedAgent`."""

    has_policy = True

    def check_spec(self) -> None:
        make_team(self.spec, shared_weights=self.config.shared_weights)

    def make_table(self, *, seed: int, lockstep: bool) -> Table:
        return Table(
            TABLE,
            selectors.Uniform(),
            selectors.Fifo(),
            self.config.max_replay_size,
            make_rate_limiter(self.config, lockstep=lockstep),
            signature=signature(self.config, self.spec),
            seed=seed,
        )

    def make_builder(self, seed: int) -> MADQNBuilder:
        from topology.agents.madqn.builder import MADQNBuilder

        return MADQNBuilder(self.config, self.spec, self.environment, seed)

    def trainer(self, replay: Client, counter: Any) -> Learner[Any]:
        """Learns; serves its weights and how much to explore with them."""
        return self.learner(replay, counter)

    def evaluator(self, source: VariableSource, counter: Any, trainer: Any = None) -> Evaluator:
        """Plays from time to time without exploring, and once more at the end."""
        del trainer  # an edge of the original, whose evaluator asked it for an epsilon before every step
        return super().evaluator(source, counter)

    def executor(
        self, executor_id: int, replay: Client, source: VariableSource, counter: Any, trainer: Any
    ) -> ActorRunner:
        """Plays all agents of one environment, and writes what they see into replay."""
        # The original asked the trainer for epsilon before every step of every agent; here it comes with the weights.
        # The number of the executor is that of its node, which has a seed and a place in the logs by it.
        del executor_id, trainer
        return self.actor(replay, source, counter)

    def build(self, name: str | None = None) -> Program:
        """The graph: replay, counter, coordinator, trainer, evaluator, cachers, inference servers, executors.

        The coordinator is there where steps are limited; cachers and inference servers where the settings ask for them.
        """
        program = lp.Program(name=name or "madqn")
        with program.group("replay"):
            replay = program.add_node(self.make_replay())
        with program.group("counter"):
            counter = program.add_node(lp.CourierNode(self.counter))
        if self.config.max_actor_steps:
            with program.group("coordinator"):
                program.add_node(lp.CourierNode(self.coordinator, counter, self.config.max_actor_steps))
        with program.group("trainer"):
            trainer = program.add_node(lp.CourierNode(self.trainer, replay, counter))
        self.add_evaluators(program, trainer, counter, trainer)
        sources = self.add_inference(program, self.add_cachers(program, trainer))
        with program.group("executor"):
            # Executors use the trainer, or the cachers or inference servers, in turn.
            for executor_id in range(self.config.num_actors):
                source = sources[executor_id % len(sources)]
                program.add_node(lp.CourierNode(self.executor, executor_id, replay, source, counter, trainer))
        return program
