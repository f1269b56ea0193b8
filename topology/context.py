"""What running code receives: who it is, where the others are, and when to stop.

A launcher makes one `NodeContext` a node and binds it around the node's code. Code finds it with `get_context()`,
in the node's own thread and in every thread started from there, also when several programs share one process.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from topology.clock import SYSTEM_CLOCK, Deadline

if TYPE_CHECKING:
    from topology.executable import Executable

__all__ = [
    "NodeContext",
    "StopToken",
    "bind_context",
    "derive_seeds",
    "get_context",
    "seed_after_restarts",
    "set_process_context",
    "try_get_context",
]

_logger = logging.getLogger(__name__)


@final
class StopToken:
    """Says once, to everybody who waits or listens, that the program is to stop.

    Launchers call `set`; code in nodes calls `request` to ask for it. Thread-safe.
    """

    def __init__(self, request: Callable[[str], None] | None = None) -> None:
        self._event = threading.Event()
        self._changed = threading.Condition()
        self._callbacks: dict[int, _Callback] = {}
        self._called: list[_Callback] = []  # the handlers of the node's code that have not returned yet
        self._next_id = 0
        self._request = request
        self._requested = False
        self._observed = False
        self._set_at: float | None = None
        self.reason = ""

    def __repr__(self) -> str:
        return f"<StopToken {'set' if self._event.is_set() else 'not set'}, {len(self._callbacks)} listeners>"

    @property
    def observed(self) -> bool:
        """Whether the node's code ever looked: such a node is given the whole notice to end by itself."""
        return self._observed

    @property
    def event(self) -> threading.Event:
        """The event set at the stop. Only for waiting: setting it stops nothing."""
        self._observed = True
        return self._event

    def is_set(self) -> bool:
        """Whether the program is stopping."""
        self._observed = True
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Blocks until the stop, at most `timeout_s` seconds; returns whether the program is stopping."""
        self._observed = True
        return self._event.wait(timeout_s)

    def on_stop(self, handler: Callable[[], None]) -> Callable[[], None]:
        """Calls `handler` once at the stop, in the thread that announces it; at once if it has come already.

        Returns a function that takes the handler back (a no-op when it has run). Marks the node as `observed`, and the
        node does not end before the handler has returned or the notice is over.
        """
        self._observed = True
        return self._add(_Callback(handler, awaited=True))

    def subscribe(self, handler: Callable[[], None]) -> Callable[[], None]:
        """Like `on_stop`, for services that wake their waiters: the node's code did not look, so no mark."""
        return self._add(_Callback(handler, awaited=False))

    def _add(self, callback: _Callback) -> Callable[[], None]:
        with self._changed:
            if not self._event.is_set():
                key = self._next_id
                self._next_id += 1
                self._callbacks[key] = callback
                return lambda: self._forget(key)
            self._begin([callback])
        self._call([callback])
        return lambda: None

    def discard(self, handler: Callable[[], None]) -> None:
        """Takes back every registration of `handler`; does nothing when there is none."""
        with self._changed:
            self._callbacks = {key: known for key, known in self._callbacks.items() if known.handler != handler}

    def _forget(self, key: int) -> None:
        with self._changed:
            self._callbacks.pop(key, None)

    def request(self, reason: str = "") -> None:
        """Asks the launcher to stop the whole program. Returns at once; the token is set when the launcher does so."""
        if self._request is None:
            self.set(reason)
        else:
            self._requested = True
            self._request(reason)

    def set(self, reason: str = "") -> None:
        """Announces the stop: for launchers. The second call does nothing."""
        with self._changed:
            if self._event.is_set():
                return
            self.reason = reason
            self._set_at = SYSTEM_CLOCK.monotonic()
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
            self._begin(callbacks)
            self._event.set()
            self._changed.notify_all()
        self._call(callbacks)

    def _begin(self, callbacks: Iterable[_Callback]) -> None:
        for callback in callbacks:
            callback.thread = threading.get_ident()
            if callback.awaited:
                self._called.append(callback)

    def _call(self, callbacks: Iterable[_Callback]) -> None:
        for callback in callbacks:
            try:
                _call(callback.handler)
            finally:
                with self._changed:
                    self._called = [other for other in self._called if other is not callback]
                    self._changed.notify_all()

    def join_handlers(
        self, notice_s: float | None, *, coming: bool = False, timeout_s: float | None = None
    ) -> list[Callable[[], None]]:
        """Blocks until the handlers of `on_stop` have returned, if there is a stop; returns those that have not.

        For launchers, when the node's code has ended. A stop that this node has asked for is waited for, if it has
        handlers. A handler does not wait for itself.

        Args:
            notice_s: how long handlers may take, from the stop; None for ever.
            coming: there is a stop, even if the token is not set yet.
            timeout_s: how long to wait at most, from now.
        """
        timeout = Deadline(timeout_s)
        with self._changed:
            if not (self._event.is_set() or coming or (self._requested and self._has_handlers())):
                return []
            self._wait_for(lambda: self._set_at is not None, Deadline(notice_s), timeout)
            passed_s = 0.0 if self._set_at is None else SYSTEM_CLOCK.monotonic() - self._set_at
            notice = Deadline(None if notice_s is None else notice_s - passed_s)
            self._wait_for(lambda: not self._others(), notice, timeout)
            return [callback.handler for callback in self._others()]

    def _wait_for(self, predicate: Callable[[], bool], *deadlines: Deadline) -> None:
        left = [left_s for deadline in deadlines if (left_s := deadline.remaining()) is not None]
        SYSTEM_CLOCK.wait_for(self._changed, predicate, min(left, default=None))

    def _has_handlers(self) -> bool:
        return any(callback.awaited for callback in self._callbacks.values())

    def _others(self) -> list[_Callback]:
        """The handlers that are being called, but for those of this thread."""
        return [callback for callback in self._called if callback.thread != threading.get_ident()]


@final
@dataclass(eq=False)
class _Callback:
    """A handler; whether the end of the node waits for it; and the thread that calls it, from when that is known."""

    handler: Callable[[], None]
    awaited: bool
    thread: int = 0


def _call(handler: Callable[[], None]) -> None:
    try:
        handler()
    except (Exception, SystemExit):  # one handler must not keep the others from hearing of the stop
        _logger.exception("stop handler %r raised", handler)


@final
@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """Identity and surroundings of one running node.

    Attributes:
        program: name of the program.
        label: group of the node.
        index: its place in the group, from 0.
        group_size: number of nodes in the group.
        launch_type: how it was launched, e.g. "local_mp".
        run_directory: where this run keeps logs, metrics and checkpoints; None when it keeps nothing.
        seed: 31-bit seed of this node: distinct for every node, the same on every run with the same run seed. Where a
            node is started again after a failure it has another one, so that it does not do the same once more.
        stop: set when the program is to stop.
        endpoints: endpoint of every address of the program, by `Address.id`.
        secret: shared by all nodes of the run; proves membership on TCP connections.
        run_in_processes: runs executables as processes inside this node and blocks until they have ended; raises the
            first failure. None where the launcher cannot.
    """

    program: str = "program"
    label: str
    index: int
    group_size: int = 1
    launch_type: str
    run_directory: Path | None = None
    seed: int = 0
    stop: StopToken = field(default_factory=StopToken)
    endpoints: Mapping[str, str] = field(default_factory=dict)
    secret: bytes = field(default=b"", repr=False)
    run_in_processes: Callable[[Sequence[Executable]], None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """`label/index`, as in the graph and in the logs."""
        return f"{self.label}/{self.index}"


_current: ContextVar[NodeContext | None] = ContextVar("topology_node_context", default=None)
_process_context: NodeContext | None = None
_inheritance_lock = threading.Lock()
_bound = 0
_start_thread = threading.Thread.start


def try_get_context() -> NodeContext | None:
    """The context of the node that runs this code, or None outside a node."""
    return _current.get() or _process_context


def get_context() -> NodeContext:
    """The context of the node that runs this code.

    Raises:
        RuntimeError: the code does not run in a node of a launched program.
    """
    context = try_get_context()
    if context is None:
        raise RuntimeError(
            "get_context() was called outside a node: it is there in code that a launcher runs, and in its threads"
        )
    return context


def set_process_context(context: NodeContext | None) -> None:
    """Makes `context` the context of the whole process: for launchers that give a node its own process."""
    global _process_context
    _process_context = context


@final
class bind_context:  # noqa: N801 - used like a function
    """Makes `context` current in this thread and in the threads started from it, until the `with` block ends.

    Threads inherit no context variables by default; while a context is bound, `Thread.start` hands this one on. This is
    a class because contextlib's generators assign to the errors that pass them, which some errors of users refuse.
    """

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._tokens: list[Token[NodeContext | None]] = []

    def __enter__(self) -> None:
        global _bound
        with _inheritance_lock:
            _bound += 1
            if _bound == 1:
                threading.Thread.start = _start_with_context  # type: ignore[method-assign,assignment]
        self._tokens.append(_current.set(self._context))

    def __exit__(self, *error: object) -> None:
        global _bound
        _current.reset(self._tokens.pop())
        with _inheritance_lock:
            _bound -= 1
            if _bound == 0:
                threading.Thread.start = _start_thread  # type: ignore[method-assign]


def _start_with_context(thread: threading.Thread) -> None:
    context = _current.get()
    if context is not None:
        run = thread.run

        def run_in_context() -> None:
            _current.set(context)
            run()

        thread.run = run_in_context  # type: ignore[method-assign]
    _start_thread(thread)


def seed_after_restarts(seed: int, restarts: int) -> int:
    """The seed of a node that was started again so often; `seed` itself the first time."""
    name = f"restart {restarts}"
    return derive_seeds(seed, [name])[name] if restarts else seed


def derive_seeds(run_seed: int, names: Iterable[str]) -> dict[str, int]:
    """A 31-bit seed for every name: distinct within `names`, and a function of `run_seed` and the name.

    Only when two names hash alike (about once in a million programs of 50 nodes) does the later one depend on the
    earlier.
    """
    seeds: dict[str, int] = {}
    taken: set[int] = set()
    for name in names:
        attempt = 0
        while True:
            digest = hashlib.blake2b(f"{run_seed}:{name}:{attempt}".encode(), digest_size=8).digest()
            seed = int.from_bytes(digest, "little") >> 33
            if seed not in taken:
                break
            attempt += 1
        taken.add(seed)
        seeds[name] = seed
    return seeds
