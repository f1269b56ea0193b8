"""Stages with several inputs or outputs: flows that run side by side, and one flow read twice."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Literal, final

from topology.nodes.flow.events import Signal, Waker
from topology.nodes.flow.items import Item
from topology.nodes.flow.stages import Outcome, Stage

__all__ = ["ANYTIME", "AsyncUnion", "Copies", "Copy", "RoundRobinUnion", "Weight"]

ANYTIME: Literal["*"] = "*"
"""Weight of a flow that is read as far as it has items, and never waited for."""

Weight = float | Literal["*"]

_MOST_ANYTIME = 100


class _Union(Stage):
    """Common to both kinds.

    Args:
        inputs: the flows.
        outputs: indices of those whose items are handed on; all are driven.
        strict: whether the end of one flow is the end of all.
    """

    def __init__(self, inputs: Sequence[Stage], outputs: Collection[int] | None, *, strict: bool) -> None:
        self.inputs = tuple(inputs)
        self._outputs = set(range(len(inputs)) if outputs is None else outputs)
        self._strict = strict
        self._left = list(range(len(inputs)))
        self._at = 0  # position in `_left`

    def _end_of(self, position: int) -> bool:
        """Drops a flow that has ended; returns whether all is over."""
        self._left.pop(position)
        if self._strict:
            self._left.clear()
        return not self._left

    def get_state(self) -> Any:
        return {"left": list(self._left), "at": self._at}

    def set_state(self, state: Any) -> None:
        self._left, self._at = list(state["left"]), state["at"]


@final
class AsyncUnion(_Union):
    """Items of whichever flow has one; flows that have take turns."""

    name = "Concurrently(async)"

    def poll(self, waker: Waker) -> Outcome:
        pending = progressed = False
        for _ in range(len(self._left)):
            if not self._left:
                return Signal.END
            self._at %= len(self._left)
            index = self._left[self._at]
            outcome = self.inputs[index].poll(waker)
            if outcome is Signal.END:
                if self._end_of(self._at):
                    return Signal.END
                continue
            self._at += 1
            if isinstance(outcome, Item):
                if index in self._outputs:
                    return outcome
                progressed = True
            pending = pending or outcome is Signal.PENDING
        if not self._left:
            return Signal.END
        if progressed:
            waker.wake()  # there may be more at once; flows beside this union get their turn in between
            return Signal.PENDING
        return Signal.PENDING if pending else Signal.STALLED


@final
class RoundRobinUnion(_Union):
    """Items of the flows in turn, each waited for; one that needs another flow to act loses the rest of its turn.

    Args:
        inputs: the flows.
        outputs: see `Concurrently`.
        weights: items a turn, for each; fractions are rounded up or down at random, right on average. `ANYTIME` for a
            flow that is never waited for.
        strict: see `Concurrently`.
        seed: of the rounding.
    """

    name = "Concurrently(round_robin)"

    def __init__(
        self,
        inputs: Sequence[Stage],
        outputs: Collection[int] | None,
        *,
        weights: Sequence[Weight] | None = None,
        strict: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(inputs, outputs, strict=strict)
        self._weights: list[Weight] = [1] * len(inputs) if weights is None else list(weights)
        self._random = random.Random(seed)
        self._due: int | None = None  # items left in this turn; None between turns

    def poll(self, waker: Waker) -> Outcome:
        stalled = turns = 0
        pending = False
        while self._left:
            self._at %= len(self._left)
            index = self._left[self._at]
            if self._due is None:
                self._due = self._draw(index)
            if self._due == 0:
                self._next_turn()
                turns += 1
            else:
                outcome = self.inputs[index].poll(waker)
                if isinstance(outcome, Item):
                    self._due -= 1
                    stalled = 0
                    if index in self._outputs:
                        return outcome
                    continue
                if outcome is Signal.END:
                    self._due = None
                    self._end_of(self._at)
                    continue
                if outcome is Signal.PENDING and self._weights[index] != ANYTIME:
                    return Signal.PENDING
                pending = pending or outcome is Signal.PENDING
                self._next_turn()
                stalled += 1
            if stalled >= len(self._left):
                return Signal.PENDING if pending else Signal.STALLED
            if turns > 2 * len(self._left):
                waker.wake()  # flows beside this union get their turn
                return Signal.PENDING
        return Signal.END

    def get_state(self) -> Any:
        return {**super().get_state(), "due": self._due, "random": self._random.getstate()}

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        self._due = state["due"]
        self._random.setstate(state["random"])

    def _draw(self, index: int) -> int:
        weight = self._weights[index]
        if isinstance(weight, str):
            return _MOST_ANYTIME
        whole = int(weight)
        return whole + (self._random.random() < weight - whole)

    def _next_turn(self) -> None:
        self._at += 1
        self._due = None


@final
class Copies:
    """One flow that several readers see whole.

    Readers keep in step: one that is an item ahead of another waits for it, so that at most one item is kept.
    """

    def __init__(self, source: Stage, count: int) -> None:
        self.source = source
        self.waiting: list[deque[Item]] = [deque() for _ in range(count)]
        self._reading = threading.Lock()

    def poll(self, reader: int, waker: Waker) -> Outcome:
        """The next item of one reader.

        Raises:
            RuntimeError: another thread asks for that of another reader.
        """
        if not self._reading.acquire(blocking=False):
            raise RuntimeError(
                "two threads read the copies that duplicate() made: they belong to one plan, which joins them"
            )
        try:
            return self._poll(reader, waker)
        finally:
            self._reading.release()

    def _poll(self, reader: int, waker: Waker) -> Outcome:
        mine = self.waiting[reader]
        if mine:
            return mine.popleft()
        if any(self.waiting):
            return Signal.STALLED
        outcome = self.source.poll(waker)
        if isinstance(outcome, Item):
            for index, queue in enumerate(self.waiting):
                if index != reader:
                    queue.append(outcome)
        return outcome


@final
class Copy(Stage):
    """One reader of `Copies`."""

    def __init__(self, copies: Copies, reader: int) -> None:
        self.inputs = (copies.source,)
        self._copies = copies
        self._reader = reader

    @property
    def name(self) -> str:
        return f"duplicate[{self._reader}]"

    def poll(self, waker: Waker) -> Outcome:
        return self._copies.poll(self._reader, waker)

    def get_state(self) -> Any:
        return list(self._copies.waiting[self._reader])

    def set_state(self, state: Any) -> None:
        self._copies.waiting[self._reader] = deque(state)
