"""Launchers by name: those of this package, and those that other packages offer."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from launch.launch_types import LaunchType, parse_launch_type
from launch.launcher import Launcher
from launch.processes import Processes
from launch.threads import Threads
from topology.errors import LaunchError

__all__ = ["GROUP", "find_launcher", "launcher_names", "launcher_of_run"]

GROUP = "topology.launchers"
"""The entry point group that packages put their launchers in."""

_OURS: dict[str, Callable[[], Launcher]] = {
    LaunchType.LOCAL_MULTI_THREADING.value: Threads,
    LaunchType.LOCAL_MULTI_PROCESSING.value: Processes,
    LaunchType.TEST_MULTI_THREADING.value: Threads,
    LaunchType.TEST_MULTI_PROCESSING.value: Processes,
}


def launcher_names() -> list[str]:
    """Every name that `find_launcher` takes: ours, then those of other packages."""
    return [*_OURS, *sorted(_others())]


def find_launcher(asked: object) -> tuple[Launcher, str]:
    """The launcher that `launch()` was asked for, and the launch type that nodes see.

    Args:
        asked: a launcher, a `LaunchType`, or a name; None is the flag --lp_launch_type, else local_mt.

    Raises:
        LaunchError: there is no such launcher, or it cannot be loaded.
    """
    if isinstance(asked, type):
        raise LaunchError(f"{asked.__name__} is a class: give an object, such as lp.Processes() or lp.Threads()")
    if isinstance(asked, Launcher):
        return asked, asked.launch_type
    if isinstance(asked, str) and asked not in _OURS and (other := _others().get(asked)) is not None:
        return _load(other), asked
    kind = parse_launch_type(asked, others=sorted(_others()) if isinstance(asked, str) and asked not in _OURS else ())
    return _OURS[kind.value](), kind.value


def launcher_of_run(launch_type: str) -> Launcher:
    """The launcher that a run was launched with, or one that knows the resources of this package alone."""
    try:
        return find_launcher(launch_type)[0]
    except LaunchError:
        return Processes()


def _others() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in _OURS}


def _load(entry: EntryPoint) -> Launcher:
    try:
        made = entry.load()()
    except Exception as error:
        raise LaunchError(
            f"The launcher {entry.name!r} ({entry.value}) cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, Launcher):
        raise LaunchError(f"The launcher {entry.name!r} ({entry.value}) is {made!r}, not a launch.Launcher")
    return made
