"""`launchpad.nodes.python.addressing`."""

from collections.abc import Iterable

from launchpad.address import SimpleLocalAddressBuilder
from topology.address import Address

__all__ = ["bind_addresses_local"]


def bind_addresses_local(addresses: Iterable[Address]) -> None:
    """Gives each a free port of this machine."""
    for address in addresses:
        address.bind(SimpleLocalAddressBuilder())
