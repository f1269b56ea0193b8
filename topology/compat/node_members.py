"""What the nodes and handles of Launchpad have besides what ours have; see `members`.

With these, kinds of nodes and handles that programs derive from Launchpad's work: their `run` is what is run here.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, final

from launch.launch_types import LaunchType
from topology.address import Address
from topology.compat.additions import add
from topology.compat.computed import Computed
from topology.errors import LaunchError, ProgramError
from topology.handle import Handle
from topology.node import Node, NodeDescription
from topology.nodes.colocation import MultiProcessingColocation, MultiThreadingColocation
from topology.nodes.courier import server as courier_server
from topology.nodes.courier.node import CacherNode, CourierNode
from topology.nodes.python import PyClassNode, PyNode
from topology.nodes.replay.node import ReverbNode

__all__ = ["add_node_members"]

_logger = logging.getLogger(__name__)

_THREADS = {LaunchType.LOCAL_MULTI_THREADING, LaunchType.TEST_MULTI_THREADING}
_PROCESSES = {LaunchType.LOCAL_MULTI_PROCESSING, LaunchType.TEST_MULTI_PROCESSING}

_PYTHON = (PyClassNode, CacherNode, ReverbNode, MultiThreadingColocation, MultiProcessingColocation)

_replay_servers: weakref.WeakKeyDictionary[ReverbNode, Any] = weakref.WeakKeyDictionary()
"""The servers of the replay nodes that run in this process."""


def add_node_members() -> None:
    """Adds them with `additions.add`."""
    add(Handle, address=property(_address_of), connect=_nothing, transform=lambda _, executables: executables)
    add(
        Node,
        describe=lambda _: NodeDescription(arguments={}),
        run=_refuse_to_run,
        function=property(lambda self: self.run),
        bind_addresses=_nothing,
        to_executables=staticmethod(_to_executables),
        default_launch_config=classmethod(_default_launch_config),
        _input_handles=Computed(lambda self: [handle for _, handle in self.input_handles]),
        _launch_context=Computed(_launch_context),
        _track_handle=lambda _, handle: handle,
        launch_context=property(_launch_context),
    )
    add(PyNode, __subclasshook__=classmethod(_is_python), function=property(lambda self: self._call))
    add(PyClassNode, _call=_call, _construct_instance=_construct_instance, run=_run_instance)
    for colocation in (MultiThreadingColocation, MultiProcessingColocation):
        add(colocation, __init__=_construct_colocation(colocation), add_node=_add_to_colocation)
        add(colocation, run=_run_colocation(colocation.run))
    for served in (CourierNode, ReverbNode):
        add(served, __init__=_construct_served(served))
    add(CourierNode, courier_address=property(lambda self: self._address), _server=Computed(_courier_server_of))
    add(
        ReverbNode,
        reverb_address=property(lambda self: self._address),
        _checkpoint_time_delta_minutes=property(lambda self: None if self._period_s is None else self._period_s / 60),
        _serve=_serve_and_show(ReverbNode._serve),  # noqa: SLF001 - wrapped
        _server=Computed(_replay_servers.get),
    )


def _is_python(kind: type[PyNode], other: type) -> Any:
    """There all nodes that run Python are derived from `PyNode`."""
    return True if kind is PyNode and issubclass(other, _PYTHON) else NotImplemented


def _nothing(*_: object, **__: object) -> None:
    """A part of the original's launch that has no counterpart here."""


def _address_of(handle: Any) -> Address | None:
    """Where the handle of a program's own kind keeps it, as the original's handles do."""
    address = getattr(handle, "_address", None)
    return address if isinstance(address, Address) else None


def _launch_context(_: Node[Any]) -> Any:
    from launchpad.context import get_context  # type: ignore[import-not-found]  # the one that is provided

    return get_context()


def _refuse_to_run(node: Node[Any]) -> NoReturn:
    raise ProgramError(
        f"{type(node).__name__} has no run(), and that is what is run here; the to_executables() of a node is not "
        "called. Derive it from lp.PyNode, and give it a run()"
    )


def _to_executables(nodes: Sequence[Any], label: str, launch_context: Any) -> list[Callable[[], Any]]:
    kind = LaunchType(getattr(launch_context.launch_type, "value", launch_context.launch_type))
    if kind in _THREADS:
        return [node.function for node in nodes]
    raise LaunchError(
        f"to_executables() was asked for the {len(nodes)} nodes of {label!r} as {kind.value}: here nodes do not become "
        "commands. lp.launch(program) runs them as processes; docs/launchers.md shows how to write a launcher"
    )


def _default_launch_config(kind: type[Node[Any]], launch_type: Any) -> Any:
    from topology import PythonProcess

    asked = LaunchType(getattr(launch_type, "value", launch_type))
    if asked in _THREADS:
        return None
    if asked in _PROCESSES:
        return PythonProcess()
    raise LaunchError(f"{kind.__name__} has no launch configuration for {asked.value}: that is not supported here")


# --- the objects of nodes -------------------------------------------------------------------------------------------


@final
class _Made:
    """The object that a node has made in this process. Tests ask a node for the one that runs, or that is to run."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._get: Callable[[], Any] = lambda: None
        self.is_running = False

    def get(self) -> Any:
        return self._get()

    def put(self, instance: Any, *, keep: bool) -> Any:
        """Remembers it as long as somebody uses it, or as long as the node is there."""
        self._get = lambda: instance
        if not keep:
            try:
                self._get = weakref.ref(instance)
            except TypeError:  # nothing can be said of such objects but that they are there
                _logger.debug("%r cannot be referred to weakly: kept as long as its node", instance)
        return instance


_made: weakref.WeakKeyDictionary[Node[Any], _Made] = weakref.WeakKeyDictionary()
_made_lock = threading.Lock()
_make = PyClassNode._call  # noqa: SLF001 - wrapped


def _made_by(node: PyClassNode[Any]) -> _Made:
    with _made_lock:
        return _made.setdefault(node, _Made())


def _construct_instance(node: PyClassNode[Any]) -> Any:
    """The object of this node: the one that runs in this process; made now when there is none."""
    made = _made_by(node)
    with made.lock:
        instance = made.get()
        if instance is None:
            made.is_running = False
            instance = made.put(_make(node), keep=True)
        return instance


def _call(node: PyClassNode[Any]) -> Any:
    """The object for a run: a new one for each run, but for one that was made by hand before."""
    made = _made_by(node)
    with made.lock:
        instance = None if made.is_running else made.get()
        if instance is None:
            instance = _make(node)
        made.is_running = True
        # A courier node holds its own while it serves. Any other whose `run` is not called has ended at once.
        keep = not node._should_run and not isinstance(node, CourierNode)  # noqa: SLF001
        return made.put(instance, keep=keep)


def _run_instance(node: PyClassNode[Any]) -> None:
    instance = node._call()  # noqa: SLF001 - what this replaces does so
    if not hasattr(instance, "run"):
        _logger.warning("%r has made a %s, which has no run(): the node has ended", node, type(instance).__name__)
    elif node._should_run:  # noqa: SLF001
        instance.run()


# --- servers --------------------------------------------------------------------------------------------------------


def _construct_served(kind: type[CourierNode | ReverbNode]) -> Callable[..., None]:
    """A node whose class has a `run` of its own makes a server of its own, on the port of its address."""
    construct: Callable[..., None] = kind.__init__
    run = kind.run

    def construct_node(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        self._address.needs_port = type(self).run is not run

    construct_node.__wrapped__ = construct  # type: ignore[attr-defined]  # its signature is shown
    return construct_node


def _courier_server_of(node: CourierNode) -> courier_server.Server | None:
    """The server of a node that runs in this process."""
    try:
        place = node._address.resolve()  # noqa: SLF001
    except ProgramError:
        return None
    return next((server for server in list(courier_server._servers) if server.address == place), None)  # noqa: SLF001


def _serve_and_show(serve: Callable[..., None]) -> Callable[..., None]:
    def serve_here(self: ReverbNode, server: Any, context: Any) -> None:
        _replay_servers[self] = server
        try:
            serve(self, server, context)
        finally:
            _replay_servers.pop(self, None)

    return serve_here


# --- colocations ----------------------------------------------------------------------------------------------------


def _construct_colocation(kind: type) -> Callable[..., None]:
    construct: Callable[..., None] = kind.__init__  # type: ignore[misc]  # wrapped

    def construct_node(self: Any, nodes: Sequence[Node[Any]] = (), *args: Any, **kwargs: Any) -> None:
        given = list(nodes) if isinstance(nodes, Iterable) else nodes
        construct(self, [PyNode(_nothing)] if given == [] else given, *args, **kwargs)
        if given == []:  # they come by add_node()
            self.nodes.clear()

    construct_node.__wrapped__ = construct  # type: ignore[attr-defined]  # its signature is shown
    return construct_node


def _add_to_colocation(colocation: Any, node: Node[Any]) -> Any:
    name = type(colocation).__name__
    if not isinstance(node, Node):
        raise ValueError(  # noqa: TRY004 - as in the original
            f"{name} only works with PyNodes, CourierNodes and their like, got {node!r}"
        )
    colocation.nodes.append(node)
    return node.create_handle()


def _run_colocation(run: Callable[..., None]) -> Callable[..., None]:
    def run_nodes(self: Any) -> None:
        if not self.nodes:
            raise ValueError(f"{type(self).__name__} requires at least one node.")
        run(self)

    return run_nodes
