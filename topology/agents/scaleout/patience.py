"""The end of all patience with servers: who waited for one in vain is not started again to wait once more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from topology.nodes.store.policy_patience import PASSING

__all__ = ["patience_ends"]


@contextlib.contextmanager
def patience_ends() -> Iterator[None]:
    """Says of a store that was waited for in vain, within the block, that this is final.

    `server_patience_s` is how long a run waits; as often as its nodes may be started again would be many times that.
    """
    try:
        yield
    except PASSING as error:
        error.is_final = True
        raise
