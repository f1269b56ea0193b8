"""PPO, A2C, IMPALA and DQN as programs: rollout workers, and a node that drives the plan and learns.

    import topology as lp
    from topology.agents.flow.program import PPOConfig, flow_ppo
    lp.launch(flow_ppo(PPOConfig(environment="catch")), "local_mp").wait()

Modules that load JAX are imported in the nodes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar, final

from topology.agents.core.exploration import epsilon_ladder
from topology.agents.flow.agent import FlowAgent
from topology.agents.flow.config import A2CConfig, ActorCriticConfig, DQNConfig, FlowConfig, IMPALAConfig, PPOConfig
from topology.agents.flow.plans import a2c_plan, dqn_plan, impala_plan, ppo_plan
from topology.nodes.flow import Plan
from topology.program import Program

if TYPE_CHECKING:
    from topology.agents.flow.policy import JaxPolicy
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
    "restarts",
]

_LEFT_OUT_RESTARTS = 1_000

PRELOAD = ("topology.agents.flow.runner", "topology.agents.flow.sampler", "topology.environments.gymnasium")
"""Modules that a launcher of processes may import once for all nodes, before it forks them: they start nothing."""


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


def restarts(config: FlowConfig) -> dict[str, int]:
    """By group, how often each of its nodes may fail and be started again: for launchers.

    The command `topology launch` asks for it by itself. A plan that leaves workers out is not to be stopped by one that
    has failed too often: its launcher goes on starting it.
    """
    workers = _LEFT_OUT_RESTARTS if config.leave_out else config.max_restarts
    counts = {"actor": workers if config.num_actors else 0, "learner": config.max_restarts}
    if isinstance(config, IMPALAConfig) and config.num_aggregators:
        counts["aggregator"] = workers
    return {label: count for label, count in counts.items() if count}


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
