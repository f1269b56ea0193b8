"""What the classes of Launchpad and Courier have besides what ours have, added to ours while those are provided.

To ours, not to subclasses: `isinstance(handle.dereference(), courier.Client)` is to be true, and handles give clients
of ours. Nothing here changes what a member of ours does for a program that does not use these.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Any, NoReturn, final

from launch.run import Run
from topology.address import Address, register_endpoints
from topology.compat.additions import add, with_additions
from topology.compat.node_members import add_node_members
from topology.context import StopToken
from topology.errors import CourierError, NodeFailed
from topology.node import Node
from topology.nodes.colocation import MultiProcessingColocation, MultiThreadingColocation
from topology.nodes.courier import Client, Server
from topology.nodes.courier.core import Core
from topology.nodes.courier.node import CacherNode, CourierHandle, CourierNode
from topology.nodes.courier.options import ClientOptions, seconds
from topology.nodes.python import PyClassNode, PyNode
from topology.nodes.replay.node import ReverbHandle, ReverbNode
from topology.program import Program

__all__ = ["add_members"]


def add_members() -> None:
    """Adds them, now and whenever the modules are provided again."""
    with_additions(_add)


def _add() -> None:
    for kind in (
        PyNode, PyClassNode, CourierNode, CourierHandle, CacherNode, ReverbNode, ReverbHandle,
        MultiThreadingColocation, MultiProcessingColocation, Client, Server,
    ):  # fmt: skip
        add(kind, __class_getitem__=classmethod(GenericAlias))  # CourierNode[Worker], PyClassNode[Handle, Worker]
    add_node_members()
    add(
        Address,
        __init__=_construct_address,
        name=property(lambda self: self.service or None),
        bind=_bind_address,
        assign=lambda self, node: node.allocate_address(self),
    )
    add(Program, add_node=_add_node)
    add(Client, __init__=_construct_client)
    add(
        Server,
        Bind=_bind,
        BindHandler=_bind_handler,
        BindCacher=_refuse_cacher,
        Unbind=_unbind,
        SetIsHealthy=_set_is_healthy,
        has_started=property(lambda self: self._engine is not None),
    )
    add(
        Run,
        wait=_wait,
        join=lambda self: self.wait(),
        stop_and_wait=lambda self: self.stop(),
        cleanup_after_test=_cleanup_after_test,
        wait_for_stop=lambda self, timeout_secs=None: self.stop_token.wait(timeout_secs),
        stop_event=lambda self: self.stop_token.event,
        _active_workers=property(_active_workers),
    )


def _construct_client(
    client: Client,
    server_address: str,
    compress: bool = False,
    call_timeout: Any = None,
    wait_for_ready: bool = True,
    chunk_tensors: bool = False,
    **options: Any,
) -> None:
    """The original's parameters in the original's order. Nothing is compressed, and tensors travel whole."""
    del compress, chunk_tensors
    options |= {"wait_for_ready": wait_for_ready}
    try:
        _our_client(client, server_address, call_timeout=call_timeout, **options)
    except ValueError:
        if ":" in server_address:
            raise
        # A name, as those of a naming service: no fault yet, but every call fails.
        core = Core(server_address, ClientOptions(call_timeout_s=seconds(call_timeout), **options))
        client._attach(core)  # noqa: SLF001 - what its constructor does next


_our_client = Client.__init__


def _construct_address(address: Address, name: str | None = None, **options: Any) -> None:
    """The original's parameter; and ours, which our nodes use."""
    _our_address(address, options.pop("service", name), **options)


_our_address = Address.__init__


# What a server binds, by the original's names of parameters.


def _bind(server: Server, method_name: str, py_func: Callable[..., Any]) -> None:
    server.bind(method_name, py_func)


def _bind_handler(server: Server, method_name: str, handler: Callable[..., Any]) -> None:
    server.bind(method_name, handler)


def _unbind(server: Server, method_name: str) -> None:
    server.unbind(method_name)


def _set_is_healthy(server: Server, is_healthy: bool) -> None:
    """Nobody asks for it here."""
    del server, is_healthy


def _refuse_cacher(server: Server, *_: Any, **__: Any) -> NoReturn:
    raise CourierError(
        f"{server!r}: BindCacher() is not provided. A node that answers for another is lp.CacherNode(handle, "
        "refresh_interval_ms=, stale_after_ms=)"
    )


def _bind_address(address: Address, address_builder: Any) -> None:
    """Gives the address its endpoint by hand, for nodes that a test runs without a launcher."""
    register_endpoints({address.id: address_builder.build()}, b"", StopToken())


_our_add_node = Program.add_node


def _add_node(program: Program, node: Any, label: str | None = None) -> Any:
    """A node may have several places, if it serves nothing: it runs in each."""
    if id(node) in program._known:  # noqa: SLF001 - what the original does not keep
        if not isinstance(node, Node):
            program._known.discard(id(node))  # noqa: SLF001 - a stand-in of a test
        elif not node.addresses and not node.inner_nodes:
            node = copy.copy(node)
    return _our_add_node(program, node, label)


_our_wait = Run.wait


def _wait(
    run: Run,
    labels_to_wait_for: Sequence[str] | float | None = None,
    timeout: float | bool | None = None,
    *,
    labels: Sequence[str] | float | None = None,
    raise_error: bool = True,
    return_on_first_completed: bool = False,
) -> bool:
    """See `Run.wait`; with the original's parameters, and its text when a process failed."""
    if isinstance(timeout, bool):  # the second parameter there
        raise_error, timeout = timeout, None
    wanted = labels if labels_to_wait_for is None else labels_to_wait_for
    try:
        return _our_wait(
            run, wanted, timeout, raise_error=raise_error, return_on_first_completed=return_on_first_completed
        )
    except NodeFailed as error:
        if error.exit_code is not None:
            error.args = (f"{error.args[0]}\nOne of the workers exited with code {error.exit_code}.", *error.args[1:])
        raise


def _cleanup_after_test(run: Run, test_case: object) -> None:
    del test_case
    run.stop("the test ended")
    run.wait()


@final
class _RunningNode:
    """A node that runs, as the original's list of workers shows it."""

    def __init__(self, run: Run, name: str) -> None:
        self._run = run
        self.name = name

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._run.exit_codes[self.name]

    @property
    def returncode(self) -> int | None:
        """As of `subprocess.Popen`."""
        return self.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Blocks until its group has ended; the exit code."""
        self._run.wait([self.name.rpartition("/")[0]], timeout, raise_error=False)
        return self.poll()


def _active_workers(run: Run) -> dict[str, list[_RunningNode]]:
    """The nodes that run, by label."""
    found: dict[str, list[_RunningNode]] = {}
    for name, state in run.status().items():
        nodes = found.setdefault(name.rpartition("/")[0], [])
        if state in {"pending", "running", "restarting"}:
            nodes.append(_RunningNode(run, name))
    return found
