"""Execution plans in the manner of RLlib Flow: lazy streams over rollout workers, driven by one node.

May live here: parallel and local iterators, their operators, rollout workers as protocols, learners' threads, replay
buffers on `topology.nodes.replay`. `node.py` alone knows the graph of a program; everything else is a library that
works without one. May not: networks, losses, environments, jax.

    def execution_plan(workers, config):
        rollouts = ParallelRollouts(workers, mode="bulk_sync")
        train_op = rollouts.combine(ConcatBatches(config["train_batch_size"])).for_each(TrainOneStep(workers))
        return StandardMetricsReporting(train_op, workers, config)

Source: Liang et al., "RLlib Flow: Distributed Reinforcement Learning is a Dataflow Problem", 2021, arXiv:2011.12719.
"""

from topology.nodes.flow.actors import Actor, ActorGroup, host
from topology.nodes.flow.aggregation import (
    Aggregator,
    gather_experiences_directly,
    gather_experiences_tree_aggregation,
)
from topology.nodes.flow.batch import DEFAULT_POLICY_ID, Batch, MultiAgentBatch, SampleBatch, concat_samples
from topology.nodes.flow.concurrency_ops import Concurrently
from topology.nodes.flow.events import PlanClosed
from topology.nodes.flow.failures import WorkerFailures
from topology.nodes.flow.learner import LearnerOutput, LearnerThread, MinibatchBuffer, make_learner_thread
from topology.nodes.flow.local_iterator import LocalIterator
from topology.nodes.flow.metric_ops import (
    CollectMetrics,
    OncePerTimeInterval,
    OncePerTimestepsElapsed,
    StandardMetricsReporting,
)
from topology.nodes.flow.metrics import (
    AGENT_STEPS_SAMPLED_COUNTER,
    AGENT_STEPS_TRAINED_COUNTER,
    LAST_TARGET_UPDATE_TS,
    LEARNER_INFO,
    NUM_TARGET_UPDATES,
    NUM_WEIGHT_BROADCASTS,
    NUM_WEIGHT_SYNCS,
    STEPS_SAMPLED_COUNTER,
    STEPS_TRAINED_COUNTER,
    STEPS_TRAINED_THIS_ITER_COUNTER,
    MetricsContext,
    SharedMetrics,
    get_shared_metrics,
)
from topology.nodes.flow.parallel_iterator import ParallelIterator
from topology.nodes.flow.plan import Plan, RunningPlan
from topology.nodes.flow.queues import Dequeue, Enqueue, Queue, QueueClosed
from topology.nodes.flow.replay_buffers import ReplayBuffer, SimpleReplayBuffer
from topology.nodes.flow.replay_by_policy import LocalReplayBuffer, ReplayActor
from topology.nodes.flow.replay_ops import (
    LocalReplay,
    MixInReplay,
    Replay,
    StoreToReplayBuffer,
    WaitUntilTimestepsElapsed,
)
from topology.nodes.flow.requests import AsyncRequestsManager
from topology.nodes.flow.rollout_ops import (
    AsyncGradients,
    ConcatBatches,
    ParallelRollouts,
    SelectExperiences,
    StandardizeFields,
)
from topology.nodes.flow.runner import PlanRunner
from topology.nodes.flow.shards import ParallelIteratorWorker, get_global_worker
from topology.nodes.flow.sources import from_actors, from_items, from_iterators, from_range
from topology.nodes.flow.stages import Operator
from topology.nodes.flow.synchronization import (
    STALENESS,
    STEPS_DROPPED_COUNTER,
    BoundStaleness,
    SynchronizedRollouts,
)
from topology.nodes.flow.train_ops import (
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    MultiGPUTrainOneStep,
    TrainOneStep,
    TrainTFMultiGPU,
    UpdateTargetNetwork,
    record_steps_trained,
)
from topology.nodes.flow.weight_ops import BroadcastUpdateLearnerWeights, UpdateWorkerWeights
from topology.nodes.flow.worker import Episode, Policy, RolloutWorker, Sampler
from topology.nodes.flow.worker_set import WorkerSet

_get_shared_metrics = get_shared_metrics
"""The name that plans written for RLlib use."""

__all__ = [
    "AGENT_STEPS_SAMPLED_COUNTER",
    "AGENT_STEPS_TRAINED_COUNTER",
    "DEFAULT_POLICY_ID",
    "LAST_TARGET_UPDATE_TS",
    "LEARNER_INFO",
    "NUM_TARGET_UPDATES",
    "NUM_WEIGHT_BROADCASTS",
    "NUM_WEIGHT_SYNCS",
    "STALENESS",
    "STEPS_DROPPED_COUNTER",
    "STEPS_SAMPLED_COUNTER",
    "STEPS_TRAINED_COUNTER",
    "STEPS_TRAINED_THIS_ITER_COUNTER",
    "Actor",
    "ActorGroup",
    "Aggregator",
    "ApplyGradients",
    "AsyncGradients",
    "AsyncRequestsManager",
    "AverageGradients",
    "Batch",
    "BoundStaleness",
    "BroadcastUpdateLearnerWeights",
    "CollectMetrics",
    "ComputeGradients",
    "ConcatBatches",
    "Concurrently",
    "Dequeue",
    "Enqueue",
    "Episode",
    "LearnerOutput",
    "LearnerThread",
    "LocalIterator",
    "LocalReplay",
    "LocalReplayBuffer",
    "MetricsContext",
    "MinibatchBuffer",
    "MixInReplay",
    "MultiAgentBatch",
    "MultiGPUTrainOneStep",
    "OncePerTimeInterval",
    "OncePerTimestepsElapsed",
    "Operator",
    "ParallelIterator",
    "ParallelIteratorWorker",
    "ParallelRollouts",
    "Plan",
    "PlanClosed",
    "PlanRunner",
    "Policy",
    "Queue",
    "QueueClosed",
    "Replay",
    "ReplayActor",
    "ReplayBuffer",
    "RolloutWorker",
    "RunningPlan",
    "SampleBatch",
    "Sampler",
    "SelectExperiences",
    "SharedMetrics",
    "SimpleReplayBuffer",
    "StandardMetricsReporting",
    "StandardizeFields",
    "StoreToReplayBuffer",
    "SynchronizedRollouts",
    "TrainOneStep",
    "TrainTFMultiGPU",
    "UpdateTargetNetwork",
    "UpdateWorkerWeights",
    "WaitUntilTimestepsElapsed",
    "WorkerFailures",
    "WorkerSet",
    "_get_shared_metrics",
    "concat_samples",
    "from_actors",
    "from_items",
    "from_iterators",
    "from_range",
    "gather_experiences_directly",
    "gather_experiences_tree_aggregation",
    "get_global_worker",
    "get_shared_metrics",
    "host",
    "make_learner_thread",
    "record_steps_trained",
]
