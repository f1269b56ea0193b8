"""`courier` on rl-topology."""

from courier.python.client import Client, list_methods
from courier.python.py_server import Server
from topology.compat.instead import attribute_of

__getattr__ = attribute_of("courier")
