"""A node with a handle that needs no service."""

from __future__ import annotations

from typing import Any

import pytest

from topology.address import Address
from topology.handle import Handle
from topology.nodes.python import PyClassNode


class ServiceHandle(Handle[Any]):
    def __init__(self, address: Address) -> None:
        self._address = address

    @property
    def address(self) -> Address:
        return self._address

    def dereference(self) -> Any:
        return ["client of", self._address.resolve()]


class ServiceNode(PyClassNode[ServiceHandle]):
    def __init__(self, constructor: Any = dict, *args: Any, **kwargs: Any) -> None:
        super().__init__(constructor, *args, **kwargs)
        self.own_address = Address("service", needs_port=False)
        self.allocate_address(self.own_address)

    def create_handle(self) -> ServiceHandle:
        return ServiceHandle(self.own_address)


@pytest.fixture
def service() -> type[ServiceNode]:
    """The class: `service(constructor, *args, **kwargs)` is a node."""
    return ServiceNode
