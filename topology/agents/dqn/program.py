"""DQN as a program: the graph, and what each of its nodes is made of.

    import topology as lp
    from topology.agents.dqn.program import DQN, DQNConfig
    lp.launch(DQN(DQNConfig(environment="catch")).build(), "local_mp").wait()

Modules that load JAX are imported in the nodes that need them, so that a counter or a replay node never does.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import topology as lp
from topology.agents.core.counter import ChildCounter
from topology.agents.core.counting_service import CountingService
from topology.agents.core.exploration import epsilon_ladder
from topology.agents.core.limiter import FINAL_EVALUATIONS, StepsLimiter
from topology.agents.core.metrics import MetricsWriter
from topology.agents.core.types import VariableSource
from topology.agents.dqn.config import DQNConfig
from topology.agents.dqn.replay import make_table
from topology.context import NodeContext, get_context
from topology.environments import EnvironmentFactory, make_environment, make_environment_spec
from topology.environments.specs import num_discrete_actions
from topology.nodes.replay import Client, Table
from topology.program import Program

if TYPE_CHECKING:
    from topology.agents.core.actor_runner import ActorRunner
    from topology.agents.core.evaluator import Evaluator
    from topology.agents.dqn.builder import DQNBuilder
    from topology.agents.dqn.learner import DQNLearner

__all__ = ["DQN", "PRELOAD", "DQNConfig", "dqn"]

PRELOAD = (
    "topology.agents.core.actor_runner",
    "topology.agents.core.evaluator",
    "topology.agents.dqn.builder",
    "topology.environments.gymnasium",
)
"""Modules that a launcher of processes may import once for all nodes, before it forks them: they start nothing."""


def dqn(config: DQNConfig) -> Program:
    """DQN: double, n-step, prioritized, with one exploration rate for each actor."""
    return DQN(config).build()


class DQN:
    """A distributed DQN. Its methods are what the nodes of its program run.

    Args:
        config: settings.
        environment_factory: makes the environments instead of `config.environment`; travels to the nodes.

    Raises:
        ProgramError: there is no such environment, or its actions are not discrete.
    """

    def __init__(self, config: DQNConfig, environment_factory: EnvironmentFactory | None = None) -> None:
        self._config = config
        self._environment = environment_factory or config.environment
        self._num_actors = config.num_actors
        self._num_caches = config.num_caches
        self._max_actor_steps = config.max_actor_steps
        environment = make_environment(self._environment, seed=0)
        self._spec = make_environment_spec(environment)
        environment.close()
        num_discrete_actions(self._spec, agent="DQN")

    def replay(self) -> list[Table]:
        """The tables of the replay service."""
        from topology.agents.core.seeding import derive_seed

        return [make_table(self._config, self._spec, seed=derive_seed(get_context().seed, self._config.seed))]

    def counter(self) -> CountingService:
        """Holds the totals of the run."""
        limits = {} if self._max_actor_steps is None else {"actor_steps": self._max_actor_steps}
        return CountingService(get_context(), limits=limits, of_one_run=(FINAL_EVALUATIONS,))

    def coordinator(self, counter: Any, max_actor_steps: int) -> StepsLimiter:
        """Stops the program after `max_actor_steps`, and the evaluation that follows them."""
        final = 1 if self._config.final_evaluation_episodes else 0
        return StepsLimiter(counter, max_actor_steps, stop=get_context().stop, final_evaluations=final)

    def learner(self, replay: Client, counter: Any) -> DQNLearner:
        """Learns, and serves its weights."""
        from topology.agents.core.checkpoint import Checkpointer

        context = get_context()
        builder = self._builder(context, accelerator=True)
        directory = context.run_directory
        return builder.make_learner(
            replay,
            counts=ChildCounter(counter, "learner"),
            metrics=MetricsWriter(context),
            stop=context.stop,
            prefetch=1,
            checkpointer=None if directory is None else Checkpointer(Path(directory) / "checkpoints" / "learner"),
        )

    def evaluator(self, source: VariableSource, counter: Any) -> Evaluator:
        """Plays greedily from time to time, and once more at the end."""
        from topology.agents.core.evaluator import EvaluationSchedule, Evaluator

        context, config = get_context(), self._config
        builder = self._builder(context)
        client = builder.make_variable_client(source, in_background=False)
        return Evaluator(
            loop=builder.make_evaluation_loop(client, context.stop),
            client=client,
            counter=counter,
            counts=ChildCounter(counter, "evaluator"),
            schedule=EvaluationSchedule(
                period_steps=config.evaluation_period,
                episodes=config.evaluation_episodes,
                limit=self._max_actor_steps if config.final_evaluation_episodes else None,
                final_episodes=max(1, config.final_evaluation_episodes),
            ),
            metrics=MetricsWriter(context),
            stop=context.stop,
            report=functools.partial(print, flush=True),
        )

    def actor(self, replay: Client, source: VariableSource, counter: Any, epsilon: float) -> ActorRunner:
        """Explores with `epsilon`, and writes what it sees into replay."""
        from topology.agents.core.actor_runner import ActorParts, ActorRunner
        from topology.agents.core.loop import EnvironmentLoop

        context = get_context()
        builder = self._builder(context)
        client = builder.make_variable_client(source, in_background=True)
        adder = builder.make_adder(replay, max_in_flight=self._config.max_in_flight)
        environment, actor = builder.make_environment(), builder.make_actor(client, epsilon=epsilon, adder=adder)
        return ActorRunner(
            parts=ActorParts(EnvironmentLoop(environment, actor), client, (adder, environment)),
            counter=counter,
            counts=ChildCounter(counter, "actor"),
            metrics=MetricsWriter(context),
            stop=context.stop,
            max_actor_steps=self._max_actor_steps,
        )

    def _builder(self, context: NodeContext, *, accelerator: bool = False) -> DQNBuilder:
        from topology.agents.core.devices import prepare_jax

        prepare_jax(context, accelerator=accelerator)
        from topology.agents.dqn.builder import DQNBuilder

        return DQNBuilder(self._config, self._spec, self._environment, context.seed)

    def build(self, name: str = "dqn") -> Program:
        """The graph: replay, counter and coordinator, learner, evaluator, cachers, actors."""
        program = lp.Program(name=name)
        with program.group("replay"):
            replay = program.add_node(lp.ReverbNode(self.replay))
        with program.group("counter"):
            counter = program.add_node(lp.CourierNode(self.counter))
            if self._max_actor_steps:
                program.add_node(lp.CourierNode(self.coordinator, counter, self._max_actor_steps))
        with program.group("learner"):
            learner = program.add_node(lp.CourierNode(self.learner, replay, counter))
        with program.group("evaluator"):
            program.add_node(lp.CourierNode(self.evaluator, learner, counter))
        with program.group("cacher"):
            sources = [program.add_node(self._cacher(learner)) for _ in range(self._num_caches)]
        with program.group("actor"):
            # Actors pull from the cachers in turn.
            for actor_id, epsilon in enumerate(epsilon_ladder(self._num_actors)):
                source = sources[actor_id % len(sources)]
                program.add_node(lp.CourierNode(self.actor, replay, source, counter, epsilon))
        return program

    def _cacher(self, learner: Any) -> lp.CacherNode:
        return lp.CacherNode(
            learner, refresh_interval_ms=self._config.cache_refresh_ms, stale_after_ms=self._config.cache_stale_ms
        )
