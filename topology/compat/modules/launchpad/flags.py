"""Launchpad's command line flags, where absl is installed. `launch()` reads those that mean something here."""

from importlib.util import find_spec
from typing import Any

from launch.launch_types import LaunchType

__all__ = ["FLAGS", "LAUNCH_TYPE", "LP_TERMINATION_NOTICE_SECS"]

FLAGS: Any = None
LAUNCH_TYPE: Any = None
LP_TERMINATION_NOTICE_SECS: Any = None

if find_spec("absl") is not None:
    from absl import flags

    FLAGS = flags.FLAGS
    LAUNCH_TYPE = flags.DEFINE_enum(
        "lp_launch_type",
        LaunchType.LOCAL_MULTI_THREADING.value,
        [kind.value for kind in LaunchType],
        "How launch() deploys a program that does not say so itself.",
        allow_override=True,  # by a program that defines it once more, with another default
    )
    LP_TERMINATION_NOTICE_SECS = flags.DEFINE_integer(
        "lp_termination_notice_secs", 10, "Seconds that nodes are given to end by themselves after a stop."
    )
    flags.DEFINE_bool("lp_worker_manager_registers_signals", True, "Accepted; signals are always taken.")
    flags.DEFINE_bool("lp_worker_manager_v2", False, "Accepted; there is one supervisor.")
    flags.DEFINE_string("tmux_open_window", None, "Window of a new tmux session to switch to.")
    flags.DEFINE_string("tmux_session_name", "launchpad", "Name of a new tmux session.")
