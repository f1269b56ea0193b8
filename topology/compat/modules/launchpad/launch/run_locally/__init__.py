"""`launchpad.launch.run_locally`."""
