"""PPO, A2C, IMPALA and DQN as programs: rollout workers, and a node that drives the plan and learns.

    import topology as lp
    from topology.agents.flow.program import PPOConfig, flow_ppo
    lp.launch(flow_ppo(PPOConfig(environment="catch")), "local_mp").wait()

Modules that load JAX are imported in the nodes.
"""

from __future__ import annotations

import abc
import functools
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, final

import topology as lp
from topology.agents.core.exploration import epsilon_ladder
from topology.agents.core.metrics import make_writer
from topology.agents.core.seeding import derive_seed
from topology.agents.flow.config import A2CConfig, ActorCriticConfig, DQNConfig, FlowConfig, IMPALAConfig, PPOConfig
from topology.agents.flow.plans import a2c_plan, dqn_plan, impala_plan, ppo_plan
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

__all__ = [
    "PRELOAD",
    "A2CConfig",
    "DQNConfig",
    "FlowAgent",
    "FlowDQN",
    "IMPALAConfig",
    "PPOConfig",
    "flow_a2c",
    "flow_dqn",
    "flow_impala",
    "flow_ppo",
]

PRELOAD = ("topology.agents.flow.runner", "topology.agents.flow.sampler", "topology.environments.gymnasium")
"""Modules that a launcher of processes may import once for all nodes, before it forks them: they start nothing."""

_ENVIRONMENT, _POLICY, _EVALUATION = range(3)  # uses of a node's seed

ConfigT = TypeVar("ConfigT", bound=FlowConfig)


def flow_ppo(config: PPOConfig) -> Program:
    """PPO as an execution plan."""
    return FlowPPO(config).build("flow-ppo")


def flow_a2c(config: A2CConfig) -> Program:
    """A2C as an execution plan, with microbatches if asked."""
    return FlowA2C(config).build("flow-a2c")


def flow_impala(config: IMPALAConfig) -> Program:
    """IMPALA as an execution plan, with aggregators if asked."""
    return FlowIMPALA(config).build("flow-impala")


def flow_dqn(config: DQNConfig) -> Program:
    """DQN as an execution plan: double, n-step, prioritized if asked."""
    return FlowDQN(config).build("flow-dqn")


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
        return {"min_iter_time_s": self.config.report_period_s, "seed": self.config.seed, **more}


ActorCriticT = TypeVar("ActorCriticT", bound=ActorCriticConfig)


class _FlowActorCritic(FlowAgent[ActorCriticT]):
    def standardized(self) -> list[str]:
        """Columns that are standardized."""
        return ["advantages"] if self.config.standardize_advantages else []

    def make_policy(self, seed: int, index: int) -> JaxPolicy:  # noqa: ARG002 - all are alike
        from topology.agents.flow.actor_critic import make_actor_critic

        return make_actor_critic(self.config, self.spec, seed)

    def make_sampler(self, policy: JaxPolicy, seed: int) -> Sampler:
        from topology.agents.flow.sampler import FragmentSampler

        return FragmentSampler(
            policy,
            functools.partial(self.make_environments, seed, self.config.environments_per_actor),
            self.config.fragment_length,
            discount=self.config.discount,
            trace_decay=None if isinstance(self.config, IMPALAConfig) else self.config.trace_decay,
            reward_scale=self.config.reward_scale,
        )


@final
class FlowPPO(_FlowActorCritic[PPOConfig]):
    """See `FlowAgent`."""

    name = "PPO"

    def make_plan(self) -> Plan:
        config = self.config
        return Plan(
            ppo_plan,
            self.settings(
                train_batch_size=config.train_batch_size,
                standardize_fields=self.standardized(),
                sgd_minibatch_size=config.minibatch_size,
                num_sgd_iter=config.num_passes,
                num_devices=config.devices,
            ),
        )


@final
class FlowA2C(_FlowActorCritic[A2CConfig]):
    """See `FlowAgent`."""

    name = "A2C"

    def make_plan(self) -> Plan:
        config = self.config
        return Plan(
            a2c_plan,
            self.settings(
                train_batch_size=config.train_batch_size,
                standardize_fields=self.standardized(),
                microbatch_size=config.microbatch_size,
            ),
        )


@final
class FlowIMPALA(_FlowActorCritic[IMPALAConfig]):
    """See `FlowAgent`."""

    name = "IMPALA"

    def make_plan(self) -> Plan:
        config = self.config
        return Plan(
            impala_plan,
            self.settings(
                train_batch_size=config.train_batch_size,
                num_aggregation_workers=config.num_aggregators,
                max_sample_requests_in_flight_per_worker=config.requests_per_actor,
                learner_queue_size=config.queue_size,
                broadcast_interval=config.broadcast_interval,
                synchronization=str(config.synchronization),
                max_staleness=config.max_staleness,
            ),
        )


class FlowDQN(FlowAgent[DQNConfig]):
    """See `FlowAgent`."""

    name = "DQN"

    def make_plan(self) -> Plan:
        config = self.config
        return Plan(
            dqn_plan,
            self.settings(
                learning_starts=config.min_replay_size,
                buffer_size=config.replay_size,
                train_batch_size=config.draw_size,
                sgd_minibatch_size=config.batch_size,
                prioritized_replay_alpha=config.priority_exponent,
                prioritized_replay_beta=config.importance_sampling_exponent,
                target_network_update_freq=config.target_update_period,
                draws_per_round=config.draws_per_round,
                synchronization=str(config.synchronization),
                max_staleness=config.max_staleness,
            ),
        )

    def make_policy(self, seed: int, index: int) -> JaxPolicy:
        from topology.agents.flow.q_learning import make_q_policy

        return make_q_policy(self.config, self.spec, seed, exploration=self.exploration(index))

    def exploration(self, index: int) -> Any:
        """Epsilons of a worker's environments, or one for all. Each worker has some of the whole ladder."""
        count = max(1, self.config.num_actors)
        ladder = epsilon_ladder(count * self.config.environments_per_actor)
        return ladder[max(0, index - 1) :: count]

    def make_sampler(self, policy: JaxPolicy, seed: int) -> Sampler:
        from topology.agents.flow.sampler import TransitionSampler

        return TransitionSampler(
            policy,
            functools.partial(self.make_environments, seed, self.config.environments_per_actor),
            self.config.fragment_length,
            n_step=self.config.n_step,
            discount=self.config.discount,
        )
