"""What R2D2 remembers between steps, and what it writes into replay."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from dm_env import specs

from topology.agents.core.sequences import StepSequence, sequence_signature
from topology.agents.r2d2.config import R2D2Config
from topology.environments.specs import EnvironmentSpec

__all__ = ["TABLE", "Carry", "RecurrentState", "initial_state", "signature"]

TABLE = "priority_table"


class Carry(NamedTuple):
    """The memory of the LSTM: two float32 arrays `[..., lstm_size]`."""

    cell: Any
    hidden: Any


class RecurrentState(NamedTuple):
    """All that an action depends on besides the observation.

    Attributes:
        carry: see `Carry`.
        action: the one before, int32; -1 at the beginning of an episode, where there was none.
        reward: the one before, float32; 0 at the beginning.
    """

    carry: Carry
    action: Any
    reward: Any


def initial_state(lstm_size: int) -> RecurrentState:
    """The state at the beginning of an episode."""
    nothing = np.zeros(lstm_size, np.float32)
    return RecurrentState(Carry(nothing, nothing), np.int32(-1), np.float32(0))


def signature(config: R2D2Config, spec: EnvironmentSpec) -> StepSequence:
    """The specs of an item of the table: a sequence, and the state where it begins."""
    memory = specs.Array((config.lstm_size,), np.float32)
    state = RecurrentState(Carry(memory, memory), specs.Array((), np.int32), specs.Array((), np.float32))
    return sequence_signature(spec, config.sequence_length, state=state)
