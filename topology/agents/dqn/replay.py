"""The replay table of DQN."""

from __future__ import annotations

from topology.agents.core.replay import make_rate_limiter
from topology.agents.core.transitions import transition_signature
from topology.agents.dqn.config import DQNConfig
from topology.environments.specs import EnvironmentSpec
from topology.nodes.replay import Table, selectors

__all__ = ["TABLE", "make_table"]

TABLE = "priority_table"


def make_table(config: DQNConfig, spec: EnvironmentSpec, *, seed: int, lockstep: bool) -> Table:
    """A prioritized table of transitions; the oldest leave first.

    Args:
        config: settings.
        spec: of the environment.
        seed: of the sampling.
        lockstep: one thread inserts and samples in turn and keeps the ratio itself, so that nobody must ever wait.
    """
    return Table(
        TABLE,
        selectors.Prioritized(config.priority_exponent),
        selectors.Fifo(),
        config.max_replay_size,
        make_rate_limiter(config, lockstep=lockstep),
        signature=transition_signature(spec),
        seed=seed,
    )
