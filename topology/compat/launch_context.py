"""What a node knows of its launch, as Launchpad's programs ask for it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, final

from launch.launch_types import LaunchType
from topology import context as our_context
from topology.stopping import stop

__all__ = ["LaunchContext", "get_context", "set_context"]


@final
class LaunchContext:
    """Launch type, configuration and stopper. Made by `get_context()`, or by hand and then initialized."""

    def __init__(self) -> None:
        self._values: tuple[LaunchType, Any, Callable[[], None]] | None = None

    def initialize(
        self, launch_type: LaunchType, launch_config: Any, program_stopper: Callable[[], None] | None = None
    ) -> None:
        """Sets what the properties give."""
        self._values = launch_type, launch_config, program_stopper or stop

    def _get(self) -> tuple[LaunchType, Any, Callable[[], None]]:
        if self._values is None:
            raise RuntimeError("the launch context is not initialized yet: that happens when the node is launched")
        return self._values

    @property
    def launch_type(self) -> LaunchType:
        """How the program was launched."""
        return self._get()[0]

    @property
    def launch_config(self) -> Any:
        """None here: `local_resources` are the launcher's."""
        return self._get()[1]

    @property
    def program_stopper(self) -> Callable[[], None]:
        """Stops the program."""
        return self._get()[2]


_set_by_hand: ContextVar[LaunchContext | None] = ContextVar("topology_launch_context", default=None)


def get_context() -> LaunchContext:
    """Of the node that calls. Raises `RuntimeError` outside nodes."""
    by_hand = _set_by_hand.get()
    if by_hand is not None:
        return by_hand
    context = LaunchContext()
    context.initialize(LaunchType(our_context.get_context().launch_type), None)
    return context


def set_context(context: LaunchContext | None) -> None:
    """What `get_context` gives in this thread from now on."""
    _set_by_hand.set(context)
