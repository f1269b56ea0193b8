"""`launchpad.launch.worker_manager_v2`: the same as the first."""

from topology import register_stop_handler, stop_event, unregister_stop_handler
from topology.compat.stopping import wait_for_stop
from topology.compat.worker_manager import ThreadWorker, WorkerManager, get_worker_manager

__all__ = [
    "ThreadWorker",
    "WorkerManager",
    "get_worker_manager",
    "register_stop_handler",
    "stop_event",
    "unregister_stop_handler",
    "wait_for_stop",
]
