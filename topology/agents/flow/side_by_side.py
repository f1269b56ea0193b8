"""Agents of different kinds in one plan: their samplers as one."""

from __future__ import annotations

from typing import final

from topology.agents.flow.sampler import JaxSampler
from topology.nodes.flow import Episode, MultiAgentBatch

__all__ = ["SideBySide"]


@final
class SideBySide:
    """Samplers of several policies, each in environments of its own, as one: for agents of different kinds in one plan.

    Args:
        **samplers: by policy id; of as many environments and steps each.
    """

    def __init__(self, **samplers: JaxSampler) -> None:
        self._samplers = samplers

    def sample(self) -> MultiAgentBatch:
        batches = {name: sampler.sample() for name, sampler in self._samplers.items()}
        return MultiAgentBatch(batches, max(batch.count for batch in batches.values()))

    def drain_episodes(self) -> list[Episode]:
        return [episode for sampler in self._samplers.values() for episode in sampler.drain_episodes()]

    def recover(self) -> None:
        for sampler in self._samplers.values():
            sampler.recover()

    def close(self) -> None:
        for sampler in self._samplers.values():
            sampler.close()
