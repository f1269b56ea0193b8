"""`launchpad.launch.xm_docker`."""
