"""Writers: append steps, build items from them, send both in batches.

Items and the steps they use go out together: when a hundred items or a megabyte have gathered, when a `flush` needs
them out, at once when the writer has been quiet, and after a fiftieth of a second when it does nothing more. At most a
few messages are under way; then the writer blocks, which is how the rate limiter of a table holds its writers back.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from topology.clock import SYSTEM_CLOCK, Clock, Deadline
from topology.errors import CourierError, ReplayError
from topology.nodes.replay.cell_errors import CellSetTwice
from topology.nodes.replay.checks import check_positive, check_priority
from topology.nodes.replay.forks import inherited_error, tell_in_child
from topology.nodes.replay.history import TrajectoryColumn, layout_of, pattern_of
from topology.nodes.replay.layouts import LeafPattern
from topology.nodes.replay.options import check_column_settings
from topology.nodes.replay.sender import Backend, Sender
from topology.nodes.replay.specs import LeafSpec
from topology.nodes.replay.step_buffer import StepBuffer
from topology.nodes.replay.structure import Matcher, Shape, flatten, show_path
from topology.nodes.replay.templates import Template
from topology.nodes.replay.text import as_array

__all__ = ["TrajectoryWriter"]

_MOST_RECENT = 1024
_MOST_LAYOUTS = 1024
_ARRAYS = (np.ndarray, np.generic)


class TrajectoryWriter:
    """Writes steps and items to the tables of one server. For one thread.

        with client.trajectory_writer(num_keep_alive_refs=2) as writer:
            writer.append({"observation": first})
            ...
                writer.append({"observation": o, "action": a, "reward": r})
                writer.create_item("table", priority=1.0, trajectory={
                    "o_tm1": writer.history["observation"][-2], "a_tm1": writer.history["action"][-1], ...})
                writer.flush(block_until_num_items=100)

    Items of one writer enter a table in the order they were created. Every step is sent once, when the first item uses
    it. `create_item` blocks while too much is under way, `flush` and `end_episode` until items are in their tables.

    When the server goes away, the next call waits until it is back, and items that were not confirmed are sent again:
    each of them gets into its table exactly once, as far as the server remembers (it does after a broken connection,
    and after a restart from a checkpoint for what the checkpoint holds). A writer that makes no more calls, or was
    closed, sends them again as well, as long as its client is there.

    An error the server reports (or the end of the program) is raised by the next call of any method. The items that
    were under way then are lost; the writer stays usable. What a closed writer loses so is logged.

    Attributes:
        signature_may_be_of_steps: whether items may go to a table whose signature is that of one of their steps.
        is_always_checked: whether the server checks items also where `validate_items` is False.
        clips_history: whether indices that reach back beyond the history mean what is there of it, as in a list.

    Args:
        backend: the client.
        num_keep_alive_refs: how many of the latest steps items can be built from.
        validate_items: whether to fetch the signatures of tables and check items before they are sent.
        patience_s: how long to wait for a server that went away; None for ever.
        clock: for timeouts.
    """

    clips_history: ClassVar[bool] = True
    is_always_checked: ClassVar[bool] = True

    def __init__(
        self,
        backend: Backend,
        num_keep_alive_refs: int,
        *,
        validate_items: bool = True,
        patience_s: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._backend = backend
        self._keep = check_positive("num_keep_alive_refs", num_keep_alive_refs)
        self._validate = validate_items
        self._clock = clock
        self._buffer = StepBuffer(backend.regions)
        self._template = Template(self._buffer, clips=self.clips_history)
        self._sender = Sender(backend, self._buffer, clock, patience_s)
        self._layout_of: dict[tuple[Any, ...], int] = {}
        self._matcher = Matcher(None)  # of the latest trajectory
        self._matchers: dict[Shape, Matcher] = {None: self._matcher}
        # First step, stop (both relative to the next step) and layout of trajectories that were built lately.
        self._recent: dict[tuple[Any, ...], tuple[int, int, int]] = {}
        self._admitted: set[tuple[str, int]] = set()
        self.signature_may_be_of_steps = False
        self._step_is_open = False
        self._episode = secrets.randbits(64)
        self._episode_steps = 0
        self._closed = ""  # why, once it is
        tell_in_child(self)

    def forked(self) -> None:
        """In a forked child: what was begun is for the parent to end."""
        self._sender.forked()
        self._closed = str(inherited_error("the writer"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error of the service itself, waiting for it would only hide the error.
        if kind is None or not issubclass(kind, ReplayError | CourierError):
            self.flush()
        self.close()

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def history(self) -> Any:
        """The steps since the start or the last `end_episode`, in the structure of the steps, a list-like a column.

        Index columns with ints, slices or lists of ints to build trajectories. Columns that a step did not have are
        None there: using such a cell raises ValueError.

        Raises:
            RuntimeError: nothing was appended yet.
        """
        return self._template.history

    @property
    def episode_steps(self) -> int:
        """Completed steps since the last `end_episode`."""
        return self._episode_steps

    @property
    def step_is_open(self) -> bool:
        """Whether the last `append` was a partial step."""
        return self._step_is_open

    @property
    def patience_s(self) -> float | None:
        """How long to wait for a server that went away, in seconds; None for ever."""
        return self._sender.patience_s

    @patience_s.setter
    def patience_s(self, seconds: float | None) -> None:
        self._sender.patience_s = seconds

    def configure(
        self, path: Sequence[str | int], *, num_keep_alive_refs: int, max_chunk_length: int | None = None
    ) -> None:
        """Reverb's settings of one column, seen already or not. Steps are kept for all columns alike.

        Args:
            path: of the column in the steps.
            num_keep_alive_refs: how many of the latest steps items can be built from, if that is more than before.
            max_chunk_length: of Reverb's storage; has no effect here.

        Raises:
            ValueError: a number is below 1, or `max_chunk_length` above `num_keep_alive_refs`.
        """
        check_column_settings(show_path(tuple(path)), num_keep_alive_refs, max_chunk_length)
        self._keep = max(self._keep, num_keep_alive_refs)

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Appends a step: a structure of arrays and numbers. None at a leaf means that the step does not have it.

        Args:
            data: the step. Its structure may differ from that of other steps.
            partial_step: the step stays open, and the next `append` adds to it.

        Raises:
            ValueError: a leaf's dtype or shape differs from earlier steps, or was set in this step already.
            TypeError: a leaf cannot be stored.
        """
        with self._sender.mutex:
            self._begin()
            leaves, plan = self._template.open(data)
            buffer = self._buffer
            if not (partial_step or self._step_is_open) and buffer.try_append(plan, leaves):
                self._advance(1)
                self._episode_steps += 1
                return
            step = buffer.next_step - 1 if self._step_is_open else buffer.next_step
            columns, cells, first_values = buffer.columns, [], []
            for column, leaf in zip(plan, leaves, strict=True):
                if leaf is None:
                    continue
                value: Any = leaf if isinstance(leaf, _ARRAYS) else self._array(column, leaf)
                if value.dtype.kind in "SUO":
                    value = self._array(column, leaf)
                known = columns[column]
                if known.dtype is None or value.dtype != known.dtype or value.shape != known.shape:
                    buffer.check(column, value)
                    first_values.append((column, value))
                if self._step_is_open and known.has(step):
                    raise CellSetTwice(
                        f"field {self._template.path_text(column)} was set in this step already, by an earlier partial "
                        "append; leave it out or give None",
                        buffer.columns[column].path,
                        leaf,
                    )
                cells.append((column, value[()] if value.dtype.kind == "O" else value))
            for column, value in first_values:
                buffer.adopt(column, value)
            if not self._step_is_open:
                if first_values:
                    buffer.make_room(step)
                self._advance(1)
            buffer.set_cells(step, cells)
            if self._step_is_open:
                for column, _ in cells:
                    self._sender.outbox.cell_set(step, column)
            self._step_is_open = partial_step
            self._episode_steps += not partial_step

    def append_batch(self, data: Any) -> None:
        """Appends n steps at once: a structure of arrays [n, ...].

        All n can be used by items until the next append, besides the `num_keep_alive_refs` - 1 steps before them.

        Raises:
            ValueError: as for `append`; or the leaves differ in length, or a partial step is open.
        """
        with self._sender.mutex:
            self._begin()
            if self._step_is_open:
                raise ValueError("a partial step is open: close it with append before appending a batch")
            leaves, plan = self._template.open(data)
            arrays = [self._array(column, leaf) for column, leaf in zip(plan, leaves, strict=True)]
            lengths = {array.shape[:1] for array in arrays}
            if len(lengths) != 1 or lengths & {(), (0,)}:
                found = ", ".join(f"{self._template.path_text(c)} {a.shape}" for c, a in zip(plan, arrays, strict=True))
                raise ValueError(f"the leaves of a batch of steps need one common leading length above 0, got {found}")
            for column, array in zip(plan, arrays, strict=True):
                self._buffer.check(column, array[0, ...])
            for column, array in zip(plan, arrays, strict=True):
                self._buffer.adopt(column, array[0, ...])
            first, count = self._buffer.next_step, len(arrays[0])
            self._buffer.make_room(first)
            self._advance(count)
            for column, array in zip(plan, arrays, strict=True):
                self._buffer.extend(column, first, array)
            self._episode_steps += count

    def _array(self, column: int, leaf: Any) -> Any:
        try:
            return as_array(leaf)
        except TypeError as error:
            raise TypeError(f"column {self._template.path_text(column)}: {error}") from None

    def _advance(self, count: int) -> None:
        """Makes room for `count` new steps."""
        buffer = self._buffer
        buffer.next_step += count
        alive = max(buffer.next_step - self._keep - count + 1, buffer.history_first)
        if alive > buffer.first_alive:
            buffer.first_alive = alive
            if buffer.can_drop(alive):
                buffer.drop_before(int(min(alive, self._sender.oldest_needed())))

    # -- items --------------------------------------------------------------------------------------------------------

    def create_item(self, table: str, priority: float, trajectory: Any) -> None:
        """Creates an item in `table` from columns of the history.

        Args:
            table: name of the table.
            priority: finite and not negative.
            trajectory: a structure whose leaves are `TrajectoryColumn`s, e.g. `history["observation"][-3:]`.

        Blocks only while too much is under way, as when the table's rate limiter lets nothing pass.

        Raises:
            TypeError: a leaf is something else.
            ValueError: a step has expired, the priority is not allowed, or the item does not match the signature.
            TableNotFound: the server has no such table.
        """
        self._create(table, [check_priority(table, priority)], trajectory, 1)

    @contextlib.contextmanager
    def one_message(self) -> Iterator[None]:
        """The items that are created within travel in one message, together with those that were not sent before.

        It is sent at the end, without waiting for more. Blocks then while three messages are under way.
        """
        with self._sender.together():
            yield

    def take_back(self, table: str) -> int:
        """Takes back the items for `table` that are not in it yet; returns how many. Blocks for the server's answer.

        They count as confirmed then. Those of before are in the table, or were.

        Raises:
            TableNotFound: the server has no such table.
            ConnectionBroken: it is gone. The items are still on their way.
        """
        return self._sender.take_back(table)

    def check_item(self, table: str, priority: float, trajectory: Any) -> None:
        """Raises what `create_item` would raise; creates nothing."""
        with self._sender.mutex:
            check_priority(table, priority)
            self._prepare(table, 1, trajectory, 1)

    def create_items(self, table: str, priorities: Iterable[float], trajectory: Any, *, period: int = 1) -> None:
        """Creates an item for each priority: the last is `trajectory`, each other one `period` steps before the next.

        So after `append_batch` of n steps, `create_items("table", [1.0] * n, {k: v[-1:] for k, v in history.items()})`
        makes an item of every step. For the rest see `create_item`.
        """
        values = [check_priority(table, priority) for priority in priorities]
        if values:
            self._create(table, values, trajectory, check_positive("period", period))

    def _create(self, table: str, priorities: list[float], trajectory: Any, period: int) -> None:
        with self._sender.mutex:
            first_steps, stop, layout = self._prepare(table, len(priorities), trajectory, period)
            self._sender.add(table, layout, self._episode, first_steps, priorities, stop)

    def _prepare(self, table: str, count: int, trajectory: Any, period: int) -> tuple[range, int, int]:
        """Checks items; returns the first step of each, the step after the last, and the number of their layout."""
        self._begin()
        first, stop, layout = self._layout(trajectory)
        oldest = first - period * (count - 1)
        if oldest < self._buffer.first_alive:
            raise ValueError(
                f"table {table!r}: an item begins {self._buffer.next_step - oldest} steps ago; only the latest "
                f"{self._buffer.next_step - self._buffer.first_alive} steps can be used, see num_keep_alive_refs"
            )
        if (table, layout) not in self._admitted:
            self._admit(table, layout)
        return range(oldest, first + 1, period), stop, layout

    def _layout(self, trajectory: Any) -> tuple[int, int, int]:
        """First step of an item, the step after its last, and the number of its layout."""
        matcher = self._matcher
        leaves = matcher.leaves(trajectory)
        if leaves is None:
            leaves, shape = flatten(trajectory)
            matcher = self._matcher = self._matchers.setdefault(shape, Matcher(shape))
        now, buffer = self._buffer.next_step, self._buffer
        forms: list[Any] = [matcher]
        for leaf in leaves:
            if type(leaf) is not TrajectoryColumn or leaf.span.buffer is not buffer:
                raise TypeError(
                    "the leaves of a trajectory are columns of this writer's history, such as "
                    f"writer.history['reward'][-1:], got {type(leaf).__name__}"
                )
            if leaf.span.at != now:  # taken before the newest step
                return self._find_layout(matcher.shape, leaves)
            forms.append(leaf.span.form + leaf.column)
        key = tuple(forms)
        known = self._recent.get(key)
        if known is None:
            if len(self._recent) >= _MOST_RECENT:
                self._recent.clear()
            first, stop, layout = self._find_layout(matcher.shape, leaves)
            known = self._recent[key] = (first - now, stop - now, layout)
        return now + known[0], now + known[1], known[2]

    def _find_layout(self, shape: Shape, leaves: Sequence[TrajectoryColumn]) -> tuple[int, int, int]:
        spans = [leaf.span for leaf in leaves if leaf.span.steps]
        if not spans:
            raise ValueError("an item needs at least one step; every leaf of the trajectory is empty")
        first = min(span.first for span in spans)
        key = (shape, *[pattern_of(leaf, first) for leaf in leaves])
        number = self._layout_of.get(key)
        if number is None:
            if (
                len(self._layout_of) >= _MOST_LAYOUTS
            ):  # every item is of another form, as where steps are drawn at random
                for known in (self._layout_of, self._recent, self._admitted):
                    known.clear()
                self._sender.forget_layouts()
            spec = layout_of(shape, leaves, first)._replace(
                of_steps=self.signature_may_be_of_steps, unchecked=not (self._validate or self.is_always_checked)
            )
            number = self._layout_of[key] = self._sender.outbox.add_layout(spec)
        return first, max(span.last for span in spans) + 1, number

    def _admit(self, table: str, layout: int) -> None:
        if self._validate:
            signature = self._backend.signature(table)
            if signature is not None:
                spec = self._sender.outbox.layout(layout)
                signature.check(table, [self._leaf_spec(leaf) for leaf in spec.leaves], of_steps=spec.of_steps)
        self._admitted.add((table, layout))

    def _leaf_spec(self, leaf: LeafPattern) -> LeafSpec:
        spec = self._buffer.spec(leaf.column)
        assert spec is not None  # a TrajectoryColumn refers to cells that were set
        return spec.path, (spec.shape if leaf.squeezed else (len(leaf.steps), *spec.shape)), spec.dtype

    def _begin(self, deadline: Deadline | None = None) -> None:
        """What every call does first."""
        if self._closed:
            raise ReplayError(self._closed)
        if self._sender.has_failed:
            self._sender.raise_failures(deadline)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Blocks until at most `block_until_num_items` items are not in their tables yet.

        Args:
            block_until_num_items: so many of the latest items may still be on their way.
            timeout_ms: limit in milliseconds; None or negative for none.

        Raises:
            ValueError: `block_until_num_items` is negative.
            ReplayDeadlineExceeded: the limit passed. The items are still inserted later; the writer stays usable.
        """
        with self._sender.mutex:
            if block_until_num_items < 0:
                raise ValueError(f"block_until_num_items must be >= 0, got {block_until_num_items}")
            sender = self._sender
            if not (self._closed or sender.has_failed) and sender.is_flushed(block_until_num_items):
                return
            deadline = Deadline(None if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1e3, self._clock)
            self._begin(deadline)
            sender.flush(block_until_num_items, deadline)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Flushes all items, closes an open step and begins a new episode.

        Args:
            clear_buffers: whether the history begins anew; False lets trajectories span episodes.
            timeout_ms: limit in milliseconds; None or negative for none.

        Raises:
            ReplayDeadlineExceeded: the limit passed. The new episode has begun all the same, and the items are still
                inserted later.
        """
        with self._sender.mutex:
            try:
                self.flush(0, timeout_ms)
            finally:
                self._step_is_open = False
                self._episode = secrets.randbits(64)
                self._episode_steps = 0
                if clear_buffers:
                    self._buffer.history_first = self._buffer.first_alive = self._buffer.next_step

    def close(self) -> None:
        """Sends what is buffered and lets go of the server's copy of the steps. Does not wait. Idempotent."""
        if self._closed:
            return
        self._closed = "the writer is closed; make a new one"
        self._sender.close()
