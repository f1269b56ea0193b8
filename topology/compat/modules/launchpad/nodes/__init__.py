"""`launchpad.nodes`: the kinds of nodes."""
