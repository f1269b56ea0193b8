"""Every error this project raises, by who must act.

    TopologyError
    ├── ProgramError             the declaration is wrong: fix the program
    │   └── SerializationError   a part of a node cannot travel to another process
    ├── LaunchError              the platform refused: fix the machine or the launch options
    ├── NodeFailed               user code in a node died
    ├── CourierError             a remote call did not give a result
    │   ├── CourierClosed        this side closed the client or the server
    │   │   └── ProgramStopped   the program was asked to stop while this call waited
    │   ├── ConnectionBroken     the peer or the network went away
    │   ├── DeadlineExceeded     no answer in the time the caller allowed
    │   ├── MethodNotFound       the server does not expose that method
    │   ├── PayloadTooLarge      a message is over the limit of the connection
    │   ├── RemoteError          the handler raised something that cannot be sent back as it was
    │   └── StaleError           a cacher has only values older than it may serve
    ├── ReplayError              a replay operation could not be carried out
    │   ├── TableNotFound
    │   └── ReplayDeadlineExceeded
    └── StoreError               a memory backend or a data store could not do what was asked
        ├── StoreFull            there was no room in time
        ├── StoreDeadlineExceeded
        ├── StoreUnavailable     the server behind it is not there, or does not let us in
        │   └── StoreDenied      it is there, and does not let us in
        ├── StoreClosed          this side closed it, or another reader has taken its place
        ├── StoreDataError       what lies there was not written by this project, or is damaged
        ├── PolicyNotFound       no policy of that number is there, or not any more
        ├── PoliciesFinished     the end was announced: no newer policy will come
        ├── LeaseHeld            another writer holds the lease of a data store
        └── LeaseLost            another writer has taken the lease: this one may not write any more

Text says what was asked, what was found, and what to do. Every error survives pickling with its fields.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ConnectionBroken",
    "CourierClosed",
    "CourierError",
    "DeadlineExceeded",
    "LaunchError",
    "LeaseHeld",
    "LeaseLost",
    "MethodNotFound",
    "NodeFailed",
    "PayloadTooLarge",
    "PoliciesFinished",
    "PolicyNotFound",
    "ProgramError",
    "ProgramStopped",
    "RemoteError",
    "ReplayDeadlineExceeded",
    "ReplayError",
    "SerializationError",
    "StaleError",
    "StoreClosed",
    "StoreDataError",
    "StoreDeadlineExceeded",
    "StoreDenied",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "TableNotFound",
    "TopologyError",
]


def _rebuild(cls: type[TopologyError], args: tuple[Any, ...], state: dict[str, Any]) -> TopologyError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class TopologyError(Exception):
    """Root of all errors raised here on purpose.

    Attributes:
        is_final: whether a node that failed with it would do so again, however often it is started: so it is not.
            Of a class, or of one error that somebody knows more of.
    """

    is_final: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the constructor with `args`, which loses keyword fields.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class ProgramError(TopologyError, ValueError):
    """The declared program is wrong. `faults` lists everything found, one line each."""

    is_final = True

    def __init__(self, message: str, *, faults: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class SerializationError(ProgramError, RuntimeError):
    """A part of a node cannot travel to another process."""


class LaunchError(TopologyError, RuntimeError):
    """The platform could not run the program as asked."""


class NodeFailed(TopologyError, RuntimeError):
    """User code in a node raised, exited with a non-zero code, or was killed.

    Attributes:
        label: group of the node.
        index: index of the node in its group.
        exit_code: exit code of its process; negative for a signal; None for a thread.
        remote_traceback: traceback text as the node printed it, or "".
    """

    def __init__(
        self,
        message: str,
        *,
        label: str,
        index: int,
        exit_code: int | None = None,
        remote_traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.label = label
        self.index = index
        self.exit_code = exit_code
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        # The traceback comes last, where the reader of a terminal looks.
        text: str = self.args[0]
        return f"{text}\n\n{self.remote_traceback.rstrip()}" if self.remote_traceback else text


class CourierError(TopologyError):
    """A remote call did not give a result.

    Attributes:
        code: canonical status code, as of gRPC and Abseil.
        message: the text.
    """

    code: int = 2  # UNKNOWN

    @property
    def message(self) -> str:
        return str(self)


class CourierClosed(CourierError):
    """This side closed the client or the server."""

    code = 1  # CANCELLED


class ConnectionBroken(CourierError, ConnectionError):
    """The peer or the network went away, or never answered the connection attempt."""

    code = 14  # UNAVAILABLE


class DeadlineExceeded(CourierError, TimeoutError):
    """No answer in the time the caller allowed. The call may still run on the server."""

    code = 4  # DEADLINE_EXCEEDED


class MethodNotFound(CourierError):
    """The server does not expose that method."""

    code = 5  # NOT_FOUND


class PayloadTooLarge(CourierError, ValueError):
    """A message is over the limit of the connection."""

    code = 8  # RESOURCE_EXHAUSTED


class RemoteError(CourierError):
    """The handler raised an exception that cannot be sent back as it was.

    Attributes:
        type_name: qualified name of the exception's type on the server.
        remote_traceback: its traceback text.
    """

    code = 13  # INTERNAL

    def __init__(self, message: str, *, type_name: str = "", remote_traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.remote_traceback = remote_traceback


class StaleError(CourierError):
    """A cacher has only a value older than it may serve. `age_s` is its age, in seconds."""

    code = 14  # UNAVAILABLE

    def __init__(self, message: str, *, age_s: float = 0.0) -> None:
        super().__init__(message)
        self.age_s = age_s


class ProgramStopped(CourierClosed):
    """The program was asked to stop while this call waited. A node may let it propagate: that is a clean end."""


class ReplayError(TopologyError, RuntimeError):
    """A replay operation could not be carried out."""


class TableNotFound(ReplayError, KeyError, ValueError):
    """The server has no table of that name."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr of the message


class ReplayDeadlineExceeded(DeadlineExceeded, ReplayError):
    """A rate limiter did not let the operation pass in the time allowed."""


class StoreError(TopologyError, RuntimeError):
    """A memory backend or a data store could not do what was asked."""


class StoreFull(DeadlineExceeded, StoreError):
    """There was no room in a memory backend or a data store for as long as the caller waits. Nothing was stored."""


class StoreDeadlineExceeded(DeadlineExceeded, StoreError):
    """What a reader waited for did not come in the time the caller allowed. What is there stays there."""


class StoreUnavailable(ConnectionBroken, StoreError):
    """The server behind a store is not there, went away for too long, or does not let us in."""


class StoreDenied(StoreUnavailable):
    """The server behind a store is there and does not let us in, or not do this. Waiting does not help."""

    is_final = True


class StoreClosed(StoreError):
    """This side closed the store, or another reader has taken the place of this one."""


class StoreDataError(StoreError, ValueError):
    """What lies in a store was not written by this project, or is damaged. It was not unpickled, and not used."""


class PolicyNotFound(StoreError, LookupError):
    """A data store has no policy of that number, or not any more, or none at all."""


class PoliciesFinished(StoreError):
    """The end was announced, and no policy newer than the one asked for is there. `reason` is what was announced."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class LeaseHeld(StoreError):
    """Another writer holds the lease of a data store.

    Attributes:
        owner: who holds it.
        expires_at: when it ends if it is not renewed, in seconds since the epoch by the holder's clock.
    """

    def __init__(self, message: str, *, owner: str = "", expires_at: float = 0.0) -> None:
        super().__init__(message)
        self.owner = owner
        self.expires_at = expires_at


class LeaseLost(StoreError):
    """This writer's lease is over, and another has taken it since: nothing was written, and nothing will be."""
