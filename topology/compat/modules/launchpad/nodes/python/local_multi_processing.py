"""`launchpad.nodes.python.local_multi_processing`."""

from topology import PythonProcess

__all__ = ["PythonProcess", "StrOrFloat"]

StrOrFloat = str | float
