"""Settings of an agent as options of the command: `topology launch ppo --num-workers 4` sets `num_workers`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from launch.settings import nearest
from topology.errors import ProgramError

__all__ = ["OPEN", "parse_options"]

OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that leaves the options it does not know to `parse_options`."""


def parse_options(arguments: Iterable[str], settings: Collection[str], options: Collection[str]) -> dict[str, str]:
    """Values by setting, of what a command did not know: `--name VALUE`, `--name=VALUE`; `--name` alone is true.

    Example:
        >>> parse_options(["--num-workers", "4", "--seed=1", "--fast"], ["num_workers", "seed", "fast"], [])
        {'num_workers': '4', 'seed': '1', 'fast': 'true'}

    Args:
        arguments: what is left of the command line.
        settings: names of those of the agent.
        options: those of the command itself, such as "--seed", for what was meant.

    Raises:
        ProgramError: what is no option, or one that neither the command nor the agent has.
    """
    texts: dict[str, str] = {}
    waiting: str | None = None
    for argument in arguments:
        if argument.startswith("--") and len(argument) > 2:
            option, equals, value = argument.partition("=")
            waiting = option.removeprefix("--").replace("-", "_")
            if waiting not in settings:
                # Without the dashes, which all of them have: they would make any two alike.
                known = {name.replace("_", "-") for name in settings} | {name.removeprefix("--") for name in options}
                raise ProgramError(
                    f"no such option: {option}{nearest(option.removeprefix('--'), known)}. Neither the command nor the "
                    "agent has it; give the agent's name first, then its settings"
                )
            texts[waiting] = value if equals else "true"
            waiting = None if equals else waiting
        elif waiting is not None:
            texts[waiting] = argument
            waiting = None
        else:
            raise ProgramError(f"unexpected argument {argument!r}: settings are given as --name VALUE")
    return texts
