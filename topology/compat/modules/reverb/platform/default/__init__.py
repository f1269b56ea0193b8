"""`reverb.platform.default`."""

from topology.compat.reverb.missing import lazily

__getattr__ = lazily(__name__, {})
