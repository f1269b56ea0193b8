"""Settings of agents that are scaled out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, final

from topology.agents.core.config import CheckedConfig
from topology.agents.core.synchronization import Synchronization, synchronization_of, unsupported
from topology.agents.flow.config import (
    DQNConfig,
    FlowConfig,
    LearningSettings,
    PPOConfig,
    PPOSettings,
    QLearningSettings,
)
from topology.errors import ProgramError
from topology.nodes.store.data_stores import find_data_store
from topology.nodes.store.memory import check_memory_url
from topology.nodes.store.rounds import RoundPlan, Unit

__all__ = ["ScaleOutConfig", "ScaleOutDQNConfig", "ScaleOutPPOConfig", "ScaleOutSettings", "Synchronization"]

FlowConfigT = TypeVar("FlowConfigT", bound=FlowConfig)

MEMORY_WORDS = ("local", "replay", "redis")
"""What `memory_backend` may be beside a URL."""

_SAID_BY_OUR_NAMES = ("num_actors", "environments_per_actor", "max_actor_steps", "synchronization")
"""How faults of an execution plan begin that are told already, in the words of these settings."""

DEFAULT_SAVE_S = 2.0
"""Seconds between two policies in ASYNC, unless the settings say otherwise."""


@dataclass(frozen=True, kw_only=True)
class ScaleOutSettings(CheckedConfig):
    """Settings that every agent has that is scaled out.

    Attributes:
        environment: a name (catch, gym:CartPole-v1) or where a function is that makes one; see
            `topology.environments.make_environment`.
        synchronization: "sync" (the trainer waits for all the experience of a round, the workers for the next policy)
            or "async" (neither waits); each algorithm says which it supports.
        memory_backend: where experience waits for the trainer: "local" (a node of this program), "replay" (the same, by
            the replay service), "redis" ($REDIS_URL, else redis://localhost:6379), or a URL; see
            `topology.nodes.store.memory.open_memory_backend`. A password in a URL can be read by whoever sees the
            command line: prefer $REDIS_URL.
        data_store: where policies are kept: a directory, or a URL such as s3://bucket/prefix (credentials: AWS_*) or
            redis://host:port; "redis" as above; None for a directory in the run directory.
        num_workers: rollout workers.
        environments_per_worker: environments that each plays in step, with one call of the policy for all.
        seed: of everything random, together with each node's own seed: no two workers play alike.
        max_steps: steps trained on after which the run ends; None for a run without end.
        target_return: the run ends when an evaluation reaches it, and another one of `final_evaluation_episodes` of
            the same policy does too; None for never.
        num_steps: SYNC: steps of a round.
        num_episodes: SYNC: episodes of a round, all whole, instead of `num_steps`; None for steps.
        share_steps: steps that a worker plays before it stores them; in SYNC its share of a round.
        share_episodes: episodes of a share, where rounds are counted in episodes.
        share_timeout_s: SYNC: seconds a worker has for a share before another one may take it over.
        checkpoint_save_secs: ASYNC: seconds between two policies; None for 2. Sooner when half of `memory_max_steps`
            has been taken since the last: only a policy that knows it frees the memory backend. SYNC saves every round.
        max_staleness: ASYNC: experience is dropped that was made by a policy so many numbers older than the newest is
            when it arrives; None for no bound.
        normalise_observations: whether observations get mean 0 and variance 1, by statistics that all workers share.
        normalise_rewards: whether rewards are divided by the deviation of the discounted returns; shared as well.
        memory_max_steps: steps that may wait in the memory backend; above it the workers wait.
        server_patience_s: seconds that the servers behind memory backend and data store may be away, or not be there
            yet: who needs them waits, and goes on when they are back.
        keep_policies: how many of the newest policies the data store keeps.
        evaluation_period_s: seconds from one evaluation to the next, at least; each is of the newest policy then.
        evaluation_episodes: episodes of each evaluation; 0 for a program without an evaluator.
        final_evaluation_episodes: episodes of the evaluation at the end.
        max_restarts: how often trainer, evaluator and each worker may die and be started again.
        take_over: whether to go on from policies that another run has left in the data store.
            In a Redis server each run has a name of its own: `?name=` in the URL of both shares one.
    """

    supported_synchronizations: ClassVar[tuple[Synchronization, ...]] = (Synchronization.SYNC, Synchronization.ASYNC)

    environment: str = "gym:CartPole-v1"
    synchronization: Synchronization = Synchronization.SYNC
    memory_backend: str = "local"
    data_store: str | None = None
    num_workers: int = 2
    environments_per_worker: int = 8
    seed: int = 0
    max_steps: int | None = 100_000
    target_return: float | None = None
    num_steps: int = 1024
    num_episodes: int | None = None
    share_steps: int = 256
    share_episodes: int = 4
    share_timeout_s: float = 30.0
    checkpoint_save_secs: float | None = None
    max_staleness: int | None = None
    normalise_observations: bool = False
    normalise_rewards: bool = False
    memory_max_steps: int = 100_000
    server_patience_s: float = 120.0
    keep_policies: int = 5
    evaluation_period_s: float = 5.0
    evaluation_episodes: int = 10
    final_evaluation_episodes: int = 50
    max_restarts: int = 5
    take_over: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "synchronization", synchronization_of(self.synchronization))
        super().__post_init__()

    @property
    def save_s(self) -> float:
        """Seconds between two policies in ASYNC."""
        return DEFAULT_SAVE_S if self.checkpoint_save_secs is None else self.checkpoint_save_secs

    @property
    def round_plan(self) -> RoundPlan:
        """How the rounds of SYNC are cut."""
        if self.num_episodes is not None:
            share = min(self.share_episodes, self.num_episodes)
            return RoundPlan(unit=Unit.EPISODES, total=self.num_episodes, share=share)
        return RoundPlan(unit=Unit.STEPS, total=self.num_steps, share=self.share_steps)

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("num_workers", "environments_per_worker", "num_steps", "share_steps")
        yield from self.below_one("share_episodes", "keep_policies", "memory_max_steps", "final_evaluation_episodes")
        yield from self.negative("evaluation_episodes", "evaluation_period_s", "max_restarts", "server_patience_s")
        yield from self.not_positive("share_timeout_s", "save_s")
        for name in ("max_steps", "num_episodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"{name}={value}: at least 1, or None"
        if self.max_staleness is not None and self.max_staleness < 0:
            yield f"max_staleness={self.max_staleness}: at least 0, or None for no bound"
        if self.target_return is not None and not self.evaluation_episodes:
            yield f"target_return={self.target_return} is found by evaluations: set evaluation_episodes to at least 1"
        yield from self._faults_of_the_stores()
        yield from self._faults_of_the_synchronization()

    def _faults_of_the_stores(self) -> Iterator[str]:
        try:
            if self.memory_backend not in MEMORY_WORDS:
                check_memory_url(self.memory_backend)
        except ValueError as error:
            yield f"memory_backend: {error}; or one of the words {', '.join(MEMORY_WORDS)}"
        if self.data_store is not None and not self.data_store.strip():
            yield f"data_store={self.data_store!r}: a directory or a URL, or leave it out for the run directory"
        try:
            if self.data_store not in (None, "redis"):
                find_data_store(self.data_store)
        except (ValueError, ImportError) as error:
            yield f"data_store: {error}"

    def _faults_of_the_synchronization(self) -> Iterator[str]:
        yield from unsupported(self.synchronization, self.supported_synchronizations, type(self).__name__)
        if self.synchronization is Synchronization.ASYNC:
            if self.num_episodes is not None:
                yield f"num_episodes={self.num_episodes}: ASYNC has no rounds; set share_steps"
            yield from self._faults_of_steps("share_steps")
            if self.memory_max_steps < 2 * self.share_steps:
                yield f"memory_max_steps={self.memory_max_steps}: at least 2 * share_steps={2 * self.share_steps}"
            return
        if self.checkpoint_save_secs is not None:
            yield (
                f"checkpoint_save_secs={self.checkpoint_save_secs}: SYNC saves a policy every round, not by the clock; "
                "leave it out, or set synchronization=async"
            )
        if self.max_staleness is not None:
            yield f"max_staleness={self.max_staleness}: in SYNC nothing is stale; leave it out"
        if self.num_episodes is None:
            yield from self._faults_of_steps("num_steps", "share_steps")
            if self.share_steps > self.num_steps:
                yield f"share_steps={self.share_steps} is above num_steps={self.num_steps}, a whole round"
            if self.memory_max_steps < 2 * self.num_steps:
                yield (
                    f"memory_max_steps={self.memory_max_steps}: a round of num_steps={self.num_steps} waits there "
                    f"until it is learned from; at least {2 * self.num_steps}"
                )

    def _faults_of_steps(self, *names: str) -> Iterator[str]:
        for name in names:
            if getattr(self, name) % max(1, self.environments_per_worker):
                yield (
                    f"{name}={getattr(self, name)} is no multiple of "
                    f"environments_per_worker={self.environments_per_worker}, which play in step"
                )


@dataclass(frozen=True, kw_only=True)
class ScaleOutConfig(ScaleOutSettings, LearningSettings):
    """Settings of algorithms that are execution plans, too; see `ScaleOutSettings` and `LearningSettings`."""

    def flow(self, cls: type[FlowConfigT], **more: Any) -> FlowConfigT:
        """The settings of the same algorithm as an execution plan, whose networks and losses it shares."""
        names = {field.name for field in dataclasses.fields(cls)} & {field.name for field in dataclasses.fields(self)}
        return cls(
            **{name: getattr(self, name) for name in sorted(names)},
            num_actors=self.num_workers,
            environments_per_actor=self.environments_per_worker,
            max_actor_steps=self.max_steps,
            **more,
        )

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.one_below_one("hidden_sizes")

    def _faults_of_flow(self, cls: type[FlowConfig]) -> Iterator[str]:
        try:
            self.flow(cls)
        except ProgramError as error:
            yield from (fault for fault in error.faults if not fault.startswith(_SAID_BY_OUR_NAMES))


@final
@dataclass(frozen=True, kw_only=True)
class ScaleOutPPOConfig(PPOSettings, ScaleOutConfig):
    """Settings of PPO, scaled out; see also `PPOSettings`. The defaults suit small environments.

    A batch is a round. `reward_scale` counts where rewards are not normalised.
    """

    supported_synchronizations: ClassVar[tuple[Synchronization, ...]] = (Synchronization.SYNC,)

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self._faults_of_flow(PPOConfig)


@final
@dataclass(frozen=True, kw_only=True)
class ScaleOutDQNConfig(QLearningSettings, ScaleOutConfig):
    """Settings of DQN (double, n-step), scaled out; see also `QLearningSettings`. The defaults suit small environments.

    The trainer keeps the replay. When it falls behind `samples_per_insert`, it learns before it takes more, and the
    workers wait when the memory backend is full.
    """

    synchronization: Synchronization = Synchronization.ASYNC
    environments_per_worker: int = 4
    share_steps: int = 32
    num_steps: int = 64
    # Little may wait: workers that play with weights of a thousand updates ago keep some runs of CartPole from ending
    # well. A policy is saved every half of it, so that lower is dearer.
    memory_max_steps: int = 512
    # With 60,000 steps and a rate of 1e-3 one run of five or so ended below 450: its last updates were too large.
    max_steps: int | None = 100_000
    learning_rate: float = 5e-4
    final_learning_rate: float = 1e-5
    constant_rate_part: float = 0.4

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self._faults_of_flow(DQNConfig)
