"""Settings of what is learned, for these agents as execution plans and scaled out alike."""

from __future__ import annotations

from dataclasses import dataclass

from topology.agents.core.config import CheckedConfig

__all__ = ["ActorCriticSettings", "LearningSettings", "PPOSettings", "QLearningSettings"]


@dataclass(frozen=True, kw_only=True)
class LearningSettings(CheckedConfig):
    """Settings of networks and optimizers, for these agents as execution plans and scaled out alike.

    Attributes:
        hidden_sizes: widths of the hidden layers.
        discount: factor for each step.
        learning_rate: of Adam, at the beginning.
        final_learning_rate: at the end of the run: it falls linearly in between.
        constant_rate_part: part of the steps before it begins to fall.
        max_gradient_norm: gradients are scaled down to this global norm.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    discount: float = 0.99
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-5
    constant_rate_part: float = 0.0
    max_gradient_norm: float = 0.5


@dataclass(frozen=True, kw_only=True)
class ActorCriticSettings(LearningSettings):
    """Settings of the loss of a policy and a value.

    Attributes:
        entropy_cost: weight of the entropy of the policy, which is to stay high.
        final_entropy_cost: at the end of the run: it changes linearly in between.
        value_cost: weight of the error of the value.
        trace_decay: how far what comes later counts for an action: lambda of the generalized advantages, or of V-trace;
            1 for all of the fragment.
        reward_scale: factor of the rewards that are learned from: values of the order of 10 are learned in far fewer
            updates than those of the order of 100.
        standardize_advantages: whether the advantages of a batch get mean 0 and variance 1, so that the entropy counts
            alike whatever the size of the rewards.
    """

    entropy_cost: float = 0.01
    final_entropy_cost: float = 0.0
    value_cost: float = 0.5
    trace_decay: float = 0.95
    reward_scale: float = 0.1
    standardize_advantages: bool = True


@dataclass(frozen=True, kw_only=True)
class PPOSettings(ActorCriticSettings):
    """Settings of PPO's updates.

    Attributes:
        clip_ratio: how far the probability of an action may move in one batch before its gradient ends.
        num_passes: over each batch.
        minibatch_size: steps of an update.
    """

    clip_ratio: float = 0.2
    num_passes: int = 6
    minibatch_size: int = 256


@dataclass(frozen=True, kw_only=True)
class QLearningSettings(LearningSettings):
    """Settings of DQN's updates.

    Attributes:
        n_step: steps of a transition.
        replay_size: steps kept.
        min_replay_size: steps stored before the first update.
        batch_size: steps of an update.
        updates_per_batch: updates made of one draw from replay, of as many minibatches.
        samples_per_insert: how often each step is learned from, on average.
        target_update_period: steps between two copies of the network to the target network.
        huber_delta: the loss is quadratic up to this error and linear above.
    """

    final_learning_rate: float = 5e-5
    constant_rate_part: float = 0.6
    max_gradient_norm: float = 40.0
    n_step: int = 3
    replay_size: int = 50_000
    min_replay_size: int = 1_000
    batch_size: int = 64
    updates_per_batch: int = 8
    samples_per_insert: float = 32.0
    target_update_period: int = 400
    huber_delta: float = 10.0
