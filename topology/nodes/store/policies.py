"""Policies on their way from the trainer to the workers: the interface of data stores, and how one is opened.

A policy has a number that grows by one with each that is saved, also by a writer that was restarted. It is visible
only when all of it is there. One writer at a time may hold the lease; readers never need it.

    store = open_data_store("/data/run7")
    with store.lease("trainer", ttl_s=60.0) as lease:
        store.save({"w": np.zeros(3)}, lease=lease)
    store.wait_newer(-1, timeout_s=10.0).number
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from topology.nodes.store.codec import Array, Plain

__all__ = ["DEFAULT_KEEP", "DataStore", "Lease", "Policy", "open_data_store"]

DEFAULT_KEEP = 5


class Policy(NamedTuple):
    """One policy.

    Attributes:
        number: from 0; policies are counted without gaps.
        arrays: its parameters by name. Read-only; copy what is to be changed.
        meta: what was saved beside them.
    """

    number: int
    arrays: Mapping[str, Array]
    meta: Mapping[str, Plain]


class Lease(abc.ABC):
    """The right to write, for a time: what `DataStore.lease` returns. Thread-safe.

    Leaving a `with` block gives it back. A lease that is over still writes as long as nobody else has taken it; when
    somebody has, every write of this one raises `LeaseLost` and changes nothing.
    """

    owner: str
    ttl_s: float

    @property
    @abc.abstractmethod
    def expires_at(self) -> float:
        """When it is over unless it is renewed, in seconds since the epoch by this machine's clock: for people."""

    @abc.abstractmethod
    def renew(self) -> None:
        """Makes it last `ttl_s` seconds from now. `DataStore.save` does the same.

        Raises:
            LeaseLost: another writer has it.
            StoreUnavailable, StoreError: see `DataStore`.
        """

    @abc.abstractmethod
    def release(self) -> None:
        """Gives it back, so that others need not wait for its end. Does nothing when it is not ours any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class DataStore(abc.ABC):
    """Where policies lie. A context manager; thread-safe; pickles as its address and options, and connects anew.

    Every method may block for the time the medium takes to answer, and may raise:

        StoreUnavailable: the server is not there; `StoreDenied`, a kind of it, is below.
        StoreDataError: what lies there was not written by this project, or is damaged.
        StoreDenied: it is of no use to try again: it does not let us in, there is no such bucket, a file is where the
            directory should be.
        StoreFull: there is no room.
        StoreError: the medium refuses for another reason.
        StoreClosed: this side closed it.
    """

    @abc.abstractmethod
    def save(
        self,
        arrays: Mapping[str, Array],
        meta: Mapping[str, Plain] | None = None,
        *,
        state: Mapping[str, Array] | None = None,
        lease: Lease | None = None,
    ) -> int:
        """Saves a policy; returns its number. Readers see it when it is whole, never before.

        Takes an end that was announced back. Policies older than the newest `keep` are removed, but for the newest
        that has a state.

        Args:
            arrays: parameters by name, any shapes; not changed by others while this runs.
            meta: plain data that belongs to it.
            state: the trainer's own arrays (optimiser, counters), kept with the policy and not read by `load`.
            lease: the writer's; renewed by this. None is for a store without other writers.

        Raises:
            LeaseHeld: no lease was given, and another writer holds it.
            LeaseLost: the lease was over, and another writer has taken it: nothing was saved.
            TypeError, ValueError: these are not arrays, or not plain data.
        """

    @abc.abstractmethod
    def newest(self) -> int:
        """Number of the newest policy; -1 when there is none yet."""

    @abc.abstractmethod
    def state_number(self) -> int:
        """Number of the newest policy that has a state; -1 when there is none."""

    @abc.abstractmethod
    def load(self, number: int | None = None) -> Policy:
        """A policy: the newest, or that of `number`.

        When the newest is removed while it is read, because newer ones were saved meanwhile, the newest of those is
        loaded instead.

        Raises:
            PolicyNotFound: it is not there, or not any more.
        """

    @abc.abstractmethod
    def load_state(self, number: int | None = None) -> Mapping[str, Array] | None:
        """The state saved with a policy: with the newest that has one, or with that of `number`. None: there is none.

        Raises:
            PolicyNotFound: policy `number` is not there, or not any more.
        """

    @abc.abstractmethod
    def wait_newer(self, than: int, *, timeout_s: float | None = None) -> Policy:
        """The newest policy, as soon as its number is above `than`. Blocks, at most `timeout_s` seconds.

        Raises:
            PoliciesFinished: the end was announced, and there is nothing newer.
            StoreDeadlineExceeded: nothing newer came in time.
            ProgramStopped: the program of this node stops.
        """

    @abc.abstractmethod
    def announce_ready(self, *, lease: Lease | None = None) -> None:
        """Says that the trainer is there. Takes an end that was announced back.

        Raises:
            LeaseLost: a lease was given, and another writer has taken it.
        """

    @abc.abstractmethod
    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Blocks until the trainer is there, or the end was announced; at most `timeout_s` seconds.

        Raises:
            StoreDeadlineExceeded: it did not come in time.
            ProgramStopped: the program of this node stops.
        """

    @abc.abstractmethod
    def announce_finished(self, reason: str, *, lease: Lease | None = None) -> None:
        """Says that no policy will follow, and why. Those that are there can still be loaded.

        Raises:
            LeaseLost: a lease was given, and another writer has taken it.
        """

    @abc.abstractmethod
    def finished(self) -> str | None:
        """Why no policy will follow; None as long as that was not announced."""

    @abc.abstractmethod
    def lease(self, owner: str, ttl_s: float, *, timeout_s: float | None = 0.0) -> Lease:
        """Takes the right to write, and removes what writers before it left unfinished.

        What the writer before has announced, ready or finished, is taken back. An owner of the same name takes its
        own lease over at once: it is the same writer, started again; what it was before can write no more. For others
        it is over when this store has seen it for as long as it lasts and it was not renewed: they wait so long even
        when nobody has written for days, and no clock of another machine matters, nor one that is set anew.

        Args:
            owner: a name for people and for the writer that is started again.
            ttl_s: how long it lasts without being renewed, in seconds: longer than from one save to the next.
            timeout_s: how long to wait for another's lease to end, in seconds; None for ever. With 0 it is taken only
                if nobody has it, or an earlier call has begun to watch it long enough ago.

        Raises:
            LeaseHeld: another writer holds it; by whom and until when.
            ProgramStopped: the program of this node stops.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of connections; calls that wait, and later ones, raise `StoreClosed`. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_data_store(
    url: str, *, keep: int = DEFAULT_KEEP, patience_s: float | None = None, **options: Any
) -> DataStore:
    """Opens the store at `url`. What is there already is gone on with.

    | url | store | options |
    |---|---|---|
    | `DIRECTORY`, `file:///DIRECTORY` | a directory of a local disk or of NFS | |
    | `redis://[USER:PASSWORD@]HOST:PORT/DB`, `rediss://`, `unix://` | a Redis server | `name` |
    | `s3://BUCKET/PREFIX` and whatever fsspec knows | an object store | those of its file system |

    Others are found by the entry point group `topology.data_stores`: the name is the scheme, the object a callable
    that takes `url`, `keep` and the options. All take `clock`; those that poll also `poll_s`, the shortest and the
    longest pause in seconds.

    Args:
        url: where.
        keep: how many policies are kept, at least 1.
        patience_s: how long a server that is not there, or went away, or room on it, is waited for, in seconds, before
            `StoreUnavailable` or `StoreFull`; on top of what a call waits for anyway. None for what the kind of store
            does by itself: ours do not wait.
        options: of the kind of store.

    Raises:
        ValueError: no kind of store has that scheme, or a setting makes no sense.
        ImportError: the package for it is not installed; the text says which extra has it.
        StoreUnavailable, StoreError: it is not there, or cannot be used. See `DataStore`.
    """
    from topology.nodes.store.data_stores import find_data_store, takes_patience

    if not isinstance(url, str) or not url:
        raise ValueError(f"a data store is opened by its url or directory, got {url!r}")
    opener = find_data_store(url)
    if patience_s is not None and takes_patience(opener):
        options["patience_s"] = patience_s
    return opener(url, keep=keep, **options)
