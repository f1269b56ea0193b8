"""Failures of calls as the original courier shows them: `StatusNotOk` with a code."""

from __future__ import annotations

import enum
from typing import Any

from topology import errors
from topology.nodes.courier import codec

__all__ = ["StatusCode", "StatusNotOk", "translate_remote_errors"]

StatusNotOk = errors.CourierError
"""Every failure of a call is one, so that `except StatusNotOk` takes all of them."""


class StatusCode(enum.IntEnum):
    """The canonical status codes of Abseil and gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def translate_remote_errors() -> None:
    """From now on what a handler raises is a `StatusNotOk` at its caller, besides what it was."""
    codec.set_remote_error_adapter(_as_status)


def _as_status(error: Exception, traceback: str) -> Exception:
    if isinstance(error, errors.CourierError):
        return error
    kind = _status_kind(type(error))
    if kind is None:
        return errors.RemoteError(
            f"{_PREFIX}{traceback}", type_name=type(error).__qualname__, remote_traceback=traceback
        )
    status: Exception = kind.__new__(kind, *error.args)
    status.args = error.args
    status.__dict__.update(error.__dict__, remote_error=error, remote_traceback=traceback)
    return status


_PREFIX = "Python exception was raised on the server:\n"


_kinds: dict[type[Exception], type[Exception] | None] = {}


def _status_kind(kind: type[Exception]) -> type[Exception] | None:
    """A type that is both `kind` and a status; None where Python cannot make one."""
    if kind not in _kinds:
        _kinds[kind] = _make_status_kind(kind)
    return _kinds[kind]


def _make_status_kind(kind: type[Exception]) -> type[Exception] | None:
    attributes: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__str__": lambda self: f"{_PREFIX}{self.remote_traceback}",
        "__reduce__": lambda self: (_as_status, (self.remote_error, self.remote_traceback)),
        "__doc__": kind.__doc__,
    }
    try:
        return type(kind.__name__, (kind, errors.CourierError), attributes)
    except TypeError:  # two layouts in memory, or a class that refuses to be a base
        return None
