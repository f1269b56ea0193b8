"""`launchpad.nodes.courier`."""
