"""Several replay servers behind one link: where each call goes, and how answers become one."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, final

from topology.errors import ConnectionBroken
from topology.nodes.replay.alarms import Alarms
from topology.nodes.replay.forks import tell_in_child
from topology.nodes.replay.links import Link, SampleCallArguments
from topology.nodes.replay.messages import SampleBatch, ServerStopped
from topology.nodes.replay.mixing import Part, join, key_on_its_shard, shard_of
from topology.nodes.replay.sharded_batch import ShardedBatch, fulfil
from topology.nodes.replay.stopping import reason_of

__all__ = ["ShardedLink"]

_logger = logging.getLogger(__name__)


@final
class _Shard:
    """One server, and whether it answers.

    A call that never ends is under way to it all the time: that it fails is how one learns that the server went away.
    """

    def __init__(self, link: Link, address: str) -> None:
        self.link = link
        self.address = address
        self.alive = True
        self._lock = threading.Lock()
        self._under_way: set[Future[Any]] = set()
        self._is_attending = False  # begins with the first call

    def forked(self) -> None:
        """In a forked child: all that is under way is the parent's."""
        self._lock = threading.Lock()
        self._under_way = set()
        self._is_attending = False

    def submit(self, method: str, *args: Any) -> Future[Any]:
        """Calls the server. The call is cancelled when the server goes away."""
        return self._follow(self.link.submit(method, *args))

    def submit_sample(self, request: SampleCallArguments) -> Future[SampleBatch]:
        """Samples from the server. The call is cancelled when the server goes away."""
        return self._follow(self.link.submit_sample(request))

    def _follow(self, future: Future[Any]) -> Future[Any]:
        with self._lock:
            self._under_way.add(future)
            alive = self.alive
            must_attend, self._is_attending = not self._is_attending, True
        future.add_done_callback(self._under_way.discard)
        if must_attend:
            self._attend()
        if not alive:
            future.cancel()
        return future

    def close(self) -> None:
        """Ends everything."""
        self.alive = False
        self.link.close()

    def failed(self, error: BaseException) -> None:
        """The server went away: it is left out until it answers again."""
        with self._lock:
            if not self.alive:
                return
            self.alive = False
            waiting = list(self._under_way)
        _logger.warning("replay: shard %s went away (%s); the others go on without it", self.address, error)
        for future in waiting:
            future.cancel()
        self._probe()

    def _attend(self) -> None:
        self.link.submit("attend").add_done_callback(self._left)

    def _left(self, attending: Future[Any]) -> None:
        error = None if attending.cancelled() else attending.exception()
        if isinstance(error, ConnectionBroken | ServerStopped):
            self.failed(error)

    def _probe(self) -> None:
        self.link.submit("present").add_done_callback(self._answered)

    def _answered(self, probe: Future[Any]) -> None:
        error = CancelledError() if probe.cancelled() else probe.exception()
        if isinstance(error, ConnectionBroken):
            self._probe()
        elif error is None:
            _logger.warning("replay: shard %s is back", self.address)
            self.alive = True
            self._attend()


@final
class ShardedLink:
    """The link of a `ShardedClient`. Thread-safe; see there for what happens when a server goes away."""

    def __init__(self, links: Sequence[Link], addresses: Sequence[str]) -> None:
        self._shards = [_Shard(link, address) for link, address in zip(links, addresses, strict=True)]
        self._turn = itertools.count()
        self._begin()
        tell_in_child(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._alarms = Alarms()
        self._finalizer = weakref.finalize(self, self._alarms.close)
        # Asked for by batches that no longer need them, by part, table and method: some are here, others to come.
        self._kept: dict[tuple[Part, str, str], list[Future[SampleBatch]]] = {}
        self._late: Counter[tuple[int, str]] = Counter()  # of these, how many a server owes of a table
        self._curious: set[Callable[[], None]] = set()  # to be told when that becomes less

    def forked(self) -> None:
        """In a forked child: what was drawn is for the parent, and so is the thread of the alarms."""
        self._finalizer.detach()
        self._begin()
        for shard in self._shards:
            shard.forked()

    def living(self) -> list[int]:
        """Numbers of the servers that answer.

        Raises:
            ConnectionBroken: there is none.
        """
        living = [number for number, shard in enumerate(self._shards) if shard.alive]
        if not living:
            addresses = ", ".join(shard.address for shard in self._shards)
            raise ConnectionBroken(f"all {len(self._shards)} shards of the replay service went away: {addresses}")
        return living

    # -- calls on items and tables ------------------------------------------------------------------------------------

    def call(self, method: str, *args: Any) -> Any:
        futures = self._scatter(method, args)
        results = []
        for number, future in futures.items():
            try:
                results.append(future.result())
            except CancelledError:
                continue  # it went away
            except (ConnectionBroken, ServerStopped) as error:
                self._lose(number, error)
        return join(method, results)

    def submit(self, method: str, *args: Any) -> Future[Any]:
        joined: Future[Any] = Future()
        futures = self._scatter(method, args)
        gathering = _Gathering(
            len(futures), functools.partial(_settle, joined, functools.partial(self._join, method, futures))
        )
        for future in futures.values():
            future.add_done_callback(gathering.one_done)
        return joined

    def _join(self, method: str, futures: dict[int, Future[Any]]) -> Any:
        results = []
        for number, future in futures.items():
            if future.cancelled():
                continue
            error = future.exception()
            if isinstance(error, ConnectionBroken | ServerStopped):
                self._shards[number].failed(error)
            else:
                results.append(future.result())
        return join(method, results)

    def _scatter(self, method: str, args: tuple[Any, ...]) -> dict[int, Future[Any]]:
        """One call to each server that it concerns."""
        if method not in ("update_priorities", "delete"):
            return {number: self._shards[number].submit(method, *args) for number in self.living()}
        table, keys, *values = args
        owners = shard_of(keys)
        futures = {}
        for number in self.living():
            chosen = owners == number
            if chosen.any():
                mine = [key_on_its_shard(keys[chosen]), *(value[chosen] for value in values)]
                futures[number] = self._shards[number].submit(method, table, *mine)
        return futures

    def _lose(self, number: int, error: BaseException) -> None:
        reason = reason_of(error)
        if reason is not error:
            raise reason from reason.__cause__
        self._shards[number].failed(error)

    # -- samples ------------------------------------------------------------------------------------------------------

    def sample(self, request: SampleCallArguments) -> SampleBatch:
        future = self.submit_sample(request)
        try:
            return future.result()
        except ConnectionBroken as error:
            reason = reason_of(error)
            raise reason from reason.__cause__
        except BaseException:
            future.cancel()
            raise

    def submit_sample(self, request: SampleCallArguments) -> Future[SampleBatch]:
        """Draws a part of the batch from each server; what one has not, or no more, from the others."""
        return ShardedBatch(self, request, self._alarms).reply

    def begin_sample(self, request: SampleCallArguments) -> Future[SampleBatch]:
        """See `submit_sample`: several servers are under way in any case."""
        return self.submit_sample(request)

    def split(self, count: int, table: str) -> list[Part]:
        """How many items come from which server: as equal as it goes, the rest from each in turn.

        Servers that were asked before and have nothing yet are left out, as long as there are others.
        """
        with self._lock:
            prompt = self._prompt(table)
        living = prompt or self.living()
        turn = next(self._turn)
        share, rest = divmod(count, len(living))
        sizes = [share + ((i - turn) % len(living) < rest) for i in range(len(living))]
        return [Part(number, size) for number, size in zip(living, sizes, strict=True) if size]

    def _prompt(self, table: str) -> list[int]:
        """Those of the servers that answer which owe nothing of the table."""
        alive = [number for number, shard in enumerate(self._shards) if shard.alive]
        return [number for number in alive if not self._late[number, table]]

    def has_others(self, numbers: set[int], table: str, otherwise: Callable[[], None]) -> bool:
        """Whether there is a server besides these that may have something. If not: calls `otherwise` when one may."""
        with self._lock:
            found = bool(set(self._prompt(table)) - numbers)
            if not found:
                self._curious.add(otherwise)
        return found

    def forget(self, otherwise: Callable[[], None]) -> None:
        """Takes that back."""
        with self._lock:
            self._curious.discard(otherwise)

    def fetch(self, part: Part, request: SampleCallArguments) -> tuple[Future[SampleBatch], bool]:
        """A part of a batch from its server, and whether an earlier batch asked for it."""
        with self._lock:
            kept = self._kept.get((part, request.table, request.method))
            if kept:
                return kept.pop(0), True
        return self._shards[part.shard].submit_sample(request._replace(batch_size=part.size)), False

    def keep(self, part: Part, request: SampleCallArguments, future: Future[SampleBatch]) -> None:
        """Takes over a part that its batch does not wait for any more; a later one of that kind gets it."""
        place = part.shard, request.table
        with self._lock:
            self._kept.setdefault((part, request.table, request.method), []).append(future)
            self._late[place] += 1
        future.add_done_callback(lambda _: self._came(place))

    def _came(self, place: tuple[int, str]) -> None:
        with self._lock:
            self._late[place] -= 1
            curious, self._curious = self._curious, set()
        for each in curious:
            each()

    def failed(self, number: int, error: BaseException) -> None:
        """A server went away."""
        self._shards[number].failed(error)

    @property
    def regions(self) -> None:
        return None  # each writer has those of its own shard

    @property
    def visit(self) -> int:
        return 0  # likewise

    def close(self) -> None:
        for shard in self._shards:
            shard.close()
        self._finalizer()


@final
class _Gathering:
    """Calls `done` once `count` things have ended."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._left = count
        self._done = done
        self._lock = threading.Lock()
        if not count:
            done()

    def one_done(self, _: object) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._done()


def _settle(future: Future[Any], result: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        fulfil(future, result)
