"""`reverb.cc`: of the original's protocol buffers, those that programs build."""

from topology.compat.reverb.missing import lazily

__getattr__ = lazily(__name__, {})
