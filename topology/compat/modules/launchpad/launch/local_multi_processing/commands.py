"""`launchpad.launch.local_multi_processing.commands`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Command"]


@dataclass
class Command:
    """A command line, what it changes of the environment, and its name."""

    command_as_list: Sequence[str]
    env_overrides: Mapping[str, Any]
    title: str
