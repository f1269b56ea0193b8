"""`courier.python.py_server`."""

from topology.nodes.courier import Server

__all__ = ["Server"]
