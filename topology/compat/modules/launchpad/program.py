"""`launchpad.program`."""

from topology.handle import Handle
from topology.program import Program, make_program

__all__ = ["HandleType", "Program", "make_program"]

HandleType = Handle
