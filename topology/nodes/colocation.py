"""Several nodes in one executable: as threads of one process, or as processes of one node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, final

from topology.clock import SYSTEM_CLOCK
from topology.context import NodeContext, StopToken, bind_context, get_context
from topology.errors import ProgramError
from topology.executable import Executable
from topology.interrupt import interrupt_thread
from topology.node import Node, NodeDescription

__all__ = ["MultiProcessingColocation", "MultiThreadingColocation"]

_NUDGE_S = 0.1  # from the stop to the interrupt of nodes that never look at it


class _Colocation(Node[None]):
    def __init__(self, nodes: Sequence[Node[Any]]) -> None:
        super().__init__()
        name = type(self).__name__
        if not isinstance(nodes, Iterable):
            raise TypeError(f"{name}() takes a list of nodes, got {nodes!r}")
        self._nodes = list(nodes)
        if not self._nodes:
            raise ProgramError(f"{name}() takes at least one node, got none")
        for position, node in enumerate(self._nodes):
            if not isinstance(node, Node):
                raise TypeError(f"{name}() takes a list of nodes such as CourierNode(...), got {node!r} at {position}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._nodes}>"

    @property
    def nodes(self) -> list[Node[Any]]:
        """The nodes inside."""
        return self._nodes

    @property
    def inner_nodes(self) -> Sequence[Node[Any]]:
        return self._nodes

    def create_handle(self) -> None:
        """None: the nodes inside have handles of their own."""

    def describe(self) -> NodeDescription:
        return NodeDescription(arguments={})


@final
class MultiThreadingColocation(_Colocation):
    """Runs several nodes as threads of one node.

    Ends when all of them have ended, or the first one if asked; the first failure of a node inside is its own. Each
    node inside hears of the program's stop by itself; one that never looks gets a `SystemExit` at its next bytecode.

    Args:
        nodes: nodes that are not added to the program themselves; their handles are given to others as usual.
        return_on_first_completed: end as soon as one of them has.
    """

    def __init__(self, nodes: Sequence[Node[Any]], return_on_first_completed: bool = False) -> None:
        super().__init__(nodes)
        self._return_on_first_completed = return_on_first_completed

    def run(self) -> None:
        context = get_context()
        inside = _Threads(self._nodes, context)
        needed = 1 if self._return_on_first_completed else len(self._nodes)
        # Not `subscribe`: whoever runs this node must know that it ends by itself.
        forget = context.stop.on_stop(lambda: inside.announce_stop(context.stop.reason))
        try:
            inside.run(needed)
        finally:
            forget()


@final
class _Threads:
    """The threads of one colocation."""

    def __init__(self, nodes: Sequence[Node[Any]], context: NodeContext) -> None:
        self._contexts = [replace(context, stop=StopToken(context.stop.request)) for _ in nodes]
        self._changed = threading.Condition()
        self._stopping = False
        self._results: list[BaseException | None] = []
        self._threads = [
            threading.Thread(target=self._run_one, args=(node, inner), name=f"{context.name} part {i}", daemon=True)
            for i, (node, inner) in enumerate(zip(nodes, self._contexts, strict=True))
        ]

    def announce_stop(self, reason: str) -> None:
        """Tells every node inside."""
        for context in self._contexts:
            context.stop.set(reason)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def run(self, needed: int) -> None:
        """Blocks until `needed` nodes have ended, or one has failed; then tells the others to end."""
        try:
            for thread in self._threads:
                thread.start()
            self._wait(lambda: self._stopping or self._is_over(needed))
            # A call that the stop woke may end a node in a moment; who never looks cannot end by itself.
            if not self._wait(lambda: self._is_over(needed), _NUDGE_S):
                self._interrupt(unaware_only=True)
                self._wait(lambda: self._is_over(needed))
        except BaseException:  # the launcher's interrupt: the notice is over
            self._interrupt()
            raise
        self.announce_stop("the colocation has ended")
        self._interrupt(unaware_only=True)
        for error in self._results:
            if error is not None:
                raise error

    def _wait(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        with self._changed:
            return SYSTEM_CLOCK.wait_for(self._changed, predicate, timeout_s)

    def _is_over(self, needed: int) -> bool:
        return len(self._results) >= needed or any(error is not None for error in self._results)

    def _interrupt(self, *, unaware_only: bool = False) -> None:
        for thread, context in zip(self._threads, self._contexts, strict=True):
            if not (unaware_only and context.stop.observed):
                interrupt_thread(thread)

    def _run_one(self, node: Node[Any], context: NodeContext) -> None:
        error: BaseException | None = None
        try:
            with bind_context(context):
                node.run()
        except SystemExit as exit_request:
            error = exit_request if exit_request.code else None
        except BaseException as raised:  # noqa: BLE001 - handed to the thread that waits, which raises it
            error = raised
        context.stop.join_handlers(None)  # its thread is a daemon, and whoever runs the colocation keeps the notice
        with self._changed:
            self._results.append(error)
            self._changed.notify_all()


@final
class MultiProcessingColocation(_Colocation):
    """Runs several nodes as processes of one node, whatever the program was launched as.

    Args:
        nodes: nodes that are not added to the program themselves; their handles are given to others as usual.
        num_retries_on_failure: how often a node inside that fails is run again; after that its failure is this node's.
    """

    def __init__(self, nodes: Sequence[Node[Any]], num_retries_on_failure: int = 0) -> None:
        super().__init__(nodes)
        if not isinstance(num_retries_on_failure, int) or num_retries_on_failure < 0:
            raise ProgramError(
                f"num_retries_on_failure is a whole number of at least 0, got {num_retries_on_failure!r}"
            )
        self._num_retries_on_failure = num_retries_on_failure

    def run(self) -> None:
        context = get_context()
        if context.run_in_processes is None:
            raise ProgramError(f"{type(self).__name__} cannot run under the launch type {context.launch_type!r}")
        context.run_in_processes(
            [
                Executable(
                    label=f"{context.label}.{context.index}",
                    index=i,
                    group_size=len(self._nodes),
                    entry=node.run,
                    addresses=node.addresses,
                    max_restarts=self._num_retries_on_failure,
                )
                for i, node in enumerate(self._nodes)
            ]
        )
