"""`launchpad.program_stopper.program_stopper`."""

from topology import make_program_stopper

__all__ = ["make_program_stopper"]
