"""`reverb.platform.default`."""
