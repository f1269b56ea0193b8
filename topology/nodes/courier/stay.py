"""Connections that keep a thread for a while: one that sends call after call is read by a thread of its own.

Going through the leader costs every call a wait for readiness besides the read. A thread that stays with a connection
blocks in the read itself, and several read in parallel. It holds up nobody: the leader has the other connections, and
gets this one back when no call has come for `PATIENCE_S`, when a handler is not known to be fast and prompt, or turns
out not to be, when the client does not take its replies, and when calls wait for a thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

from topology.nodes.courier.handlers import Handlers
from topology.nodes.courier.inline import Inline
from topology.nodes.courier.peer import Peer
from topology.nodes.courier.wire import Frame, Kind

__all__ = ["Stay"]

_REQUEST = int(Kind.REQUEST)  # an enum's attributes are slow to look up


@final
class Stay:
    """A thread that serves one connection.

    Args:
        peer: held by the caller, see `Peer.hold`.
        handlers: of the server.
        wanted: whether the thread is needed elsewhere.
    """

    def __init__(self, peer: Peer, handlers: Handlers, wanted: Callable[[], bool]) -> None:
        self.peer = peer
        self.inline = Inline(handlers)
        self.frames: deque[Frame] = deque()  # what has come in and was not begun
        self.reads = 0
        self._handlers = handlers
        self._wanted = wanted

    def serve(self) -> bool:
        """Serves the connection for as long as that is of use; returns whether this thread still holds it.

        Raises:
            EOFError, OSError, WireError: the connection is over.
        """
        peer, frames, wanted = self.peer, self.frames, self._wanted
        while not wanted():
            try:
                frames += peer.receive()
            except BlockingIOError:
                return True  # a pause
            self.reads += 1
            while frames:
                served = self._serve(frames.popleft())
                if served is not None:
                    return served
            if peer.clogged:
                return True
        return True

    def _serve(self, frame: Frame) -> bool | None:
        """Deals with one frame; None when the stay goes on, else what `serve` returns."""
        method = self._handlers.find(self.peer, frame) if frame.kind == _REQUEST else None
        if method is None or not method.inline:
            if method is None and frame.kind == _REQUEST:
                return None  # it was refused
            self.frames.appendleft(frame)  # the leader knows what to do
            return True
        if not self.inline.run((self.peer, frame, method, False), bool(self.frames)):
            return False
        return True if self.peer.waiting else None  # what is under way may be cancelled, which is the leader's
