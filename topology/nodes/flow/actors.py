"""Workers as the driver of a plan sees them: something with a name that takes calls in order."""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, final

from topology.errors import ConnectionBroken, CourierClosed
from topology.nodes.courier import codec
from topology.nodes.courier.calls import CallFuture, RawReply
from topology.nodes.courier.client import Client, raw_caller
from topology.nodes.courier.server import Server, bind_object
from topology.nodes.courier.wire import Buffer, Kind, payload_bytes
from topology.nodes.flow.shards import HOST_OPTIONS, ParallelIteratorWorker, release

if TYPE_CHECKING:
    from topology.nodes.flow.failures import Crew

__all__ = ["Actor", "ActorGroup", "Broadcasts", "as_actors", "host", "results_of"]

_numbers = itertools.count()

_HELD_BYTES = 1 << 16
"""Larger calls are written at once, from where their arguments are: to copy them would cost more than a message."""


@final
class Actor:
    """A worker: its name and a courier client of it. Equal to another one of the same address; picklable.

    Remote methods are methods: `actor.futures.set_weights(weights)` is a future, `actor.get_weights()` blocks.

    Args:
        client: of a `ParallelIteratorWorker`, served with `HOST_OPTIONS`.
        name: for people, e.g. "worker/3"; the address by default.
    """

    def __init__(self, client: Client, name: str = "") -> None:
        self.client = client
        self.name = name or str(client.address)
        self._hash = hash(client.address)
        self._last: CallFuture | None = None
        self._held: _Held | None = None
        self.hosting: Callable[[], object] | None = None  # ends the server, where it is in this process
        self.crew: Crew | None = None  # of those that fail and are left out together; set by a `WorkerSet`

    @property
    def members(self) -> tuple[Actor, ...]:
        """Itself: see `ActorGroup`."""
        return (self,)

    @property
    def futures(self) -> Any:
        """The remote methods, each returning a future."""
        self._release()
        return self.client.futures

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        self._release()
        found: Callable[..., Any] = getattr(self.client, method)
        return found

    def submit(self, method: str, *args: Any) -> CallFuture:
        """Calls a remote method. Calls of one actor are begun in the order in which they are submitted."""
        self._release()
        return self._submit(method, *args)

    def submit_with_held(self, method: str, *args: Any) -> CallFuture:
        """As `submit`, but a call that is held travels with it. If that one fails it is a `HeldCallFailed`."""
        held, self._held = self._held, None
        if held is None:
            return self._submit(method, *args)
        return self._submit("call_after", held.method, held.body, held.buffers, method, *args)

    def _submit(self, method: str, *args: Any) -> CallFuture:
        self._last = getattr(self.client.futures, method)(*args)
        return self._last

    def hold(self, call: _Held) -> bool:
        """Keeps a call, which travels with the next one rather than by itself. Not where the worker is at work.

        Returns:
            Whether it is kept.
        """
        if self._last is None or not self._last.over:
            return False
        self._release()
        self._held = call
        return True

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.send(self)

    def end(self) -> None:
        """Ends the server where it was made by `host`; otherwise does nothing. Idempotent."""
        if self.hosting is not None:
            self.hosting()

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, Actor) and other.client.address == self.client.address)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Actor, (self.client, self.name)

    def __repr__(self) -> str:
        return f"<Actor {self.name}>"


@final
class ActorGroup:
    """Several workers that one value came from.

    Attributes:
        members: each once.
    """

    def __init__(self, members: Iterable[Actor]) -> None:
        self.members = tuple(members)

    def __iter__(self) -> Iterator[Actor]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        return f"<ActorGroup of {', '.join(actor.name for actor in self.members)}>"


def host(worker: ParallelIteratorWorker, name: str = "", options: Mapping[str, Any] = HOST_OPTIONS) -> Actor:
    """Serves a worker in this process, at an address of its own, as long as the actor returned is kept.

    Args:
        worker: to be served.
        name: for people.
        options: of the server.
    """
    server = Server(name or f"shard {next(_numbers)}", **options)
    bind_object(server, worker)
    server.start()
    client = Client(server.address)
    actor = Actor(client, name or server.name)
    actor.hosting = weakref.finalize(actor, _end, client, server, worker)
    return actor


def _end(client: Client, server: Server, worker: ParallelIteratorWorker) -> None:
    """Runs wherever the actor was dropped last, perhaps in a thread of this very client, which must not wait for it."""

    def end() -> None:
        client.close()
        server.stop(1.0)
        release(worker)

    try:
        threading.Thread(target=end, name=f"end of {server.name}", daemon=True).start()
    except RuntimeError:  # the interpreter ends, and starts no threads any more
        end()


def as_actors(workers: Iterable[Actor | Client | ParallelIteratorWorker]) -> list[Actor]:
    """Workers of any kind as actors: those that are objects of this process are served.

    Raises:
        TypeError: something else.
    """
    actors = []
    for worker in workers:
        if isinstance(worker, ParallelIteratorWorker):
            actors.append(host(worker))
        elif isinstance(worker, Client):
            actors.append(Actor(worker))
        elif isinstance(worker, Actor):
            actors.append(worker)
        else:
            raise TypeError(f"a worker is an Actor, a courier client or a ParallelIteratorWorker, got {worker!r}")
    return actors


def results_of(futures: Sequence[Future[Any]], timeout_s: float) -> list[Any]:
    """The results of calls, in order. Blocks until all are there, or one has failed, whichever it is.

    Raises:
        Exception: what a call has raised.
        TimeoutError: not all were there in `timeout_s` seconds.
    """
    done, missing = concurrent.futures.wait(futures, timeout_s, concurrent.futures.FIRST_EXCEPTION)
    for future in done:
        future.result()
    if missing:
        raise TimeoutError(f"{len(missing)} of {len(futures)} workers had not answered after {timeout_s:g} s")
    return [future.result() for future in futures]


@final
class Broadcasts:
    """Calls of many workers with the same arguments, which are serialised once; nobody waits for their results.

    What they raise is kept until somebody asks. That a worker has gone is not kept: whoever waits for its items hears.
    """

    def __init__(self) -> None:
        self._under_way: list[tuple[str, Actor, CallFuture]] = []

    def send(self, actors: Iterable[Actor], method: str, *args: Any) -> None:
        """Calls a method of many actors. Does not wait. Small calls of idle actors go with what is next asked."""
        body, buffers = codec.encode_call(args, {})
        held = None
        if payload_bytes(body, buffers) <= _HELD_BYTES:  # their memory may change before they are sent
            held = _Held(self, method, body, [bytearray(buffer) for buffer in buffers])
        for actor in actors:
            if held is None or not actor.hold(held):
                self.send_now(actor, method, body, buffers)

    def send_now(self, actor: Actor, method: str, body: Buffer, buffers: Sequence[Buffer]) -> None:
        """Makes a call whose arguments are serialised. Does not wait."""
        future = raw_caller(actor.client)(method, body, buffers)
        assert isinstance(future, CallFuture)
        future.ignore()
        self._under_way.append((method, actor, future))

    def raise_errors(self) -> None:
        """Raises what a call has raised that is done, once for each."""
        under_way = self._under_way
        self._under_way = [call for call in under_way if not call[2].over]
        if len(self._under_way) == len(under_way):
            return
        for number, (method, actor, future) in enumerate(under_way):
            error = _error_of(future) if future.over else None
            if error is not None:
                self._under_way += [call for call in under_way[number + 1 :] if call[2].over]
                error.add_note(f"raised by {actor.name} in {method}, which the plan had called")
                raise error


@final
class _Held:
    """A call that waits for the next one of its actor."""

    def __init__(self, broadcasts: Broadcasts, method: str, body: Buffer, buffers: Sequence[Buffer]) -> None:
        self._broadcasts = broadcasts
        self.method = method
        self.body = body
        self.buffers = buffers

    def send(self, actor: Actor) -> None:
        """Sends it by itself."""
        self._broadcasts.send_now(actor, self.method, self.body, self.buffers)


def _error_of(future: CallFuture) -> Exception | None:
    error = future.exception()
    if error is not None:
        gone = isinstance(error, ConnectionBroken | CourierClosed)
        return error if isinstance(error, Exception) and not gone else None
    reply: RawReply = future.result()
    return codec.decode_error(reply.body) if reply.kind == Kind.ERROR else None
