"""`launchpad.launch`: deploying programs."""
