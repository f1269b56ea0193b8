"""What was created for a run, and how each part of it is given back: the newest first, and each, whatever others do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import final

from topology.errors import LaunchError

__all__ = ["Rollback", "UndeployFailed"]

_logger = logging.getLogger(__name__)


class UndeployFailed(LaunchError):
    """Some of what a run had created could not be given back.

    Attributes:
        errors: every one of them, a line each.
    """

    def __init__(self, message: str, *, errors: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.errors = tuple(errors)


@final
class Rollback:
    """A stack of steps that undo. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: list[tuple[str, Callable[[], object], bool]] = []

    def push(self, what: str, undo: Callable[[], object], *, only_after_failure: bool = False) -> None:
        """Something was created.

        Args:
            what: what it is, for messages.
            undo: gives it back; called at most once.
            only_after_failure: a run that was deployed leaves it behind on purpose.
        """
        with self._lock:
            self._steps.append((what, undo, only_after_failure))

    def run(self, *, failed: bool = False) -> list[str]:
        """Undoes every step, the newest first; says what could not be undone. The second call has nothing to do.

        A step that raises, or that is interrupted, keeps none of the others from being undone.

        Args:
            failed: the run was not deployed.
        """
        problems: list[str] = []
        while (step := self._pop()) is not None:
            what, undo, only_after_failure = step
            if only_after_failure and not failed:
                continue
            try:
                undo()
            except BaseException as error:
                problems.append(f"{what} could not be given back: {type(error).__name__}: {error}")
                _logger.exception("%s could not be given back", what)
        return problems

    def _pop(self) -> tuple[str, Callable[[], object], bool] | None:
        with self._lock:
            return self._steps.pop() if self._steps else None
