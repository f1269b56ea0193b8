"""A platform as another package would bring it: every node is a job, a Python of its own that outlives its launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch import Launcher
from launch.channel import Channel
from launch.deployment import Deployment
from launch.node_setup import file_with, make_setup
from launch.outcome import Outcome, describe_exit
from launch.output import OutputPump
from launch.process_info import create_time
from launch.supervisor import Ended, Started
from topology.errors import LaunchError

DEADLINE_S = 10.0
JOB = (
    "import os, socket, sys; from launch.channel import Channel; from launch.child import main; "
    "os._exit(main(Channel(socket.socket(fileno=int(sys.argv[1]))), int(sys.argv[2])))"
)


class FakeLauncher(Launcher):
    launch_type = "fake"

    def open_backend(self, deployment: Deployment) -> Jobs:
        place = Path(deployment.surroundings.endpoints.directory.parent, f"topology-jobs-{deployment.directory.run_id}")
        deployment.record({"kind": "job place", "path": str(place)})
        place.mkdir()
        deployment.undo("the place of its jobs", place.rmdir)
        return Jobs(deployment)

    def reclaim(self, resource: Mapping[str, Any]) -> None:
        if resource["kind"] == "job place":
            with contextlib.suppress(FileNotFoundError):
                Path(resource["path"]).rmdir()
        elif resource["kind"] == "job":
            born = create_time(resource["pid"])
            if born is not None and abs(born - resource["create_time"]) < 1.0:
                os.killpg(resource["pid"], signal.SIGKILL)
        else:
            super().reclaim(resource)


class Jobs:
    """The backend: a thread follows each job."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._setups = [make_setup(deployment, node) for node in deployment.plan.nodes]
        self._channels: dict[int, Channel] = {}
        self._jobs: dict[int, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._output = OutputPump(deployment.terminal)

    def start(self, node: int, restarts: int) -> None:
        planned = self._deployment.plan.nodes[node]
        ours, theirs = Channel.pair()
        reader, writer = os.pipe()
        setup = file_with(self._setups[node], restarts)
        log = self._deployment.directory.log_path(planned.executable.label, planned.executable.index)
        self._output.add(planned.name, reader, log)
        try:
            job = subprocess.Popen(
                [sys.executable, *planned.process.interpreter_options(), "-c", JOB, str(theirs.fileno()), str(setup)],
                stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, pass_fds=[theirs.fileno(), setup],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise LaunchError(f"The job {planned.name} could not be started: {error}") from error
        finally:
            theirs.close()
            os.close(setup)
            os.close(writer)
        self._deployment.record({"kind": "job", "pid": job.pid, "create_time": create_time(job.pid)})
        self._channels[node], self._jobs[node] = ours, job
        self._deployment.post(Started(node, job.pid))
        thread = threading.Thread(target=self._follow, args=(node, ours, job), name=f"job {planned.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _follow(self, node: int, channel: Channel, job: subprocess.Popen[bytes]) -> None:
        outcome = None
        for message in channel.messages():
            if message.pop("event") == "outcome":
                outcome = Outcome(**message)
            else:
                self._deployment.request_stop(message["reason"])
        code = job.wait()
        channel.close()
        self._deployment.post(
            Ended(node, outcome or Outcome(failed=code != 0, message=describe_exit(code), exit_code=code))
        )

    def announce_stop(self, reason: str) -> None:
        for channel in self._channels.values():
            channel.send({"do": "stop", "reason": reason})

    def nudge(self, node: int) -> None:
        self._channels[node].send({"do": "nudge"})

    def check(self, node: int) -> None:
        pass

    def interrupt(self, node: int) -> None:
        self._channels[node].send({"do": "interrupt"})

    def kill(self, node: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._jobs[node].pid, signal.SIGKILL)

    def close(self) -> None:
        for node, job in self._jobs.items():
            self.kill(node)
            job.wait(DEADLINE_S)
        for thread in self._threads:
            thread.join(DEADLINE_S)
        self._output.close()
