"""What the nodes of an agent's program run. The graph itself is the agent's own; see its `build`.

Modules that load JAX are imported in the nodes that need them, so that a counter or a replay node never does.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import topology as lp
from topology.agents.core.config import AgentConfig
from topology.agents.core.counter import ChildCounter
from topology.agents.core.counting_service import CountingService
from topology.agents.core.limiter import FINAL_EVALUATIONS, StepsLimiter
from topology.agents.core.metrics import RowWriter, make_writer
from topology.agents.core.seeding import derive_seed
from topology.agents.core.tensorboard import check_installed
from topology.agents.core.types import VariableSource
from topology.context import NodeContext, get_context
from topology.environments import EnvironmentFactory, make_environment, make_environment_spec
from topology.environments.specs import is_image
from topology.errors import ProgramError
from topology.nodes.replay import Client, Table

if TYPE_CHECKING:
    from topology.agents.core.actor_runner import ActorRunner
    from topology.agents.core.builder import AgentBuilder
    from topology.agents.core.evaluator import Evaluator
    from topology.agents.core.inference import InferenceServer
    from topology.agents.core.learner import Learner

__all__ = ["PRELOAD", "DistributedAgent", "restarts_of"]

PRELOAD = (
    "topology.agents.core.actor_runner",
    "topology.agents.core.evaluator",
    "topology.environments.gymnasium",
)
"""Modules that a launcher of processes may import once for all nodes, before it forks them: they start nothing."""

ConfigT = TypeVar("ConfigT", bound=AgentConfig)


def restarts_of(build: Callable[[ConfigT], lp.Program], config: ConfigT) -> dict[str, int]:
    """What a launcher is told in `restarts`: by group, how often each of its nodes may fail and be started again."""
    return dict.fromkeys(build(config).groups, config.max_restarts) if config.max_restarts else {}


class DistributedAgent(abc.ABC, Generic[ConfigT]):
    """A distributed agent. Its methods are what the nodes of its program run.

    Args:
        config: settings.
        environment_factory: makes the environments instead of `config.environment`; travels to the nodes.

    Raises:
        ProgramError: there is no such environment, or it does not fit the agent.
    """

    has_policy: ClassVar[bool] = False
    """Whether its builder has `make_policy`, and its graph `add_inference`."""

    def __init__(self, config: ConfigT, environment_factory: EnvironmentFactory | None = None) -> None:
        self.config = config
        if not self.has_policy and (config.inference_servers or config.environments_per_actor > 1):
            raise ProgramError(
                f"{type(self).__name__} acts on one observation at a time: inference_servers must be 0 and "
                f"environments_per_actor 1, got {config.inference_servers} and {config.environments_per_actor}"
            )
        if config.tensorboard:
            check_installed()
        self.environment: str | EnvironmentFactory = environment_factory or config.environment
        environment = make_environment(self.environment, seed=0)
        self.spec = make_environment_spec(environment)
        environment.close()
        self.check_spec()

    # --- what an agent says ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def check_spec(self) -> None:
        """Raises `ProgramError` when `self.spec` does not fit the agent."""

    @abc.abstractmethod
    def make_table(self, *, seed: int, lockstep: bool) -> Table:
        """The replay table.

        Args:
            seed: of the sampling.
            lockstep: one thread inserts and samples in turn and keeps the ratio itself, so that nobody must ever wait.
        """

    @abc.abstractmethod
    def make_builder(self, seed: int) -> AgentBuilder[ConfigT]:
        """Makes the parts of a node with this seed. May import JAX, which is set up for the node."""

    def explorations(self) -> Sequence[float | None]:
        """What the graph gives each actor to explore with, e.g. its epsilon; None where it gives nothing."""
        return [None] * self.config.num_actors

    def actor_arguments(self) -> list[list[Any]]:
        """What the graph of `build` gives each actor beside the handles: how it explores, if at all."""
        return [[] if exploration is None else [exploration] for exploration in self.explorations()]

    # --- nodes -------------------------------------------------------------------------------------------------------

    def replay(self) -> list[Table]:
        """The tables of the replay service."""
        return [self.make_table(seed=derive_seed(get_context().seed, self.config.seed), lockstep=False)]

    def counter(self) -> CountingService:
        """Holds the totals of the run."""
        limit = self.config.max_actor_steps
        limits = {} if limit is None else {"actor_steps": limit}
        context = get_context()
        return CountingService(context, limits=limits, of_one_run=(FINAL_EVALUATIONS,), metrics=self._writer(context))

    def coordinator(self, counter: Any, max_actor_steps: int) -> StepsLimiter:
        """Stops the program after `max_actor_steps`, and the evaluation that follows them."""
        final, timeout_s = self.config.num_final_evaluations, self.config.final_evaluation_timeout_s
        stop = get_context().stop
        return StepsLimiter(counter, max_actor_steps, stop=stop, final_evaluations=final, final_timeout_s=timeout_s)

    def learner(self, replay: Client, counter: Any) -> Learner[Any]:
        """Learns, and serves its weights."""
        context = get_context()
        builder = self._builder(context, "learner")
        from topology.agents.core.checkpoint import Checkpointer

        directory = context.run_directory
        learner = builder.make_learner(
            replay,
            counts=ChildCounter(counter, "learner"),
            metrics=self._writer(context),
            stop=context.stop,
            checkpointer=None if directory is None else Checkpointer(Path(directory) / "checkpoints" / "learner"),
        )
        learner.spread(self.config.learner_devices)
        return learner

    def evaluator(self, source: VariableSource, counter: Any) -> Evaluator:
        """Plays from time to time, and once more at the end."""
        context, config = get_context(), self.config
        builder = self._builder(context, "evaluator")
        from topology.agents.core.evaluator import EvaluationSchedule, Evaluator

        client = builder.make_variable_client(source, in_background=False)
        return Evaluator(
            loop=builder.make_evaluation_loop(client, context.stop),
            client=client,
            counter=counter,
            counts=ChildCounter(counter, "evaluator"),
            schedule=EvaluationSchedule(
                period_steps=config.evaluation_period,
                episodes=config.evaluation_episodes,
                limit=config.max_actor_steps if config.final_evaluation_episodes else None,
                final_episodes=max(1, config.final_evaluation_episodes),
            ),
            metrics=self._writer(context),
            stop=context.stop,
            report=functools.partial(print, flush=True),
        )

    def actor(
        self, replay: Client, source: VariableSource, counter: Any, exploration: float | None = None
    ) -> ActorRunner:
        """Plays, and writes what it sees into replay. `source` gives weights, or is one of the inference servers."""
        context = get_context()
        builder = self._builder(context, "actor")
        from topology.agents.core.actor_runner import ActorRunner

        return ActorRunner(
            parts=builder.make_actor_parts(
                source,
                replay,
                exploration=exploration,
                max_in_flight=self.config.max_in_flight,
                served=self.config.inference_servers > 0,
            ),
            counter=counter,
            counts=ChildCounter(counter, "actor"),
            metrics=self._writer(context),
            stop=context.stop,
            max_actor_steps=self.config.max_actor_steps,
        )

    def inference(self, source: VariableSource) -> InferenceServer:
        """Chooses the actions of the actors, many at a time."""
        context, config = get_context(), self.config
        builder = self._builder(context, "inference")
        from topology.agents.core.builder import EXPLORATION
        from topology.agents.core.inference import InferenceServer

        return InferenceServer(
            policy=builder.make_policy(),
            client=builder.make_variable_client(source, in_background=False),
            observations=self.spec.observations,
            environments=config.environments_per_actor,
            batch_size=config.requests_per_batch,
            timeout_s=config.inference_timeout_ms / 1000,
            refresh_s=config.cache_refresh_ms / 1000,
            seed=builder.seed(EXPLORATION),
            metrics=self._writer(context),
            stop=context.stop,
        )

    def _writer(self, context: NodeContext) -> RowWriter:
        return make_writer(context, tensorboard=self.config.tensorboard)

    def _builder(self, context: NodeContext, role: str) -> AgentBuilder[ConfigT]:
        from topology.agents.core.devices import prepare_jax

        prepare_jax(
            context,
            accelerator=role in self.config.accelerator_roles,
            memory_fraction=self.config.accelerator_memory_fraction,
            all_threads=role == "learner" and is_image(self.spec.observations),
        )
        return self.make_builder(context.seed)

    # --- the graph ----------------------------------------------------------------------------------------------------

    def build(self, name: str | None = None) -> lp.Program:
        """The graph; an agent may have another.

        Replay, counter and coordinator, learner, evaluator, cachers and inference servers if there are some, actors.

        Args:
            name: of the program; the agent's, in small letters, by default.
        """
        program = lp.Program(name=name or type(self).__name__.lower())
        with program.group("replay"):
            replay = program.add_node(self.make_replay())
        with program.group("counter"):
            counter = self.add_counter(program)
        with program.group("learner"):
            learner = program.add_node(lp.CourierNode(self.learner, replay, counter))
        self.add_evaluators(program, learner, counter)
        sources = self.add_inference(program, self.add_cachers(program, learner))
        with program.group("actor"):
            # Actors use the learner, or the cachers or inference servers, in turn.
            for actor_id, given in enumerate(self.actor_arguments()):
                source = sources[actor_id % len(sources)]
                program.add_node(lp.CourierNode(self.actor, replay, source, counter, *given))
        return program

    def add_evaluators(self, program: lp.Program, *arguments: Any) -> None:
        """`num_evaluators` evaluators in the group "evaluator", which is there only if there are some.

        Args:
            program: gets the group.
            *arguments: of `evaluator`: handles of the source of weights and of the counter.
        """
        if self.config.num_evaluators:
            with program.group("evaluator"):
                for _ in range(self.config.num_evaluators):
                    program.add_node(lp.CourierNode(self.evaluator, *arguments))

    def add_counter(self, program: lp.Program) -> Any:
        """The counter and, where steps are limited, who stops the program; returns the counter's handle."""
        counter = program.add_node(lp.CourierNode(self.counter))
        if self.config.max_actor_steps:
            program.add_node(lp.CourierNode(self.coordinator, counter, self.config.max_actor_steps))
        return counter

    def make_replay(self) -> lp.ReverbNode:
        """The node of the replay service; saves its tables in the run directory where `checkpoint_replay` asks so."""
        minutes = self.config.checkpoint_period_s / 60 if self.config.checkpoint_replay else None
        return lp.ReverbNode(self.replay, checkpoint_time_delta_minutes=minutes)

    def add_inference(self, program: lp.Program, sources: Sequence[Any]) -> Sequence[Any]:
        """What actors use in turn: inference servers where there are some, which then use `sources` in turn; or these.

        Args:
            program: gets the group "inference", only if there are servers.
            sources: handles of those who give weights.
        """
        if not self.config.inference_servers:
            return sources
        with program.group("inference"):
            return [
                program.add_node(lp.CourierNode(self.inference, sources[index % len(sources)]))
                for index in range(self.config.inference_servers)
            ]

    def add_cachers(self, program: lp.Program, learner: Any) -> Sequence[Any]:
        """What gives weights: `num_caches` cachers in the group "cacher", or the learner where there are none."""
        if not self.config.num_caches:
            return [learner]
        with program.group("cacher"):
            return [program.add_node(self.make_cacher(learner)) for _ in range(self.config.num_caches)]

    def make_cacher(self, learner: Any) -> lp.CacherNode:
        """A node that stands between the learner and those who ask for weights."""
        return lp.CacherNode(learner, self.config.cache_refresh_ms, self.config.cache_stale_ms)
