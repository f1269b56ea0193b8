"""The queue of IMPALA, and what lies in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from dm_env import specs

from topology.agents.core.sequences import StepSequence, sequence_signature
from topology.agents.impala.config import IMPALAConfig
from topology.environments.specs import EnvironmentSpec, num_discrete_actions
from topology.nodes.replay import Table

__all__ = ["TABLE", "initial_state", "make_queue", "signature"]

TABLE = "queue"


def initial_state(lstm_size: int | None) -> Any:
    """The memory at the beginning of an episode: cell and output of the LSTM; None without one."""
    return None if lstm_size is None else (np.zeros(lstm_size, np.float32), np.zeros(lstm_size, np.float32))


def signature(config: IMPALAConfig, spec: EnvironmentSpec) -> StepSequence:
    """The specs of an item: a sequence, what the policy that acted said of each step, and the memory at its beginning.

    The extras of a step are `logits`, float32 `[A]`, and `version`, int32: the learner steps that made the weights.
    """
    num_actions = num_discrete_actions(spec, agent="IMPALA")
    extras = {"logits": specs.Array((num_actions,), np.float32), "version": specs.Array((), np.int32)}
    state = tuple(specs.Array(leaf.shape, leaf.dtype) for leaf in initial_state(config.lstm_size) or ())
    return sequence_signature(spec, config.sequence_length, extras=extras, state=state)


def make_queue(config: IMPALAConfig, spec: EnvironmentSpec, *, seed: int, lockstep: bool) -> Table:
    """A bounded queue of sequences, each of which is learned from once. Actors wait while it is full.

    Args:
        config: settings.
        spec: of the environment.
        seed: of the table.
        lockstep: one thread inserts and samples in turn, so that nobody must ever wait: there is room for a batch and
            for what a step of every actor adds to it.
    """
    size = config.max_queue_size
    if lockstep:
        most_of_a_step = config.sequence_length  # when an episode ends and is filled, with the shortest period
        size = config.items_per_call + config.num_actors * config.environments_per_actor * most_of_a_step
    return Table.queue(TABLE, size, signature(config, spec), seed=seed)
