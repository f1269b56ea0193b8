"""A medium that may be away or full for a while: what is asked of it meanwhile waits, and is asked again."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar, final

from topology.clock import Clock
from topology.errors import StoreDeadlineExceeded, StoreDenied, StoreError, StoreFull, StoreUnavailable
from topology.nodes.store.codec import Buffer
from topology.nodes.store.long_wait import LongWait
from topology.nodes.store.policy_medium import Medium
from topology.nodes.store.policy_waits import Wait, Waits

__all__ = ["PASSING", "PatientMedium", "patient"]

ResultT = TypeVar("ResultT")

_logger = logging.getLogger(__name__)

PASSING: Final = (StoreUnavailable, StoreFull)
"""What a wait may help against: it comes back, or somebody makes room. Not `StoreDenied`, though it is one of these."""

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


def patient(medium: Medium, patience_s: float, clock: Clock) -> Medium:
    """`medium`, which is waited for so long when its server is away, or it has no room; itself for 0.

    Raises:
        ValueError: a patience below 0, or without end.
    """
    if not 0 <= patience_s < math.inf:
        raise ValueError(f"patience_s is a number of seconds, at least 0, got {patience_s!r}")
    return PatientMedium(medium, patience_s, clock) if patience_s else medium


@final
class PatientMedium(Medium):
    """All that a medium is asked may be asked twice: bytes have names of their own, and the record tells its writer.

    Args:
        medium: that may be away or full.
        patience_s: how long it is waited for, in seconds, on top of what a call may wait for anyway.
        clock: of the waiting.
    """

    def __init__(self, medium: Medium, patience_s: float, clock: Clock) -> None:
        self._medium = medium
        self._patience_s = patience_s
        self._clock = clock
        self._waits = Waits(clock)

    def __repr__(self) -> str:
        return repr(self._medium)

    def __reduce__(self) -> tuple[Any, ...]:
        return PatientMedium, (self._medium, self._patience_s, self._clock)

    def _ask(self, question: Callable[[], ResultT]) -> ResultT:
        try:
            return question()
        except StoreDenied:
            raise
        except PASSING as error:
            why: StoreError = error
        told = LongWait(_logger, self._clock)
        with self._waits.begin(f"{self!r} to come back", self._patience_s) as wait:
            pause_s = _FIRST_PAUSE_S
            while True:
                wait.pause(pause_s)
                self._go_on(wait, why)
                try:
                    answer = question()
                except StoreDenied:
                    raise
                except PASSING as error:
                    why = error
                else:
                    told.is_over("the data store is back")
                    return answer
                told.goes_on(f"waiting, {self._patience_s:g} s at most: {why}")
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _go_on(self, wait: Wait, why: StoreError) -> None:
        try:
            wait.check()
        except StoreDeadlineExceeded:
            why.add_note(f"it was waited for, for {self._patience_s:g} s")
            raise why from None

    # --- what is asked ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self._ask(self._medium.check)

    def read(self) -> bytes | None:
        return self._ask(self._medium.read)

    def write(self, revision: int, record: bytes, blobs: Sequence[str]) -> bool:
        return self._ask(lambda: self._medium.write(revision, record, blobs))

    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        self._ask(lambda: self._medium.put(name, parts))

    def get(self, name: str) -> Buffer:
        return self._ask(lambda: self._medium.get(name))

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        self._ask(lambda: self._medium.delete(doomed))

    def leftovers(self) -> list[str]:
        return self._ask(self._medium.leftovers)

    def wait_changed(self, revision: int, wait: Wait, most_s: float = math.inf) -> None:
        self._ask(lambda: self._medium.wait_changed(revision, wait, most_s))

    def close(self) -> None:
        self._waits.close()
        self._medium.close()
