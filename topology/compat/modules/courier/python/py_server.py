"""`courier.python.py_server`."""

from topology.compat.courier_server import Server

__all__ = ["Server"]
