"""Whether a replay server is there: what a call that the server may hold for long cannot tell."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, final

from topology.clock import Deadline
from topology.errors import ConnectionBroken
from topology.nodes import replay
from topology.nodes.replay.messages import ServerStopped

__all__ = ["Presence"]


@final
class Presence:
    """Asks the server for a sign of life. For one thread.

    Args:
        client: of the server.
        table: that it has.
        patience_s: how long it may take to answer, in seconds, if it went away.
    """

    def __init__(self, client: replay.Client, table: str, patience_s: float) -> None:
        self._client = client
        self._table = table
        self._patience_s = patience_s
        self._patience: Deadline | None = None
        self._asked: Future[Any] | None = None

    def heard(self) -> None:
        """The server has answered something else."""
        if self._asked is not None:
            self._asked.cancel()
        self._patience = self._asked = None

    def answers(self, timeout_s: float | None) -> bool:
        """Whether it answers within so many seconds. Asks, and goes on waiting for the same answer the next time.

        Raises:
            ConnectionBroken: it has not answered for as long as the patience lasts.
        """
        patience = self._patience = self._patience or Deadline(self._patience_s)
        left_s = patience.remaining() or 0.0
        try:
            asked = self._asked = self._asked or self._client.link.submit("occupancy", (self._table,))
            asked.result(left_s if timeout_s is None else min(timeout_s, left_s))
        except (ConnectionBroken, ServerStopped):
            self._asked = None
        except TimeoutError:
            pass  # it may answer later
        else:
            self.heard()
            return True
        if patience.expired:
            self.heard()
            raise ConnectionBroken(f"it did not answer within {self._patience_s:g} s")
        return False
