"""The nodes of a plan: the plan itself, rollout workers, aggregators, replay buffers. Each is a `CourierNode`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from topology.handle import Handle
from topology.nodes.courier.client import Client
from topology.nodes.courier.node import CourierNode
from topology.nodes.flow.aggregation import AGGREGATOR_OPTIONS, Aggregator
from topology.nodes.flow.plan import Plan
from topology.nodes.flow.replay_by_policy import ReplayActor
from topology.nodes.flow.runner import PlanRunner
from topology.nodes.flow.shards import HOST_OPTIONS
from topology.nodes.flow.worker import RolloutWorker

__all__ = ["AggregatorNode", "PlanNode", "ReplayActorNode", "WorkerNode"]


def WorkerNode(constructor: Callable[..., RolloutWorker], *args: Any, **kwargs: Any) -> CourierNode:  # noqa: N802
    """A node with a rollout worker.

    To have it started again when it fails, give `lp.launch` its label in `restarts`, and the plan `WorkerFailures` with
    `max_restarts`.

    Args:
        constructor: makes the worker, in the node's place.
        *args: of the constructor; handles arrive as clients.
        **kwargs: alike.
    """
    return CourierNode(constructor, *args, courier_kwargs=HOST_OPTIONS, **kwargs)


def AggregatorNode() -> CourierNode:  # noqa: N802
    """A node with an aggregator, for `gather_experiences_tree_aggregation`."""
    return CourierNode(Aggregator, courier_kwargs=AGGREGATOR_OPTIONS)


def ReplayActorNode(**settings: Any) -> CourierNode:  # noqa: N802
    """A node with a replay buffer; for the settings see `LocalReplayBuffer`."""
    return CourierNode(ReplayActor, courier_kwargs=HOST_OPTIONS, **settings)


def PlanNode(  # noqa: N802
    plan: Plan,
    local_worker: Callable[[], RolloutWorker],
    workers: Sequence[Handle[Client]] = (),
    *,
    constructor: Callable[..., PlanRunner] = PlanRunner,
    **settings: Any,
) -> CourierNode:
    """A node that drives a plan, and serves its results and weights.

    Args:
        plan: what to run.
        local_worker: makes the worker that learns, in this node.
        workers: handles of `WorkerNode`s.
        constructor: `PlanRunner`, or a subclass.
        **settings: the other arguments of `PlanRunner`, such as `aggregators`, handles of `AggregatorNode`s.
    """
    return CourierNode(constructor, plan, local_worker, list(workers), **settings)
