"""`launchpad.nodes.python.node`."""

from typing import TypeVar

from launchpad.nodes.base import HandleType
from topology import PyClassNode, PyNode

__all__ = ["HandleType", "PyClassNode", "PyNode", "ReturnType", "T", "WorkerType"]

T = TypeVar("T")
ReturnType = TypeVar("ReturnType")
WorkerType = TypeVar("WorkerType")
