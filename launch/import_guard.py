"""Keeps a module that launches when it is imported from launching itself again and again.

A node's process, or the command, imports the module that declares the program. If its last lines launch, every node
would start the whole program once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from topology.errors import ProgramError

__all__ = ["importing", "refuse_while_importing"]

_importing: ContextVar[str | None] = ContextVar("topology_importing", default=None)


@contextlib.contextmanager
def importing(what: str) -> Iterator[None]:
    """Inside this block code of users is imported, and must not launch. `what` is for the message."""
    token = _importing.set(what)
    try:
        yield
    finally:
        _importing.reset(token)


def refuse_while_importing() -> None:
    """Raises when called inside `importing`.

    Raises:
        ProgramError: the module that is being imported launches a program.
    """
    what = _importing.get()
    if what is not None:
        raise ProgramError(
            f"lp.launch() was called while {what}: a module that declares a program is imported again by its nodes and "
            'by the command. Put the launch under `if __name__ == "__main__":`'
        )
