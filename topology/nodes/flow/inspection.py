"""Looking at a plan without running it: while one is built to be looked at, nothing starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, final

__all__ = ["Inert", "inspecting", "inspection"]

_inspecting: ContextVar[bool] = ContextVar("topology_flow_inspecting", default=False)


def inspecting() -> bool:
    """Whether a plan is being built only to be looked at."""
    return _inspecting.get()


@contextmanager
def inspection() -> Iterator[None]:
    """Plans built in this block start no threads and call no workers."""
    token = _inspecting.set(True)
    try:
        yield
    finally:
        _inspecting.reset(token)


@final
class Inert:
    """Stands for the local worker of a plan that is looked at: has every attribute, does nothing."""

    weights_version = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Inert()

    def __iter__(self) -> Iterator[Any]:
        return iter(())
