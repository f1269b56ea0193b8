"""`reverb.server`."""

from topology.compat.reverb.server import Server, Table, TableExtensionBase

__all__ = ["Server", "Table", "TableExtensionBase"]
