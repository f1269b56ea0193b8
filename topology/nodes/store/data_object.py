"""A data store in an object store: S3 and what speaks its language, or whatever else fsspec knows.

    PREFIX/record             what readers look at: a copy of the newest record
    PREFIX/records/...        the last records; making the next one is what publishes
    PREFIX/policies/...       bytes of policies and states, never changed

An object is there whole or not at all. The next record is made with a conditional request, which S3 and most others
have: of two writers one is told that it is there already. Where the store does not know conditions, two writers at the
very same moment may both believe that they were first; the lease keeps them apart but for that.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import StoreDenied, StoreError, StoreUnavailable
from topology.nodes.store.codec import Buffer
from topology.nodes.store.policies import DEFAULT_KEEP, DataStore
from topology.nodes.store.policy_connection import Connection
from topology.nodes.store.policy_medium import BlobMissing, Medium
from topology.nodes.store.policy_patience import patient
from topology.nodes.store.policy_waits import Wait, check_pauses
from topology.nodes.store.record_chain import Chain, Files
from topology.nodes.store.record_store import RecordStore
from topology.nodes.store.tls import lasting_tls_error

__all__ = ["ObjectMedium", "known_protocols", "open_object_store"]

_POLICIES: Final = "policies"
_POLL_S: Final = (0.02, 1.0)
_S3: Final = {"s3", "s3a"}
_IN_ONE_REQUEST: Final = {"max_concurrency": 1}  # s3fs would ask for the size before, and list for what is not there
_S3_CONFIG: Final = {
    "connect_timeout": 5,
    "read_timeout": 30,
    "retries": {"max_attempts": 1},
}  # s3fs tries again itself

_WITHOUT_CREDENTIALS: Final = {"NoCredentialsError", "PartialCredentialsError"}  # of botocore

# fsspec's file systems in memory look whether a file is there, and make it then: in one process one at a time.
_one_at_a_time = threading.Lock()


def open_object_store(
    url: str,
    *,
    keep: int = DEFAULT_KEEP,
    clock: Clock = SYSTEM_CLOCK,
    poll_s: tuple[float, float] = _POLL_S,
    patience_s: float = 0.0,
    **storage_options: Any,
) -> DataStore:
    """See `open_data_store`. Other options go to the file system, e.g. `endpoint_url`, `key` and `secret` for S3.

    Raises:
        ImportError: the package of that file system is not installed.
        ValueError: the url lacks a bucket.
        StoreUnavailable, StoreError: the store cannot be reached, or does not let us in, or there is no such bucket.
    """
    medium = patient(ObjectMedium(url, storage_options, poll_s=poll_s), patience_s, clock)
    store = RecordStore(medium, keep=keep, clock=clock)
    store.check()
    return store


def known_protocols() -> frozenset[str]:
    """Schemes that fsspec knows, whether their packages are installed or not.

    Raises:
        ImportError: fsspec is not installed.
    """
    return frozenset(_fsspec("").available_protocols())


def _fsspec(url: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(
            f"a data store at {url or 'a url'} needs fsspec: pip install 'rl-topology[s3]', or fsspec and the package "
            "of its file system"
        ) from error
    return fsspec


class _Place(NamedTuple):
    fs: Any
    root: str


@final
class ObjectMedium(Medium, Files):
    """See `Medium`.

    Args:
        url: scheme, bucket and prefix.
        storage_options: of fsspec's file system.
        poll_s: shortest and longest pause between two looks, in seconds.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any], *, poll_s: tuple[float, float] = _POLL_S) -> None:
        self._scheme, _, path = url.partition("://")
        self._url = f"{self._scheme}://{path.rstrip('/')}"
        if not path.strip("/"):
            raise ValueError(f"{url!r} lacks a place: write {self._scheme}://BUCKET/PREFIX")
        self._options = dict(storage_options)
        self._poll_s = check_pauses(poll_s)
        self._chain = Chain(self)
        self._connection: Connection[_Place] = Connection(self._connect, _disconnect, self._url)

    def __repr__(self) -> str:
        return self._url

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._url, self._options, self._poll_s)

    def check(self) -> None:
        if self._scheme not in _S3:
            return
        with self._place("opened") as (fs, root):
            try:
                fs.call_s3("head_bucket", Bucket=root.partition("/")[0])
            except FileNotFoundError as error:
                raise self._no_bucket() from error
            except PermissionError:
                return  # who may not look at the bucket may still read objects in it: reading will tell

    def read(self) -> bytes | None:
        return self._chain.read()

    def write(self, revision: int, record: bytes, blobs: Sequence[str]) -> bool:  # noqa: ARG002 - objects stay
        return self._chain.write(revision, record)

    def wait_changed(self, revision: int, wait: Wait, most_s: float = math.inf) -> None:  # noqa: ARG002 - it looks itself
        wait.pause_growing(self._poll_s, most_s)

    def close(self) -> None:
        self._connection.close()

    # --- bytes of policies --------------------------------------------------------------------------------------------

    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        self.write_file(f"{_POLICIES}/{name}", b"".join(parts))

    def get(self, name: str) -> Buffer:
        data = self.read_file(f"{_POLICIES}/{name}")
        if data is None:
            raise BlobMissing(f"{name} is not in {self._url}")
        return data

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.remove_file(f"{_POLICIES}/{name}")

    def leftovers(self) -> list[str]:
        return self.list_files(_POLICIES)

    # --- objects ------------------------------------------------------------------------------------------------------

    def read_file(self, name: str) -> bytes | None:
        with self._place("read") as (fs, root):
            try:
                data: bytes = fs.cat_file(f"{root}/{name}", **(_IN_ONE_REQUEST if self._scheme in _S3 else {}))
                return data
            except FileNotFoundError:
                return None

    def make_file(self, name: str, data: bytes) -> bool:
        with (
            self._place("written") as (fs, root),
            _one_at_a_time if self._scheme == "memory" else contextlib.nullcontext(),
        ):
            try:
                fs.pipe_file(f"{root}/{name}", data, mode="create")
            except FileNotFoundError as error:
                raise self._no_bucket() from error
            except FileExistsError:
                return False
            except OSError as error:
                if _is_refused_condition(error):
                    return False
                raise
            return True

    def write_file(self, name: str, data: bytes) -> None:
        with self._place("written") as (fs, root):
            try:
                fs.pipe_file(f"{root}/{name}", data)
            except FileNotFoundError as error:
                raise self._no_bucket() from error

    def list_files(self, folder: str) -> list[str]:
        with self._place("listed") as (fs, root):
            try:
                return [str(path).rpartition("/")[2] for path in fs.ls(f"{root}/{folder}", detail=False)]
            except FileNotFoundError:
                return []

    def remove_file(self, name: str) -> None:
        with self._place("cleaned up") as (fs, root), contextlib.suppress(FileNotFoundError):
            fs.rm_file(f"{root}/{name}")

    def _connect(self) -> _Place:
        # Listings are never cached, and neither is the object, whose connections we close ourselves.
        options = {"use_listings_cache": False, "skip_instance_cache": True, **self._options}
        if self._scheme in _S3:
            options["config_kwargs"] = {**_S3_CONFIG, **options.get("config_kwargs", {})}
        try:
            fs, root = _fsspec(self._url).core.url_to_fs(self._url, **options)
        except ImportError as error:
            extra = "pip install 'rl-topology[s3]'" if self._scheme in _S3 else "install it"
            raise ImportError(f"a data store at {self._url} needs a package: {error}; {extra}") from error
        return _Place(fs, str(root).rstrip("/"))

    def _no_bucket(self) -> StoreDenied:
        return StoreDenied(f"there is no place for the data store {self._url}: make the bucket, or correct the url")

    @contextlib.contextmanager
    def _place(self, what: str) -> Iterator[_Place]:
        try:
            with self._connection.use() as place:
                yield place
        except (StoreError, ImportError):
            raise
        except Exception as error:  # each file system has errors of its own
            if (fault := lasting_tls_error(error)) is not None:
                raise StoreDenied(
                    f"the data store {self._url} cannot be {what}: {fault}; say by AWS_CA_BUNDLE=FILE which authority "
                    "its certificate is from, and use http:// where it does not speak TLS"
                ) from error
            if not (isinstance(error, PermissionError) or type(error).__name__ in _WITHOUT_CREDENTIALS):
                raise StoreUnavailable(
                    f"the data store {self._url} cannot be {what}: {type(error).__name__}: {error}; check its address, "
                    "and that it runs and has room"
                ) from error
            raise StoreDenied(
                f"the data store {self._url} cannot be {what}: it does not let us in ({error}); check the credentials, "
                "and what they allow"
            ) from error


def _disconnect(place: _Place) -> None:
    if (session := getattr(place.fs, "_s3creator", None)) is not None:
        # s3fs does this when its object is collected, and nobody knows when that is.
        place.fs.close_session(place.fs.loop, session)


def _rebuild(url: str, options: dict[str, Any], poll_s: tuple[float, float]) -> ObjectMedium:
    return ObjectMedium(url, options, poll_s=poll_s)


def _is_refused_condition(error: OSError) -> bool:
    """Whether the store said that the object is there: s3fs has no error of its own for that."""
    response = getattr(error.__cause__, "response", None)
    code = str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
    return code in {"PreconditionFailed", "412", "ConditionalRequestConflict"}
