"""Failures of calls as the original courier shows them: `StatusNotOk` with a code."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from topology import errors
from topology.compat.additions import add, with_additions
from topology.compat.computed import Computed
from topology.nodes.courier import codec

__all__ = ["Status", "StatusCode", "StatusNotOk", "translate_errors"]

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

    __str__ = enum.Enum.__str__


# What the original makes of what a handler raises; of everything else UNKNOWN. The first that fits.
_CODES: dict[type[Exception], StatusCode] = {
    NotImplementedError: StatusCode.UNIMPLEMENTED,
    MemoryError: StatusCode.RESOURCE_EXHAUSTED,
    LookupError: StatusCode.NOT_FOUND,
    StopIteration: StatusCode.OUT_OF_RANGE,
    SyntaxError: StatusCode.INTERNAL,
    SystemError: StatusCode.INTERNAL,
    TypeError: StatusCode.INVALID_ARGUMENT,
    ValueError: StatusCode.INVALID_ARGUMENT,
}


@final
@dataclass(frozen=True)
class Status:
    """A code and a text: `error.status` of a failed call."""

    _code: StatusCode
    _message: str

    def ok(self) -> bool:
        """Whether nothing failed."""
        return self._code is StatusCode.OK

    def code(self) -> StatusCode:
        """The code."""
        return self._code

    def raw_code(self) -> int:
        """The code as a number."""
        return int(self._code)

    def message(self) -> str:
        """The text."""
        return self._message


def translate_errors(wanted: bool = True) -> None:
    """From now on every failure of a call looks like the original's: what a handler raises is a `StatusNotOk`, too.

    With `wanted` false it is itself again.
    """
    codec.set_remote_error_adapter(_as_status if wanted else None)
    with_additions(_add_codes)


def _add_codes() -> None:
    for kind in _kinds_of(errors.CourierError):
        code = next((each for each in StatusCode if each == vars(kind).get("code")), None)
        if code is not None:  # a program's own error may have a code of its own
            add(kind, code=code)  # equal to the number, and prints its name
    add(errors.CourierError, status=Computed(_status))  # the original's spelling


def _status(error: errors.CourierError) -> Status:
    code: object = error.code  # a user's error may have one of its own
    return Status(code if isinstance(code, StatusCode) else _code_of(type(error)), str(error))


def _code_of(kind: type[Exception]) -> StatusCode:
    return next((code for base, code in _CODES.items() if issubclass(kind, base)), StatusCode.UNKNOWN)


def _kinds_of(kind: type[errors.CourierError]) -> Iterator[type[errors.CourierError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _kinds_of(inner)


def _as_status(error: Exception, traceback: str) -> Exception:
    if isinstance(error, errors.RemoteError):  # what was raised could not travel
        return _unknown(error.type_name, traceback)
    if isinstance(
        error, errors.CourierError | errors.ReplayError
    ):  # of the service itself, and say all there is to say
        return error
    kind = _status_kind(type(error))
    if kind is None:
        return _unknown(type(error).__qualname__, traceback)
    status: Exception = kind.__new__(kind, *error.args)
    status.args = error.args
    status.__dict__.update(error.__dict__, remote_error=error, remote_traceback=traceback)
    return status


def _unknown(type_name: str, traceback: str) -> errors.RemoteError:
    error = errors.RemoteError(f"{_PREFIX}{traceback}", type_name=type_name, remote_traceback=traceback)
    error.code = StatusCode.UNKNOWN
    return error


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
    if not hasattr(kind, "code"):
        attributes["code"] = _code_of(kind)
    if not hasattr(kind, "message"):
        attributes["message"] = Computed(str)
    bases = (errors.CourierError,) if issubclass(errors.CourierError, kind) else (kind, errors.CourierError)
    try:
        return type(kind.__name__, bases, attributes)
    except TypeError:  # two layouts in memory, or a class that refuses to be a base
        return None
