"""Handlers run by the thread that read their requests; and how others take over from it when it gets stuck."""

from __future__ import annotations

from time import monotonic
from typing import final

from topology.nodes.courier.handlers import Handlers, Request
from topology.nodes.courier.methods import FAST_S, Method
from topology.nodes.courier.peer import Peer
from topology.nodes.courier.wire import Buffer

__all__ = ["Inline"]


@final
class Inline:
    """The handler that a reading thread runs, and replies that wait to go out together.

    Used by one thread at a time; `overtake` may be called by any.
    """

    __slots__ = ("_handlers", "_held", "_held_for", "_held_since", "running")

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self.running: list[tuple[Method, float]] = []  # one at most; whoever pops it may go on
        self._held: list[Buffer] = []
        self._held_for: Peer | None = None
        self._held_since = 0.0

    def run(self, request: Request, more: bool) -> bool:
        """Runs a handler and sends its reply.

        Args:
            request: whose handler is fast.
            more: whether another request of the same client is here already, so that a small reply may wait for its.

        Returns:
            Whether this thread is to go on reading; otherwise it was overtaken.
        """
        running = self.running
        began = monotonic()
        running.append((request[2], began))
        parts = self._handlers.perform(request)
        ended = monotonic()
        try:
            running.pop()
        except IndexError:  # overtaken
            self._handlers.reply(request, parts)
            request[2].took(ended - began)
            return False
        if parts is not None:
            if more or self._held:
                self._reply_or_hold(request[0], parts, more, ended)
            else:
                request[0].send(parts)
            if request[3]:
                request[0].settle(request[1].size)
        request[2].took(ended - began)  # after the reply: by now the caller goes on
        return True

    def _reply_or_hold(self, peer: Peer, parts: list[Buffer], more: bool, now: float) -> None:
        if self._held and (self._held_for is not peer or now - self._held_since > FAST_S):
            self.send_held()
        if more and len(parts) == 1:
            if not self._held:
                self._held_for, self._held_since = peer, now
            self._held += parts
        elif self._held:
            self._held += parts
            self.send_held()
        else:
            peer.send(parts)

    def send_held(self) -> None:
        """Sends the replies that wait. Never blocks."""
        if self._held and self._held_for is not None:
            parts, self._held = self._held, []
            self._held_for.send([b"".join(parts)])

    def overtake(self, limit_s: float) -> bool:
        """Takes reading away from the thread if its handler has run longer than that; returns whether it did."""
        try:
            method, began = self.running[0]
            if monotonic() - began < limit_s:
                return False
            self.running.pop()
        except IndexError:
            return False  # there is none, or it has just finished
        method.blocked()
        return True
