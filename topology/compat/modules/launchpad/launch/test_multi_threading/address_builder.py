"""`launchpad.launch.test_multi_threading.address_builder`."""

from topology.compat.by_hand import bind_addresses

__all__ = ["bind_addresses"]
