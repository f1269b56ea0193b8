"""What all agents that are execution plans have in common: their nodes, and their graph."""

from __future__ import annotations

import abc
import functools
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import topology as lp
from topology.agents.core.metrics import make_writer
from topology.agents.core.seeding import derive_seed
from topology.agents.flow.config import FlowConfig, IMPALAConfig
from topology.context import get_context
from topology.environments import EnvironmentFactory, make_environment
from topology.environments.specs import make_environment_spec, num_discrete_actions
from topology.nodes.flow import Plan, RolloutWorker, WorkerFailures
from topology.nodes.flow.node import AggregatorNode, PlanNode, WorkerNode
from topology.program import Program

if TYPE_CHECKING:
    import dm_env

    from topology.agents.flow.policy import JaxPolicy
    from topology.agents.flow.runner import AgentRunner
    from topology.nodes.flow import Sampler

__all__ = ["FlowAgent"]

_ENVIRONMENT, _POLICY, _EVALUATION = range(3)  # uses of a node's seed

ConfigT = TypeVar("ConfigT", bound=FlowConfig)


class FlowAgent(abc.ABC, Generic[ConfigT]):
    """An agent that is an execution plan. Its methods are what the nodes of its program run.

    Args:
        config: settings.
        environment_factory: makes the environments instead of `config.environment`; travels to the nodes.

    Raises:
        ProgramError: there is no such environment, or its actions are not discrete.
    """

    name: ClassVar[str]

    def __init__(self, config: ConfigT, environment_factory: EnvironmentFactory | None = None) -> None:
        self.config = config
        self.environment: str | EnvironmentFactory = environment_factory or config.environment
        environment = make_environment(self.environment, seed=0)
        self.spec = make_environment_spec(environment)
        environment.close()
        num_discrete_actions(self.spec, agent=self.name)

    # --- what an agent says ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def make_plan(self) -> Plan:
        """The plan, with its settings."""

    @abc.abstractmethod
    def make_policy(self, seed: int, index: int) -> JaxPolicy:
        """The policy of a worker; see `worker`."""

    @abc.abstractmethod
    def make_sampler(self, policy: JaxPolicy, seed: int) -> Sampler:
        """What a worker with this seed plays with."""

    # --- nodes -------------------------------------------------------------------------------------------------------

    def worker(self, index: int) -> RolloutWorker:
        """A rollout worker; number 0 is the one that learns, which plays only where there are no others."""
        self._prepare(accelerator=index == 0)
        seed = get_context().seed
        # Of all workers alike; that of the local one counts, whose weights the others are sent.
        policy = self.make_policy(derive_seed(seed, self.config.seed, _POLICY), index)
        plays = index > 0 or not self.config.num_actors
        return RolloutWorker(policy, self.make_sampler(policy, seed) if plays else None, worker_index=index)

    def runner(self, plan: Plan, local_worker: Any, workers: Any, aggregators: Any) -> AgentRunner:
        """Drives the plan, learns, reports, evaluates at the end."""
        context, config = get_context(), self.config
        self._prepare(accelerator=True)
        from topology.agents.flow.runner import AgentRunner

        seed = derive_seed(context.seed, config.seed, _EVALUATION)
        return AgentRunner(
            plan,
            local_worker,
            workers,
            aggregators=aggregators,
            failures=WorkerFailures(max_restarts=config.max_restarts, leave_out=config.leave_out),
            metrics=make_writer(context),
            stop=context.stop,
            max_actor_steps=config.max_actor_steps,
            make_environments=functools.partial(self.make_environments, seed, config.final_evaluation_episodes),
            report=functools.partial(print, flush=True),
            checkpoint_period_s=None if context.run_directory is None else config.checkpoint_period_s,
            checkpoint_replay=config.checkpoint_replay,
        )

    def make_environments(self, seed: int, count: int) -> list[dm_env.Environment]:
        """So many environments, for a worker with this seed."""
        seeds = [derive_seed(seed, self.config.seed, _ENVIRONMENT, index) for index in range(count)]
        return [make_environment(self.environment, seed=one) for one in seeds]

    def _prepare(self, *, accelerator: bool) -> None:
        from topology.agents.core.devices import prepare_jax

        prepare_jax(get_context(), accelerator=accelerator)

    # --- graph -------------------------------------------------------------------------------------------------------

    def build(self, name: str) -> Program:
        """The graph: workers, aggregators if asked, and the plan, which learns."""
        program = lp.Program(name)
        workers: list[Any] = []
        aggregators: list[Any] = []
        if self.config.num_actors:
            with program.group("actor"):
                indices = range(1, self.config.num_actors + 1)
                workers = [program.add_node(WorkerNode(self.worker, index)) for index in indices]
        if isinstance(self.config, IMPALAConfig) and self.config.num_aggregators:
            with program.group("aggregator"):
                aggregators = [program.add_node(AggregatorNode()) for _ in range(self.config.num_aggregators)]
        with program.group("learner"):
            local = functools.partial(self.worker, 0)
            node = PlanNode(self.make_plan(), local, workers, constructor=self.runner, aggregators=aggregators)
            program.add_node(node)
        return program

    def settings(self, **more: Any) -> dict[str, Any]:
        """Settings of a plan."""
        config = self.config
        # However long the period of reports is, the run ends at the steps that it is to have.
        gates = {"min_iter_time_s": config.report_period_s, "last_timestep": config.max_actor_steps}
        return {**gates, "seed": config.seed, **more}
