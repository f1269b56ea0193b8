"""Errors of the courier and of replay in the words of this room."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from topology.errors import ConnectionBroken, CourierClosed, ProgramStopped, StoreClosed, StoreError, StoreUnavailable
from topology.nodes.replay.stopping import reason_of

__all__ = ["told"]

ResultT = TypeVar("ResultT")


def told(call: Callable[[], ResultT], address: str) -> ResultT:
    """What `call` returns.

    Raises:
        ProgramStopped: the program was asked to stop, and its server perhaps before this node.
        StoreClosed: this side has closed the connection.
        StoreUnavailable: the server went away.
    """
    try:
        return call()
    except (ProgramStopped, StoreError):
        raise
    except CourierClosed as error:
        raise StoreClosed("this handle of the memory is closed; open another") from error
    except ConnectionBroken as error:
        reason = reason_of(error)
        if reason is not error:
            raise reason from reason.__cause__
        raise StoreUnavailable(f"the memory at {address} is not there any more: {error}") from error
