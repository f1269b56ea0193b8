"""Where the output of nodes goes, by Launchpad's names.

`current_terminal` is the default, with or without a terminal there. `output_to_files` shows nothing but where the logs
are; with $LAUNCHPAD_LOGGING_DIR set they go to a directory of the run there. `tmux_session` opens a session with a
window for every node; it stays when the program has ended. Log files are written in every case. Other terminals that
Launchpad knows are not opened: a warning says so, and output comes to this terminal. $LAUNCHPAD_LAUNCH_LOCAL_TERMINAL
names the choice when the program does not.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from launch.launch_types import flag_value
from launch.output import Terminal
from launch.plan import Plan
from launch.rollback import Rollback
from launch.run_directory import RunDirectory
from topology.errors import LaunchError

__all__ = ["FALLING_BACK", "TERMINALS", "check_terminal", "open_terminal"]

TERMINALS = ("current_terminal", "output_to_files", "tmux_session")
FALLING_BACK = ("gnome-terminal", "gnome-terminal-tabs", "xterm", "byobu_session", "konsole", "ssh_tmux_session")

_logger = logging.getLogger(__name__)


def check_terminal(asked: str | None) -> str:
    """The terminal to use.

    Raises:
        LaunchError: the name is unknown.
    """
    name = asked or os.environ.get("LAUNCHPAD_LAUNCH_LOCAL_TERMINAL") or "current_terminal"
    if name in TERMINALS:
        return name
    if name in FALLING_BACK:
        _logger.warning("the terminal %r is not opened here: output comes to this terminal", name)
        return "current_terminal"
    raise LaunchError(f"Unknown terminal {name!r}: use one of {', '.join(TERMINALS)}")


def open_terminal(asked: str | None, directory: RunDirectory, plan: Plan, undo: Rollback) -> Terminal | None:
    """What takes the nodes' lines; None when only the log files do.

    Args:
        asked: one of `TERMINALS`; None for the environment's choice.
        directory: of the run.
        plan: what is deployed.
        undo: is told what to close when the run cannot be deployed.

    Raises:
        LaunchError: the name is unknown, or the logs cannot go where they are to go.
    """
    name = check_terminal(asked)
    if name == "tmux_session" and _open_tmux(directory, plan, undo):
        return None
    if name == "output_to_files":
        logs = _move_logs(directory)
        with contextlib.suppress(OSError, ValueError):  # a stdout that has gone or is full ends no run
            print(f"The output of the nodes is in {logs}", flush=True)  # noqa: T201 - all that is shown of this run
        return None
    return Terminal()


def _move_logs(directory: RunDirectory) -> Path:
    base = os.environ.get("LAUNCHPAD_LOGGING_DIR")
    if not base:
        return directory.logs
    logs = Path(base).expanduser().absolute() / directory.run_id
    try:
        logs.mkdir(parents=True, exist_ok=True)
        directory.logs.rmdir()
        directory.logs.symlink_to(logs, target_is_directory=True)
    except OSError as error:
        raise LaunchError(f"Logs cannot be written to LAUNCHPAD_LOGGING_DIR={base}: {error}") from error
    return logs


def _open_tmux(directory: RunDirectory, plan: Plan, undo: Rollback) -> bool:
    program = shutil.which("tmux")
    if program is None:
        _logger.warning("tmux is not installed: output comes to this terminal")
        return False
    wanted = flag_value("tmux_session_name") or directory.run_id.replace(".", "_").replace(":", "_")
    try:
        session = _free_name(program, wanted)
        for position, node in enumerate(plan.nodes):
            log = directory.log_path(node.executable.label, node.executable.index)
            log.touch()
            # It follows the log as long as this process lives; its window stays, for whoever attaches later.
            command = f"exec tail -n +1 -F --pid={os.getpid()} {shlex.quote(str(log))}"
            where = ["new-session", "-d", "-s", session] if position == 0 else ["new-window", "-d", "-t", f"{session}:"]
            window = _tmux(program, *where, "-P", "-F", "#{window_id}", "-n", node.name, command)
            if position == 0:
                close = functools.partial(_tmux, program, "kill-session", "-t", session)
                undo.push("its tmux session", close, only_after_failure=True)
            _tmux(program, "set-window-option", "-t", window, "remain-on-exit", "on")
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", None) or error
        _logger.warning("no tmux session could be opened (%s): output comes to this terminal", str(detail).strip())
        return False
    print(  # noqa: T201
        f"Every node has a window in tmux: tmux attach -t {session}; they stay until tmux kill-session -t {session}",
        file=sys.stderr,
        flush=True,
    )
    return True


def _free_name(program: str, wanted: str) -> str:
    """`wanted`, or with a number behind it: the sessions of earlier launches stay."""
    listed = subprocess.run(
        [program, "list-sessions", "-F", "#{session_name}"], check=False, capture_output=True, text=True
    )  # it fails where there is none
    taken = listed.stdout.split()
    numbered = (f"{wanted}_{number}" for number in range(len(taken)))
    return wanted if wanted not in taken else next(name for name in numbered if name not in taken)


def _tmux(program: str, *arguments: str) -> str:
    """What tmux prints. Raises `CalledProcessError`, `OSError`."""
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout.strip()
