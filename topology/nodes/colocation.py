"""Several nodes in one executable: as threads of one process, or as processes of one node."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, final

from topology.context import get_context
from topology.errors import ProgramError
from topology.executable import Executable
from topology.interrupt import interrupt_thread
from topology.node import Node, NodeDescription

__all__ = ["MultiProcessingColocation", "MultiThreadingColocation"]


class _Colocation(Node[None]):
    def __init__(self, nodes: Sequence[Node[Any]]) -> None:
        super().__init__()
        if not nodes:
            raise ProgramError(f"{type(self).__name__}() takes at least one node, got none")
        self._nodes = list(nodes)

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

    Ends when all of them have ended, or the first one if asked; the first failure of a node inside is its own.

    Args:
        nodes: nodes that are not added to the program themselves; their handles are given to others as usual.
        return_on_first_completed: end as soon as one of them has.
    """

    def __init__(self, nodes: Sequence[Node[Any]], return_on_first_completed: bool = False) -> None:
        super().__init__(nodes)
        self._return_on_first_completed = return_on_first_completed

    def run(self) -> None:
        changed = threading.Condition()
        results: list[BaseException | None] = []

        def run_one(node: Node[Any]) -> None:
            error: BaseException | None = None
            try:
                node.run()
            except SystemExit as exit_request:
                error = exit_request if exit_request.code else None
            except BaseException as raised:  # noqa: BLE001 - handed to the thread that waits, which raises it
                error = raised
            with changed:
                results.append(error)
                changed.notify_all()

        threads = [
            threading.Thread(target=run_one, args=(node,), name=f"colocated-{i}", daemon=True)
            for i, node in enumerate(self._nodes)
        ]
        needed = 1 if self._return_on_first_completed else len(threads)
        try:
            for thread in threads:
                thread.start()
            with changed:
                changed.wait_for(lambda: len(results) >= needed or any(error is not None for error in results))
        except BaseException:
            for thread in threads:
                interrupt_thread(thread)
            raise
        for error in results:
            if error is not None:
                raise error


@final
class MultiProcessingColocation(_Colocation):
    """Runs several nodes as processes of one node, whatever the program was launched as.

    Args:
        nodes: nodes that are not added to the program themselves; their handles are given to others as usual.
        num_retries_on_failure: how often a node inside that fails is run again; after that its failure is this node's.
    """

    def __init__(self, nodes: Sequence[Node[Any]], num_retries_on_failure: int = 0) -> None:
        super().__init__(nodes)
        if num_retries_on_failure < 0:
            raise ProgramError(f"num_retries_on_failure must be at least 0, got {num_retries_on_failure}")
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
