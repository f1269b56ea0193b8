"""Settings of the agents that are execution plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from topology.agents.core.synchronization import Synchronization, synchronization_of, unsupported
from topology.agents.flow.settings import ActorCriticSettings, LearningSettings, PPOSettings, QLearningSettings

__all__ = [
    "A2CConfig",
    "ActorCriticConfig",
    "ActorCriticSettings",
    "DQNConfig",
    "FlowConfig",
    "IMPALAConfig",
    "LearningSettings",
    "PPOConfig",
    "PPOSettings",
    "QLearningSettings",
]


@dataclass(frozen=True, kw_only=True)
class FlowConfig(LearningSettings):
    """Settings that all of these agents have; see also `LearningSettings`.

    Attributes:
        environment: a name (catch, gym:CartPole-v1) or where a function is that makes one; see
            `topology.environments.make_environment`.
        num_actors: rollout workers.
        environments_per_actor: environments that each plays in step, with one call of the policy for all.
        fragment_length: steps of each environment in a fragment.
        seed: of everything random, together with each node's own seed.
        max_actor_steps: steps of all workers after which the program ends; None for never.
        final_evaluation_episodes: episodes that are played with the final weights; 0 for none.
        report_period_s: seconds between two rows of the metrics.
        max_restarts: how often each worker may fail and be asked again, or be started again by its launcher.
        leave_out: whether the plan goes on without a worker that has failed more often.
        synchronization: "sync" (rounds of all workers, each played with exactly the newest weights) or "async"
            (fragments as they come); each algorithm says which it supports.
        max_staleness: ASYNC: experience is dropped whose weights were so many updates older than the newest when it
            came; None for no bound.
        checkpoint_period_s: seconds between two states of the plan on disk: the learner, counters, and what waits in
            the plan. One more is saved at the end.
        checkpoint_replay: whether the replay buffer is saved with them, so that a run that goes on begins with it.
    """

    supported_synchronizations: ClassVar[tuple[Synchronization, ...]] = (Synchronization.SYNC,)

    environment: str = "gym:CartPole-v1"
    num_actors: int = 2
    environments_per_actor: int = 8
    fragment_length: int = 32
    seed: int = 0
    max_actor_steps: int | None = 100_000
    final_evaluation_episodes: int = 20
    report_period_s: float = 1.0
    max_restarts: int = 0
    leave_out: bool = False
    synchronization: Synchronization = Synchronization.SYNC
    max_staleness: int | None = None
    checkpoint_period_s: float = 60.0
    checkpoint_replay: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "synchronization", synchronization_of(self.synchronization))
        super().__post_init__()

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("environments_per_actor", "fragment_length")
        yield from self.not_positive("learning_rate", "final_learning_rate", "max_gradient_norm", "checkpoint_period_s")
        yield from self.outside_unit("discount")
        if not 0 <= self.constant_rate_part < 1:
            yield f"constant_rate_part={self.constant_rate_part}: at least 0 and below 1"
        yield from self.negative("num_actors", "final_evaluation_episodes", "report_period_s", "max_restarts")
        if self.max_actor_steps is not None and self.max_actor_steps < 1:
            yield f"max_actor_steps={self.max_actor_steps}: at least 1, or None for a run without end"
        yield from self.one_below_one("hidden_sizes")
        yield from unsupported(self.synchronization, self.supported_synchronizations, type(self).__name__)
        if self.max_staleness is not None:
            if self.max_staleness < 0:
                yield f"max_staleness={self.max_staleness}: at least 0, or None for no bound"
            if self.synchronization is Synchronization.SYNC:
                yield f"max_staleness={self.max_staleness}: in SYNC nothing is stale; leave it out"

    @property
    def steps_per_round(self) -> int:
        """Steps of one fragment of every worker; of the local one where there are no others."""
        return max(1, self.num_actors) * self.environments_per_actor * self.fragment_length


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(ActorCriticSettings, FlowConfig):
    """Settings of the agents with a policy and a value; see also `ActorCriticSettings` and `FlowConfig`.

    Attributes:
        train_batch_size: steps of a batch, at least.
    """

    train_batch_size: int = 512

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("train_batch_size")
        yield from self.negative("entropy_cost", "final_entropy_cost", "value_cost")
        yield from self.outside_unit("trace_decay")
        yield from self.not_positive("reward_scale")


@final
@dataclass(frozen=True, kw_only=True)
class PPOConfig(PPOSettings, ActorCriticConfig):
    """Settings of PPO; see also `PPOSettings`. The defaults suit small environments.

    Attributes:
        devices: devices that the learner spreads its minibatches over.
    """

    train_batch_size: int = 1024
    fragment_length: int = 64
    devices: int = 1

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("num_passes", "minibatch_size", "devices")
        yield from self.not_positive("clip_ratio")
        if self.devices > 0 and self.minibatch_size % self.devices:
            yield f"devices={self.devices} does not divide minibatch_size={self.minibatch_size}"


@final
@dataclass(frozen=True, kw_only=True)
class A2CConfig(ActorCriticConfig):
    """Settings of A2C. The defaults suit small environments.

    Attributes:
        microbatch_size: steps that gradients are computed of at a time; None for the whole batch in one update.
    """

    environments_per_actor: int = 4
    train_batch_size: int = 128
    fragment_length: int = 16
    max_gradient_norm: float = 5.0
    max_actor_steps: int | None = 400_000
    entropy_cost: float = 0.001
    standardize_advantages: bool = False
    microbatch_size: int | None = None

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.microbatch_size is not None and not 1 <= self.microbatch_size <= self.train_batch_size:
            yield f"microbatch_size={self.microbatch_size}: from 1 to train_batch_size={self.train_batch_size}, or None"


@final
@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(ActorCriticConfig):
    """Settings of IMPALA. The defaults suit small environments.

    Attributes:
        num_aggregators: nodes that join fragments to batches; 0 to do that in the driver.
        requests_per_actor: requests of each worker under way.
        queue_size: batches that wait for the learner.
        broadcast_interval: batches between two takings of the learner's weights.
        max_ratio: importance weights are clipped to this; rho-bar in the paper.
        lstm_size: width of an LSTM after the hidden layers, which policy and value then share; None for no memory.
    """

    supported_synchronizations: ClassVar[tuple[Synchronization, ...]] = (Synchronization.SYNC, Synchronization.ASYNC)

    synchronization: Synchronization = Synchronization.ASYNC
    environments_per_actor: int = 4
    fragment_length: int = 20
    train_batch_size: int = 160
    max_gradient_norm: float = 5.0
    max_actor_steps: int | None = 500_000
    entropy_cost: float = 0.001
    standardize_advantages: bool = False
    trace_decay: float = 1.0
    num_aggregators: int = 0
    requests_per_actor: int = 1
    queue_size: int = 1
    broadcast_interval: int = 1
    max_ratio: float = 1.0
    lstm_size: int | None = None

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("requests_per_actor", "queue_size", "broadcast_interval")
        if self.lstm_size is not None:
            yield from self.below_one("lstm_size")
        yield from self.not_positive("max_ratio")
        if self.num_aggregators and self.synchronization is Synchronization.SYNC:
            yield f"num_aggregators={self.num_aggregators}: in SYNC the driver joins the fragments of a round; 0"
        if not 0 <= self.num_aggregators <= self.num_actors:
            yield f"num_aggregators={self.num_aggregators}: from 0 to num_actors={self.num_actors}"


@final
@dataclass(frozen=True, kw_only=True)
class DQNConfig(QLearningSettings, FlowConfig):
    """Settings of DQN; see also `QLearningSettings`. The defaults suit small environments.

    Each environment of each worker has an epsilon of its own, see `epsilon_ladder`.

    Attributes:
        priority_exponent: how strongly errors decide what is drawn; 0 for not at all.
        importance_sampling_exponent: how much of the resulting bias is weighted away; 1 for all.
    """

    supported_synchronizations: ClassVar[tuple[Synchronization, ...]] = (Synchronization.SYNC, Synchronization.ASYNC)

    environments_per_actor: int = 4
    fragment_length: int = 8
    max_actor_steps: int | None = 60_000
    priority_exponent: float = 0.0
    importance_sampling_exponent: float = 0.4

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("n_step", "min_replay_size", "batch_size", "updates_per_batch")
        yield from self.below_one("target_update_period")
        yield from self.not_positive("samples_per_insert", "huber_delta")
        yield from self.outside_unit("priority_exponent", "importance_sampling_exponent")
        if self.min_replay_size > self.replay_size:
            yield f"min_replay_size={self.min_replay_size} is above replay_size={self.replay_size}"

    @property
    def draw_size(self) -> int:
        """Steps of one draw from replay."""
        return self.batch_size * self.updates_per_batch

    @property
    def draws_per_round(self) -> float:
        """Draws for each round of the workers, in ASYNC for each fragment, so that `samples_per_insert` is kept."""
        fragments = max(1, self.num_actors) if self.synchronization is Synchronization.ASYNC else 1
        return self.samples_per_insert * self.steps_per_round / (self.draw_size * fragments)
