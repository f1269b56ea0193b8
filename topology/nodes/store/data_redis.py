"""A data store in a Redis server.

    NAME:record               a stream whose newest entry is the record; its id is the revision
    NAME:policy:...           bytes of policies and states, in pieces; never changed

One script publishes: it compares the revision, keeps the bytes for good, which until then would vanish by themselves,
and adds the record to the stream, all at once. Readers wait with a blocking read from the revision that they know:
nothing can come between what they have read and what they wait for.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import parse_qsl, urlencode, urlsplit

from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import StoreDataError, StoreDenied, StoreError, StoreFull, StoreUnavailable
from topology.nodes.store.codec import Buffer
from topology.nodes.store.policies import DEFAULT_KEEP, DataStore
from topology.nodes.store.policy_connection import Connection
from topology.nodes.store.policy_medium import BlobMissing, Medium
from topology.nodes.store.policy_patience import patient
from topology.nodes.store.policy_waits import Wait
from topology.nodes.store.record_store import RecordStore
from topology.nodes.store.redis_eviction import refuse_eviction
from topology.nodes.store.redis_urls import check_redis_url, make_connection
from topology.nodes.store.tls import check_tls_files, lasting_tls_error

if TYPE_CHECKING:
    import redis

__all__ = ["RedisMedium", "open_redis_store"]

_PIECE_BYTES: Final = 64 << 20  # the server takes at most 512 MB at once
_UNPUBLISHED_S: Final = 3600  # bytes that no record names are gone after it
_KEPT_RECORDS: Final = 8
_SLICE_S: Final = 0.2  # how long a read blocks before it looks whether the program stops

_PUBLISH: Final = """
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local revision = 0
if newest[1] then revision = tonumber(string.match(newest[1][1], '^%d+')) end
if revision ~= tonumber(ARGV[1]) - 1 then return 0 end
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return -1 end
end
for i = 2, #KEYS do redis.call('PERSIST', KEYS[i]) end
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[3], ARGV[1] .. '-0', 'record', ARGV[2])
return 1
"""


def open_redis_store(
    url: str,
    *,
    keep: int = DEFAULT_KEEP,
    clock: Clock = SYSTEM_CLOCK,
    name: str = "",
    io_timeout_s: float = 30.0,
    patience_s: float = 0.0,
) -> DataStore:
    """See `open_data_store`.

    Args:
        url: `redis://[USER:PASSWORD@]HOST:PORT/DB`; `?name=` in it stands for `name`.
        keep: policies that are kept.
        clock: of leases and deadlines.
        name: begins all keys, so that several stores can share a server; by default "policies".
        io_timeout_s: how long the server may take to answer, in seconds.
        patience_s: how long a server that is not there is waited for, in seconds.

    Raises:
        ImportError: the package redis is not installed.
        ValueError: the url makes no sense.
        StoreUnavailable: the server is not there.
        StoreDenied: it does not let us in, or may throw away what it keeps.
    """
    medium = patient(RedisMedium(url, name=name, io_timeout_s=io_timeout_s), patience_s, clock)
    store = RecordStore(medium, keep=keep, clock=clock)
    store.check()
    return store


@final
class RedisMedium(Medium):
    """See `Medium`. For the arguments see `open_redis_store`."""

    def __init__(self, url: str, *, name: str = "", io_timeout_s: float = 30.0) -> None:
        if not 0 < io_timeout_s < math.inf:
            raise ValueError(f"io_timeout_s is a number of seconds above 0, got {io_timeout_s!r}")
        check_redis_url(url)
        check_tls_files(url)
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self._name = name or query.pop("name", "policies")
        query.pop("name", None)
        self._url = f"{parts.scheme}://{parts.netloc}{parts.path}{f'?{urlencode(query)}' if query else ''}"
        self._shown = f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
        self._io_timeout_s = io_timeout_s
        self._records = f"{self._name}:record"
        self._connection: Connection[redis.Redis] = Connection(self._connect, lambda client: client.close(), repr(self))

    def __repr__(self) -> str:
        return f"{self._shown} ({self._name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._url, self._name, self._io_timeout_s)

    def check(self) -> None:
        with self._client("opened") as client:
            client.ping()
            try:
                info: Any = client.info("memory")
            except _redis().exceptions.NoPermissionError:  # a user of its own, with little
                return
            refuse_eviction(str(info.get("maxmemory_policy", "")), int(info.get("maxmemory", 0)))

    def close(self) -> None:
        self._connection.close()

    # --- the record ---------------------------------------------------------------------------------------------------

    def read(self) -> bytes | None:
        with self._client("read") as client:
            newest: Any = client.xrevrange(self._records, count=1)
        if not newest:
            return None
        record = newest[0][1].get(b"record")
        if record is None:
            raise StoreDataError(f"the stream {self._records!r} in {self._shown} holds {newest[0]!r:.100}, no record")
        return bytes(record)

    def write(self, revision: int, record: bytes, blobs: Sequence[str]) -> bool:
        keys = [self._records, *map(self._key, blobs)]
        with self._client("written") as client:
            done: Any = client.eval(_PUBLISH, len(keys), *keys, str(revision), record, str(_KEPT_RECORDS))
        if done == -1:
            raise BlobMissing(f"bytes of the policy are gone from {self!r} before it was published: {list(blobs)}")
        return bool(done)

    def wait_changed(self, revision: int, wait: Wait, most_s: float = math.inf) -> None:
        block_s = min(wait.at_most(_SLICE_S), most_s)
        if block_s <= 0 or wait.woken:
            return
        since = f"{revision}-{2**64 - 1}"
        with self._client("read") as client:
            # 0 would be for ever.
            client.xread({self._records: since}, count=1, block=max(1, math.ceil(block_s * 1000)))

    # --- bytes of policies --------------------------------------------------------------------------------------------

    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        data = memoryview(b"".join(parts))
        key = self._key(name)
        with self._client("written") as client:
            for start in range(0, len(data), _PIECE_BYTES):
                with client.pipeline(transaction=True) as pipeline:
                    pipeline.rpush(key, data[start : start + _PIECE_BYTES])
                    pipeline.expire(key, _UNPUBLISHED_S)
                    pipeline.execute()

    def get(self, name: str) -> Buffer:
        with self._client("read") as client:
            pieces: Any = client.lrange(self._key(name), 0, -1)
        if not pieces:
            raise BlobMissing(f"{name} is not in {self!r}")
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def delete(self, names: Iterable[str]) -> None:
        if keys := [self._key(name) for name in names]:
            with self._client("cleaned up") as client:
                client.unlink(*keys)

    def leftovers(self) -> list[str]:
        return []  # they vanish by themselves

    def _key(self, name: str) -> str:
        return f"{self._name}:policy:{name}"

    # --- the server ---------------------------------------------------------------------------------------------------

    def _connect(self) -> redis.Redis:
        client: redis.Redis = _redis().Redis.from_url(
            self._url, socket_timeout=self._io_timeout_s, socket_connect_timeout=min(self._io_timeout_s, 5.0)
        )
        make_connection(client.connection_pool)  # tells what is wrong with the URL
        return client

    @contextlib.contextmanager
    def _client(self, what: str) -> Iterator[redis.Redis]:
        exceptions = _redis().exceptions
        try:
            with self._connection.use() as client:
                yield client
        except (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError) as error:
            asks = "it asks for a password, and none was given" if str(error).startswith("HELLO") else error
            raise StoreDenied(
                f"the data store {self!r} cannot be {what}: the server does not let us in ({asks}); check user and "
                "password in redis://USER:PASSWORD@HOST:PORT/DB"
            ) from None  # said, and who reads it has no use for where in redis-py that was
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            if (fault := lasting_tls_error(error)) is not None:
                raise StoreDenied(
                    f"the data store {self!r} cannot be {what}: {fault}; give rediss:// the certificate of the "
                    "server's authority, as in ?ssl_ca_certs=FILE, and use redis:// where it does not speak TLS"
                ) from error
            raise StoreUnavailable(
                f"the data store {self!r} cannot be {what}: {str(error).rstrip('.')}; check its address, and that the "
                "server runs"
            ) from error
        except exceptions.OutOfMemoryError as error:
            raise StoreFull(
                f"the data store {self!r} cannot be {what}: the server's memory is full: make room in it, give it a "
                "larger maxmemory, or keep fewer policies"
            ) from error
        except exceptions.RedisError as error:
            kind = StoreDataError if str(error).startswith("WRONGTYPE") else StoreError
            raise kind(f"the data store {self!r} cannot be {what}: the server refuses: {error}") from error


def _redis() -> ModuleType:
    try:
        import redis
    except ImportError as error:
        raise ImportError("a data store in Redis needs the package redis: pip install 'rl-topology[redis]'") from error
    return redis


def _rebuild(url: str, name: str, io_timeout_s: float) -> RedisMedium:
    return RedisMedium(url, name=name, io_timeout_s=io_timeout_s)
