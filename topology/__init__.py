"""Declare a distributed reinforcement-learning program as a graph; launch it anywhere.

    import topology as lp

    program = lp.Program("pair")
    with program.group("producer"):
        producer = program.add_node(lp.CourierNode(Producer))
    with program.group("consumer"):
        program.add_node(lp.CourierNode(Consumer, producer))
    lp.launch(program, lp.LaunchType.LOCAL_MULTI_PROCESSING).wait()

The modules directly in this package are the kernel: they describe a program. They may use the standard library and
cloudpickle, and start no thread or process and open nothing. Node kinds live in `topology.nodes`, agents in
`topology.agents`, environments in `topology.environments`; the package `launch` runs programs. This door loads all
of them when they are asked for, so that `import topology` stays light.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("rl-topology needs Linux or macOS: on Windows it runs in the Windows Subsystem for Linux (WSL)")

from topology._version import __version__
from topology.address import Address, get_port_from_address
from topology.context import NodeContext, get_context
from topology.handle import Deferred, Handle
from topology.launch_package import import_launch
from topology.node import Node
from topology.program import Program, make_program
from topology.stopping import (
    make_program_stopper,
    register_stop_handler,
    stop,
    stop_event,
    unregister_stop_handler,
    wait_for_stop,
)

if TYPE_CHECKING:
    from topology.nodes.colocation import MultiProcessingColocation, MultiThreadingColocation
    from topology.nodes.courier.batching import batched_handler
    from topology.nodes.courier.client import Client as CourierClient
    from topology.nodes.courier.node import CacherNode, CourierHandle, CourierNode
    from topology.nodes.courier.start_barrier import StartBarrier
    from topology.nodes.python import PyClassNode, PyNode
    from topology.nodes.replay.node import ReverbHandle, ReverbNode

__all__ = [
    "Address",
    "CacherNode",
    "CourierClient",
    "CourierHandle",
    "CourierNode",
    "Deferred",
    "Handle",
    "MultiProcessingColocation",
    "MultiThreadingColocation",
    "Node",
    "NodeContext",
    "Program",
    "PyClassNode",
    "PyNode",
    "ReverbHandle",
    "ReverbNode",
    "StartBarrier",
    "__version__",
    "batched_handler",
    "get_context",
    "get_port_from_address",
    "launch",
    "make_program",
    "make_program_stopper",
    "register_stop_handler",
    "stop",
    "stop_event",
    "unregister_stop_handler",
    "wait_for_stop",
]

# Names that live in other rooms. `launch` is reached by its import name only: the kernel must not depend on it.
_ELSEWHERE = {
    "CacherNode": ("topology.nodes.courier.node", "CacherNode"),
    "CourierClient": ("topology.nodes.courier.client", "Client"),
    "CourierHandle": ("topology.nodes.courier.node", "CourierHandle"),
    "CourierNode": ("topology.nodes.courier.node", "CourierNode"),
    "LaunchType": ("launch", "LaunchType"),
    "MultiProcessingColocation": ("topology.nodes.colocation", "MultiProcessingColocation"),
    "MultiThreadingColocation": ("topology.nodes.colocation", "MultiThreadingColocation"),
    "Processes": ("launch", "Processes"),
    "PyClassNode": ("topology.nodes.python", "PyClassNode"),
    "PyNode": ("topology.nodes.python", "PyNode"),
    "PythonProcess": ("launch", "PythonProcess"),
    "ReverbHandle": ("topology.nodes.replay.node", "ReverbHandle"),
    "ReverbNode": ("topology.nodes.replay.node", "ReverbNode"),
    "Run": ("launch", "Run"),
    "StartBarrier": ("topology.nodes.courier.start_barrier", "StartBarrier"),
    "Threads": ("launch", "Threads"),
    "batched_handler": ("topology.nodes.courier.batching", "batched_handler"),
    "gpu_map": ("launch", "gpu_map"),
}


def launch(*args: Any, **kwargs: Any) -> Any:
    """Deploys a program; see `launch.launch`, whose arguments these are. Returns a `Run`."""
    return import_launch().launch(*args, **kwargs)


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'topology' has no attribute {name!r}")
    module, attribute = _ELSEWHERE[name]
    value = getattr(import_launch() if module == "launch" else importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ELSEWHERE})
