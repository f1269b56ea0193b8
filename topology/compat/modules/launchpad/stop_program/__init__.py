"""`launchpad.stop_program`."""
