"""`launchpad.program_stopper`."""
