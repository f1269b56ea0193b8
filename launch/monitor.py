"""Looks at a run from outside: how its workers are, what they print. In its process, or in any other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from launch.metrics import Tail
from launch.run_control import find_run, log_files
from launch.run_directory import ENDED_STATES, RunDirectory
from launch.run_status import RunStatus
from launch.watch import LOST, clean, read_state
from topology.clock import SYSTEM_CLOCK, Clock, Deadline
from topology.errors import LaunchError

if TYPE_CHECKING:
    from launch.run import Run

__all__ = ["LogStream", "Monitor"]

_POLL_S = 0.1  # another process's files have no event to wait for


@final
class LogStream:
    """The lines of a run, as an iterator of node and line; it ends with the run, or when `stop` is called.

    `next` blocks for the next line. One thread iterates; any may stop it. Also a context manager, which stops it.
    """

    def __init__(
        self,
        directory: RunDirectory,
        node: str,
        tail: int | None,
        has_ended: Callable[[], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._directory = directory
        self._node = node
        self._has_ended = has_ended
        self._clock = clock
        self._changed = threading.Condition()
        self._stopped = False
        self._lines = self._follow(tail)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, str]:
        if self._stopped:
            raise StopIteration
        return next(self._lines)

    def stop(self) -> None:
        """Ends the iteration, also one that blocks now. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _follow(self, limit: int | None) -> Iterator[tuple[str, str]]:
        tails: dict[str, Tail] = {}
        ended = False
        while not self._stopped:
            for name, path in log_files(self._directory).items():
                if self._node not in ("", name, name.rpartition("/")[0]):
                    continue
                lines = tails.setdefault(name, Tail(path)).poll()
                yield from ((name, clean(line)) for line in (lines if limit is None else deque(lines, maxlen=limit)))
            limit = None
            if ended:
                return
            ended = self._has_ended()  # and once more round, for what was written before the end
            if not ended:
                with self._changed:
                    self._clock.wait_for(self._changed, lambda: self._stopped, _POLL_S)


@final
class Monitor:
    """What a launcher's `monitor` returns. It keeps nothing open, and needs no end.

    Args:
        run: a `Run` of this process; or the directory of any run, its path, its name, or `latest`.
        clock: where the time comes from.

    Raises:
        LaunchError: there is no such run.
    """

    def __init__(self, run: Run | RunDirectory | Path | str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._run: Run | None = None
        self._clock = clock
        if isinstance(run, RunDirectory):
            self.directory = run
        elif isinstance(run, Path | str):
            self.directory = find_run(str(run))
        else:
            self._run = run
            self.directory = RunDirectory(run.run_directory)

    def status(self) -> RunStatus:
        """How the run and every worker is now. Raises LaunchError when the directory of a run elsewhere is gone."""
        return RunStatus.of_record(read_state(self.directory)) if self._run is None else self._run.report()

    @property
    def exit_codes(self) -> dict[str, int | None]:
        """Exit code of every worker by `label/index`; None while it runs."""
        return {worker.name: worker.exit_code for worker in self.status().workers}

    def logs(self, node: str = "", *, tail: int | None = None) -> LogStream:
        """Follows what nodes print: what is there, then what comes, until the run has ended.

        A test's run takes its logs along when it ends, and nodes that are threads of a test have none.

        Args:
            node: a node (`actor/0`) or a group (`actor`); all when left out.
            tail: begin with so many lines of each node; None for all.

        Raises:
            LaunchError: there is no such node.
        """
        if node and not any(node in (worker.name, worker.label) for worker in self.status().workers):
            log_files(self.directory, node)  # which says what there is
        return LogStream(self.directory, node, tail, self._has_ended, self._clock)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Blocks until the run has ended; returns False on a timeout. Raises no failure: `status` says how it ended."""
        if self._run is not None:
            return self._run.wait(timeout=timeout_s, raise_error=False)
        deadline = Deadline(timeout_s, self._clock)
        while not self._has_ended():
            if deadline.expired:
                return False
            self._clock.sleep(_POLL_S)
        return True

    def _has_ended(self) -> bool:
        if self._run is not None:
            return self._run.has_ended
        try:
            return self.status().state in {*ENDED_STATES, LOST}
        except LaunchError:
            if self.directory.path.exists():
                raise
            return True  # a test's run, whose directory goes with it
