"""`reverb.client`."""

from topology.compat.reverb.client import Client
from topology.nodes.replay.legacy_writer import Writer

__all__ = ["Client", "Writer"]
