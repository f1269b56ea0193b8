"""`launchpad` on rl-topology: the same names, and those of `topology` besides."""

from launchpad import context, flags
from launchpad.address import AbstractAddressBuilder, SimpleLocalAddressBuilder
from launchpad.context import LaunchType, is_local_launch, is_local_launch_or_test
from launchpad.launch.launch import launch  # after the package of that name, which else would take the name later
from launchpad.nodes.dereference import Deferred
from topology import (
    Address,
    CacherNode,
    CourierClient,
    CourierHandle,
    CourierNode,
    MultiProcessingColocation,
    MultiThreadingColocation,
    Program,
    PyClassNode,
    PyNode,
    PythonProcess,
    ReverbHandle,
    ReverbNode,
    StartBarrier,
    get_port_from_address,
    make_program,
    make_program_stopper,
    register_stop_handler,
    stop,
    stop_event,
    unregister_stop_handler,
)
from topology.compat.batching import batched_handler
from topology.compat.docker import DockerConfig
from topology.compat.instead import NAMES, attribute_of
from topology.compat.members import add_members
from topology.compat.stopping import wait_for_stop

add_members()

LAUNCH_TYPE = flags.LAUNCH_TYPE

__getattr__ = attribute_of("launchpad", NAMES)
