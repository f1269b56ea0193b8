"""The kinds of launch, by Launchpad's names."""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from typing import Any

from topology.errors import LaunchError

__all__ = ["LaunchType", "flag_value", "flags_are_parsed", "parse_launch_type"]


class LaunchType(str, enum.Enum):  # noqa: UP042 - programs compare and format these as Launchpad's enum, not as StrEnum
    """How a program runs. The test forms keep their run directory only while they run."""

    LOCAL_MULTI_THREADING = "local_mt"
    LOCAL_MULTI_PROCESSING = "local_mp"
    TEST_MULTI_THREADING = "test_mt"
    TEST_MULTI_PROCESSING = "test_mp"
    LOCAL_DOCKER = "local_docker"
    VERTEX_AI = "vertex_ai"

    @property
    def is_test(self) -> bool:
        """Whether the run directory is removed at the end."""
        return self.value.startswith("test")


_ELSEWHERE = frozenset({LaunchType.LOCAL_DOCKER, LaunchType.VERTEX_AI})


def parse_launch_type(value: object, others: Sequence[str] = ()) -> LaunchType:
    """The launch type that `launch()` was asked for; None is the flag --lp_launch_type, else local_mt.

    Args:
        value: what was asked for.
        others: names of launchers of other packages, for the message.

    Raises:
        LaunchError: unknown, or not available here.
    """
    if value is None:
        value = flag_value("lp_launch_type") or LaunchType.LOCAL_MULTI_THREADING
    try:
        found = LaunchType(getattr(value, "value", value))
    except ValueError:
        known = ", ".join([*(kind.value for kind in LaunchType if kind not in _ELSEWHERE), *others])
        raise LaunchError(
            f"Unknown launch type {value!r}: use one of {known}, or a launcher such as lp.Processes()"
        ) from None
    if found in _ELSEWHERE:
        raise LaunchError(
            f"The launch type {found.value} is not supported. Here are local_mt, local_mp, test_mt and test_mp; "
            "to run in a container, launch as local_mp inside it."
        )
    return found


def flag_value(name: str) -> Any:
    """The value of an absl flag; None when absl is not loaded, its flags are not parsed, or nobody defined this one."""
    if not flags_are_parsed():
        return None
    flags = sys.modules["absl.flags"].FLAGS
    return flags[name].value if name in flags else None


def flags_are_parsed() -> bool:
    """Whether this process uses absl, and absl has read its command line."""
    absl_flags = sys.modules.get("absl.flags")
    return absl_flags is not None and bool(absl_flags.FLAGS.is_parsed())
