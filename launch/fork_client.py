"""The launcher's side of a fork server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import final

from launch.channel import Channel, Message
from launch.python_process import PythonProcess
from launch.sweep import add_mark
from topology.errors import LaunchError

__all__ = ["ForkServer", "module_path"]

# The server gets this process's `sys.path` before it imports anything of ours.
_BOOT = (
    "import sys, json; config = json.loads(sys.argv.pop()); "
    "sys.path[:] = config['path'] + [p for p in sys.path if p not in config['path']]; "
    "from topology.launch_package import import_launch; import_launch(); "
    "from launch.fork_server import main; main(config)"
)
_QUIT_S = 5.0


@final
class ForkServer:
    """A running fork server. Its thread safety is that of `Channel`.

    Args:
        process: interpreter options and environment of all its nodes.
        preload: modules that it imports before any fork.
        temporary: directories that the server removes when this process has died.
        run: directory of the run, whose mark its processes are to carry; None for none.

    Raises:
        LaunchError: no Python process can be started.
    """

    def __init__(
        self, process: PythonProcess, preload: Sequence[str], temporary: Sequence[Path], *, run: Path | None = None
    ) -> None:
        self.channel, theirs = Channel.pair()
        self._command = [sys.executable, *_inherited_options(), *process.interpreter_options()]
        config = {
            "fd": theirs.fileno(),
            "pid": os.getpid(),
            "path": module_path(),
            "preload": list(preload),
            "temporary": [str(directory) for directory in temporary],
        }
        environment = {**os.environ, **{name: value for name, value in process.env.items() if value is not None}}
        for name in (name for name, value in process.env.items() if value is None):
            environment.pop(name, None)
        if run is not None:
            environment = add_mark(environment, run)
        try:
            self._process = subprocess.Popen(
                [*self._command, "-c", _BOOT, json.dumps(config)],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            self.channel.close()
            raise LaunchError(f"No Python process could be started ({sys.executable}): {error}") from error
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def abort(self) -> None:
        """Ends it at once, also while it comes up: then `wait_until_ready` raises."""
        self._process.kill()

    def wait_until_ready(self) -> None:
        """Blocks until it takes requests.

        Raises:
            LaunchError: it did not come up: a wrong interpreter option, or a module to preload that fails.
        """
        message: Message = next(self.channel.messages(), {"event": "gone"})
        if message["event"] == "ready":
            return
        code = self._process.wait(_QUIT_S)
        if message["event"] == "broken":
            raise LaunchError(f"A module to preload could not be imported.\n\n{message['error']}")
        raise LaunchError(
            f"The Python that nodes were to run in ended at once with exit code {code} (its messages are above): check "
            f"interpreter_args and env of the PythonProcess. It was started as: {' '.join(self._command)}"
        )

    def fork(self, key: int, name: str, *, control: int, output: int, setup: int) -> None:
        """Asks for a process. Its life is told on the channel under `key`.

        Raises:
            LaunchError: the server is gone.
        """
        if not self.channel.send({"do": "fork", "key": key, "name": name}, [control, output, setup]):
            raise LaunchError("the fork server is gone")

    def kill(self, key: int) -> None:
        """Asks for SIGKILL for a process and all it started."""
        self._process.send_signal(signal.SIGCONT)  # a server that somebody has halted could kill nothing
        self.channel.send({"do": "kill", "key": key})

    def quit(self) -> None:
        """Asks it to end, with any node it has left."""
        self.channel.send({"do": "quit"})

    def close(self) -> None:
        """Blocks until it has ended, which it does by itself when it is not asked first."""
        self._process.send_signal(signal.SIGCONT)
        self.channel.close()
        try:
            self._process.wait(_QUIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def module_path() -> list[str]:
    """`sys.path` for a process that may be elsewhere; a current directory that has gone takes relative parts along."""
    try:
        return [str(Path(part).absolute()) for part in sys.path]
    except FileNotFoundError:
        return [part for part in sys.path if os.path.isabs(part)]


def _inherited_options() -> list[str]:
    """The options this interpreter was started with, as far as they change how code runs."""
    # Private, but what multiprocessing uses for its processes.
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    return options
