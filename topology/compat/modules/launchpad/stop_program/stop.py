"""`launchpad.stop_program.stop`."""

from topology import stop

__all__ = ["stop"]
