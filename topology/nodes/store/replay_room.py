"""Room in a memory that a replay service keeps: given back by the reader, and looked for where somebody died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from topology.clock import SYSTEM_CLOCK
from topology.errors import ReplayDeadlineExceeded
from topology.nodes import replay
from topology.nodes.replay.links import SampleCallArguments

__all__ = ["ReplayRoom"]


@final
class ReplayRoom:
    """For one thread at a time.

    Args:
        client: of the replay server.
        name: of the memory.
        patience_s: how long room must have been taken for nothing, in seconds.
    """

    def __init__(self, client: replay.Client, name: str, patience_s: float) -> None:
        self._client = client
        self._name = name
        self._patience_s = patience_s
        self._in_vain: tuple[int, float] = 0, 0.0  # room taken for nothing, and since when

    def give_back(self, steps: int) -> None:
        """Gives back room for so many steps, or what is taken if that is less."""
        while steps > 0:
            request = SampleCallArguments(f"{self._name}.room", steps, 0.0, some=True)
            try:
                steps -= self._client.link.sample(request).keys.size
            except ReplayDeadlineExceeded:
                return  # it was given back before

    def look_for_the_dead(self, known: Sequence[int] | None) -> None:
        """Gives back the room of those who were killed, once it has been taken for nothing for a while.

        When that was in fact somebody slow, there is more in the memory than its bound allows until that is gone.

        Args:
            known: the reader's: steps of all that it has read and not let go of. None for a writer, which can tell only
                while there is nothing in the memory.
        """
        tables = self._client.server_info()
        if tables[self._name].current_size != len(known or ()):
            return
        in_vain, now = tables[f"{self._name}.room"].current_size - sum(known or ()), SYSTEM_CLOCK.monotonic()
        if in_vain <= 0 or in_vain != self._in_vain[0]:
            self._in_vain = in_vain, now
        elif now - self._in_vain[1] >= self._patience_s:
            self.give_back(in_vain)
            self._in_vain = 0, now
