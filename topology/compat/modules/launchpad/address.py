"""`launchpad.address`."""

from topology.address import Address, get_port_from_address

__all__ = ["Address", "get_port_from_address"]
