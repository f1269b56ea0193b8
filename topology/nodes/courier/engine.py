"""The threads of a running server: one leader on all sockets, followers that run handlers, a watchdog."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from typing import Any, final

from topology.nodes.courier.crew import Crew
from topology.nodes.courier.handlers import Handlers, Request
from topology.nodes.courier.inline import Inline
from topology.nodes.courier.methods import Method
from topology.nodes.courier.options import ServerOptions
from topology.nodes.courier.peer import Peer
from topology.nodes.courier.poller import READ, WRITE, Poller
from topology.nodes.courier.reception import Reception
from topology.nodes.courier.stay import Stay
from topology.nodes.courier.transport import Listener
from topology.nodes.courier.wire import Frame, Kind, WireError

__all__ = ["Engine"]

_logger = logging.getLogger(__name__)

_DEFAULT_THREADS = 16
_MAX_THREADS = 256
_TICK_S = 0.005  # of the watchdog: how long a mispredicted handler may hold up others
_LINGER_TICKS = 100  # without traffic, before the watchdog goes to sleep
_STARVED_S = 0.5


_REQUEST = int(Kind.REQUEST)  # an enum's attributes are slow to look up


@final
class Engine:
    """The threads of a running server."""

    def __init__(
        self,
        name: str,
        listener: Listener,
        methods: dict[str, Method],
        options: ServerOptions,
        pool: int | None,
        secret: bytes,
    ) -> None:
        self._name = name
        self._handlers = Handlers(name, methods, options)
        self._size = pool or _DEFAULT_THREADS
        self._max_size = pool or _MAX_THREADS
        self._poller = Poller()
        self._bell, self._bell_end = socket.socketpair()
        self._reception = Reception(name, listener, self._poller, options, secret)
        self._stopping = False
        # Only the leader touches these; they are here so that a new leader goes on where the old one was.
        self._ready: deque[tuple[int, int]] = deque()
        self._arrived: deque[tuple[Peer, Frame]] = deque()
        self._inline = Inline(self._handlers)
        # Leadership: who acquires this lock leads until it is released, by the leader or by the watchdog.
        self._baton = threading.Lock()
        self._stays: list[Stay] = []
        self._most_stays = self._size // 4  # the others are for everybody else
        self._returned: deque[Stay] = deque()  # with frames that were not begun; the leader is told by the bell
        self._lock = threading.Lock()  # guards the following
        self._followers = 0
        self._active = 0
        self._backlog: deque[Request] = deque()
        self._finished_calls = 0
        self._crew = Crew(name, self._close)
        self._turns = 0
        self._watching = False
        self._watch = threading.Event()
        self._end = threading.Event()

    def start(self) -> None:
        self._poller.add(self._bell.fileno(), READ)
        self._reception.open()
        self._crew.spawn(self._watchdog, "watchdog")
        self._add_follower()

    def stop(self) -> None:
        """Ends every conversation."""
        self._stopping = True
        with contextlib.suppress(OSError):  # its threads may have seen the flag and gone already
            self._bell_end.send(b"\0")
        self._end.set()
        self._watch.set()
        for peer in list(self._reception.peers.values()):
            peer.close()
        with self._lock:
            self._backlog.clear()

    def join(self, timeout_s: float) -> None:
        self._crew.join(timeout_s)

    def _close(self) -> None:
        """The last thread is leaving: nobody uses these any more."""
        for stay in self._returned:
            stay.peer.release()
        for peer in list(self._reception.peers.values()):
            peer.close()
        self._bell.close()
        self._bell_end.close()
        self._poller.close()

    def forget(self) -> None:
        for peer in list(self._reception.peers.values()):
            peer.sock.close()
        self._bell.close()
        self._bell_end.close()
        self._poller.close()

    def stats(self) -> dict[str, Any]:
        return {
            "connections": len(self._reception.peers),
            "threads": self._crew.alive,
            "running": self._active - sum(not stay.inline.running for stay in list(self._stays)),
            "queued": len(self._backlog),
            "staying": len(self._stays),
        }

    # --- threads -------------------------------------------------------------------------------------------------

    def _add_follower(self) -> None:
        self._followers += 1
        self._crew.spawn(self._follow, "worker")

    def _follow(self) -> None:
        """Life of a pool thread: wait for leadership, lead until it is passed on, run the handler, again."""
        while True:
            self._baton.acquire()  # released by another thread
            with self._lock:
                self._followers -= 1
            if self._stopping:
                self._baton.release()  # the next one ends, too
                return
            request = self._lead()
            while request is not None:
                self._run(request)
                request = self._next()
            with self._lock:
                self._followers += 1

    def _promote(self) -> None:
        """Passes leadership on; for the leader, or for the watchdog in its stead."""
        with self._lock:
            if not self._followers:
                self._add_follower()
        self._baton.release()

    def _next(self) -> Request | None:
        """Ends a call; returns the next one that waits for a thread, or None."""
        with self._lock:
            self._finished_calls += 1
            while self._backlog:
                request = self._backlog.popleft()
                if request[0].alive:
                    return request
            self._active -= 1
            return None

    # --- the leader ----------------------------------------------------------------------------------------------

    def _lead(self) -> Request | None:
        """Serves as leader until a slow request comes; returns it, or None at the end, having passed leadership on."""
        self._inline.send_held()  # of a leader that got stuck
        while not self._stopping:
            if self._arrived:
                leads, request = self._serve(*self._arrived.popleft())
                if not leads:
                    return request
            elif self._ready:
                self._take(*self._ready.popleft())
            else:
                self._inline.send_held()
                self._turns += 1
                self._ready += self._poller.wait(self._reception.patience() if self._reception.unproven else None)
        self._baton.release()
        return None

    def _serve(self, peer: Peer, frame: Frame) -> tuple[bool, Request | None]:
        """Deals with one frame; returns whether this thread still leads, and if not, what it is to run."""
        request = self._route(peer, frame)
        while request is not None:
            if not request[2].fast:
                self._inline.send_held()
                self._promote()
                return False, request
            leads = self._run_inline(request)
            request = self._next()
            if not leads:
                return False, request
        if peer.regular.proven and not self._arrived:
            stay = self._begin_stay(peer)
            if stay is not None:
                return False, self._stay(stay)
        return True, None

    def _run_inline(self, request: Request) -> bool:
        """Runs a handler as leader; returns whether this thread still leads."""
        if not self._watching:
            self._watch.set()
        return self._inline.run(request, bool(self._arrived) and self._arrived[0][0] is request[0])

    # --- stays ---------------------------------------------------------------------------------------------------

    def _begin_stay(self, peer: Peer) -> Stay | None:
        """Takes what a stay needs: one of the threads for handlers, and the connection."""
        with self._lock:
            if len(self._stays) >= self._most_stays or self._active >= self._size or not peer.hold():
                return None
            self._active += 1
            stay = Stay(peer, self._handlers, self._is_needed)
            self._stays.append(stay)
            return stay

    def _is_needed(self) -> bool:
        return self._stopping or bool(self._backlog)

    def _stay(self, stay: Stay) -> Request | None:
        """Serves one connection only, having passed leadership on; returns the next request for this thread."""
        self._inline.send_held()
        self._promote()
        self._watch.set()
        try:
            if stay.serve():
                self._give_back(stay)
        except (EOFError, OSError, WireError) as error:
            self._stays.remove(stay)
            self._part(stay.peer, error)
            stay.peer.release()
        return self._next()

    def _give_back(self, stay: Stay) -> None:
        """Returns a connection to the leader, with what was read and not begun; its thread may still run a handler."""
        self._stays.remove(stay)
        stay.inline.send_held()
        stay.peer.regular.stayed(stay.reads)
        if not stay.frames or self._stopping:
            stay.peer.release()
            return
        self._returned.append(stay)
        with contextlib.suppress(OSError):  # the server may have stopped
            self._bell_end.send(b"\0")

    def _welcome_back(self) -> None:
        self._bell.recv(1)
        while self._returned:
            stay = self._returned.popleft()
            self._arrived.extend((stay.peer, frame) for frame in stay.frames)
            stay.peer.release()

    # --- requests ------------------------------------------------------------------------------------------------

    def _route(self, peer: Peer, frame: Frame) -> Request | None:
        """Deals with a frame; a request that can run now is returned, one that cannot is queued."""
        kind = frame.kind
        if peer.handshake is not None:
            self._reception.shake_hands(peer, peer.handshake, frame)
        elif kind == _REQUEST:
            method = self._handlers.find(peer, frame)
            if method is not None:
                return self._admit(peer, frame, method)
        elif kind == Kind.CANCEL:
            self._cancel(peer, frame.id)
        elif kind == Kind.LIST:
            self._handlers.list_names(peer, frame)
        return None

    def _admit(self, peer: Peer, frame: Frame, method: Method) -> Request | None:
        with self._lock:
            runs = self._active < self._size
            if runs:
                self._active += 1
            else:
                self._backlog.append((peer, frame, method, True))
        if runs and method.inline:
            return peer, frame, method, False  # answered before anything else is read: nothing to count
        peer.admit(frame.size)
        if runs:
            return peer, frame, method, True
        self._watch.set()
        return None

    def _cancel(self, peer: Peer, call_id: int) -> None:
        future = peer.waiting.get(call_id)
        if future is not None:
            future.cancel()
            return
        with self._lock:
            for request in self._backlog:
                if request[0] is peer and request[1].id == call_id:
                    self._backlog.remove(request)
                    break
            else:
                return
        peer.settle(request[1].size)

    def _take(self, fd: int, events: int) -> None:
        """Deals with readiness of one socket."""
        peer = self._reception.peers.get(fd)
        if peer is None:
            if fd == self._bell.fileno():
                self._welcome_back()
            else:
                self._reception.accept(fd)
            return
        if events & WRITE:
            peer.flush()
        if events & ~WRITE:
            try:
                for frame in peer.read():
                    self._arrived.append((peer, frame))
            except (EOFError, OSError, WireError) as error:
                self._part(peer, error)
            else:
                peer.regular.sent()

    def _part(self, peer: Peer, error: Exception) -> None:
        if isinstance(error, WireError):
            _logger.warning("server %r: dropped a connection: %s", self._name, error)
        self._reception.part(peer)

    def _run(self, request: Request) -> None:
        """Runs a handler in a thread of the pool and sends its reply."""
        began = time.monotonic()
        parts = self._handlers.perform(request)
        request[2].took(time.monotonic() - began)
        self._handlers.reply(request, parts)

    # --- the watchdog --------------------------------------------------------------------------------------------

    def _watchdog(self) -> None:
        """Passes leadership on when the leader is stuck in a handler; adds threads when all are blocked."""
        quiet, turns = 0, -1
        calls, since = -1, 0.0
        while not self._stopping:
            if quiet < _LINGER_TICKS:
                self._end.wait(_TICK_S)
            else:
                self._sleep_watchdog()
                quiet = 0
            self._rescue()
            busy = self._inline.running or self._stays or self._backlog or self._turns != turns
            quiet, turns = 0 if busy else quiet + 1, self._turns
            if not self._backlog or self._finished_calls != calls:
                calls, since = self._finished_calls, time.monotonic()
            elif time.monotonic() - since >= _STARVED_S:
                self._grow()
                since = time.monotonic()

    def _sleep_watchdog(self) -> None:
        self._watch.clear()
        self._watching = False
        # Who comes from here on sees that the watchdog sleeps and wakes it.
        if not self._inline.running and not self._stays and not self._backlog and not self._stopping:
            self._watch.wait()
        self._watching = True

    def _rescue(self) -> None:
        """Takes reading from threads whose handler takes too long, and gives it to another thread."""
        if self._inline.overtake(_TICK_S):
            self._promote()
        for stay in list(self._stays):
            if stay.inline.overtake(_TICK_S):
                self._give_back(stay)

    def _grow(self) -> None:
        """All threads are blocked and calls wait: maybe the former wait for the latter."""
        with self._lock:
            if self._size >= self._max_size or not self._backlog:
                return
            self._size += 1
            self._active += 1
            request = self._backlog.popleft()
        if self._size == _DEFAULT_THREADS + 1:
            _logger.warning(
                "server %r: all %d threads have been blocked for %g s while calls wait; adding threads, up to %d. "
                "Give thread_pool_size=... if that is expected, or make waiting handlers asynchronous",
                self._name,
                _DEFAULT_THREADS,
                _STARVED_S,
                self._max_size,
            )
        self._crew.spawn(lambda: self._work(request), "worker")

    def _work(self, request: Request | None) -> None:
        while request is not None:
            self._run(request)
            request = self._next()
        with self._lock:
            self._followers += 1
        self._follow()
