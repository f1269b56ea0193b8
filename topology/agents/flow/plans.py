"""The plans of these agents. They know neither JAX nor an environment: only what a batch must hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from topology.nodes.flow import (
    ApplyGradients,
    AsyncGradients,
    AverageGradients,
    BoundStaleness,
    BroadcastUpdateLearnerWeights,
    ComputeGradients,
    ConcatBatches,
    Concurrently,
    Dequeue,
    Enqueue,
    LocalIterator,
    LocalReplayBuffer,
    Replay,
    SampleBatch,
    StandardizeFields,
    StandardMetricsReporting,
    StoreToReplayBuffer,
    SynchronizedRollouts,
    TrainOneStep,
    UpdateTargetNetwork,
    WorkerSet,
    gather_experiences_directly,
    gather_experiences_tree_aggregation,
    make_learner_thread,
    record_steps_trained,
)

__all__ = ["a2c_plan", "a3c_plan", "dqn_plan", "impala_plan", "ppo_plan", "update_priorities"]

Config = Mapping[str, Any]


def ppo_plan(workers: WorkerSet, config: Config) -> LocalIterator[dict[str, Any]]:
    """Rounds of all workers, then several passes over minibatches."""
    train_op = (
        SynchronizedRollouts(workers, "sync")
        .combine(ConcatBatches(config["train_batch_size"]))
        .for_each(StandardizeFields(config["standardize_fields"]))
        .for_each(
            TrainOneStep(
                workers,
                num_sgd_iter=config["num_sgd_iter"],
                sgd_minibatch_size=config["sgd_minibatch_size"],
                num_devices=config.get("num_devices", 1),
                seed=config.get("seed", 0),
            )
        )
    )
    return StandardMetricsReporting(train_op, workers, config)


def a2c_plan(workers: WorkerSet, config: Config) -> LocalIterator[dict[str, Any]]:
    """Rounds of all workers, then one update; or gradients of microbatches, averaged."""
    rollouts = SynchronizedRollouts(workers, "sync")
    size, standardize = config["train_batch_size"], StandardizeFields(config["standardize_fields"])
    train_op: LocalIterator[Any]
    if config["microbatch_size"]:
        train_op = (
            rollouts.combine(ConcatBatches(config["microbatch_size"]))
            .for_each(standardize)
            .for_each(ComputeGradients(workers))
            .batch(math.ceil(size / config["microbatch_size"]))
            .for_each(AverageGradients())
            .for_each(ApplyGradients(workers))
        )
    else:
        train_op = rollouts.combine(ConcatBatches(size)).for_each(standardize).for_each(TrainOneStep(workers))
    return StandardMetricsReporting(train_op, workers, config)


def a3c_plan(workers: WorkerSet, config: Config) -> LocalIterator[dict[str, Any]]:
    """Gradients that workers compute of what they play; whoever computed them gets the new weights."""
    train_op: LocalIterator[None] = AsyncGradients(workers).for_each(ApplyGradients(workers, update_all=False))
    return StandardMetricsReporting(train_op, workers, config)


def impala_plan(workers: WorkerSet, config: Config) -> LocalIterator[dict[str, Any]]:
    """Fragments as they come, joined here or by aggregators, to a learner that has a thread of its own.

    In SYNC rounds of all workers, then one update.
    """
    if config.get("synchronization", "async") == "sync":
        rounds = SynchronizedRollouts(workers, "sync").combine(ConcatBatches(config["train_batch_size"]))
        return StandardMetricsReporting(rounds.for_each(TrainOneStep(workers)), workers, config)
    gather = gather_experiences_tree_aggregation if config["num_aggregation_workers"] else gather_experiences_directly
    train_batches: LocalIterator[Any] = gather(workers, config).combine(
        BoundStaleness(workers, config.get("max_staleness"))
    )
    learner = make_learner_thread(workers.local_worker(), config)
    learner.start()
    enqueue_op: LocalIterator[Any] = train_batches.for_each(Enqueue(learner.inqueue))
    if workers.remote_workers():
        broadcast = BroadcastUpdateLearnerWeights(learner, workers, config["broadcast_interval"])
        enqueue_op = enqueue_op.zip_with_source_actor().for_each(broadcast)
    dequeue_op = Dequeue(learner.outqueue, check=learner.is_alive).for_each(record_steps_trained)
    merged_op = Concurrently([enqueue_op, dequeue_op], mode="async", output_indexes=[1])
    return StandardMetricsReporting(merged_op, workers, config).for_each(learner.add_learner_metrics)


def update_priorities(buffer: Any) -> Any:
    """An operator after `TrainOneStep`: gives what was learned from the priorities of its errors."""

    def update(item: tuple[Any, dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
        batch, info = item
        parts = batch.as_multi_agent().policy_batches
        errors = {name: (parts[name][SampleBatch.INDEXES], stats["td_error"]) for name, stats in info.items()}
        buffer.update_priorities(errors)
        return item

    return update


def dqn_plan(workers: WorkerSet, config: Config) -> LocalIterator[dict[str, Any]]:
    """Experience of the workers into replay, and batches from it, in turn; after so many steps the target network."""
    buffer = LocalReplayBuffer(
        learning_starts=config["learning_starts"],
        capacity=config["buffer_size"],
        replay_batch_size=config["train_batch_size"],
        prioritized_replay_alpha=config["prioritized_replay_alpha"],
        prioritized_replay_beta=config["prioritized_replay_beta"],
        seed=config.get("seed"),
    )
    rollouts = SynchronizedRollouts(
        workers, config.get("synchronization", "sync"), max_staleness=config.get("max_staleness")
    )
    store_op = rollouts.for_each(StoreToReplayBuffer(local_buffer=buffer))
    replay_op = (
        Replay(local_buffer=buffer)
        .for_each(TrainOneStep(workers, sgd_minibatch_size=config["sgd_minibatch_size"], seed=config.get("seed", 0)))
        .for_each(update_priorities(buffer))
        .for_each(UpdateTargetNetwork(workers, config["target_network_update_freq"]))
    )
    train_op = Concurrently(
        [store_op, replay_op],
        mode="round_robin",
        output_indexes=[1],
        round_robin_weights=[1, config["draws_per_round"]],
        seed=config.get("seed"),
    )
    return StandardMetricsReporting(train_op, workers, config)
