"""`launchpad.nodes.python`."""
