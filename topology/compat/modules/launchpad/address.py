"""`launchpad.address`."""

from topology.address import Address, get_port_from_address
from topology.compat.by_hand import AbstractAddressBuilder, SimpleLocalAddressBuilder

__all__ = ["AbstractAddressBuilder", "Address", "SimpleLocalAddressBuilder", "get_port_from_address"]
