"""`launchpad.nodes.reverb`."""
