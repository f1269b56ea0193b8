"""Where nodes are processes: forked by fork servers, told of the stop and heard of over channels."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from launch.aside import start_thread
from launch.channel import Channel, Message, open_standard_files
from launch.child import Setup
from launch.fork_client import ForkServer
from launch.node_setup import ProcessSurroundings, file_with, make_setup
from launch.outcome import Outcome, describe_exit
from launch.output import OutputPump
from launch.supervisor import Ended, Event, Started
from launch.sweep import describe_process
from topology.context import StopToken

__all__ = ["ProcessBackend"]

_logger = logging.getLogger(__name__)


@final
@dataclass
class _Worker:
    """One process of a node."""

    node: int
    server: ForkServer
    control: Channel
    outcome: Outcome | None = None
    pid: int | None = None
    listened: bool = False
    ended: bool = False


@final
class ProcessBackend:
    """Starts the fork servers at once and blocks until they are ready.

    Args:
        surroundings: of the run.
        output: reads what the nodes print; closed with the backend.
        post: takes events.
        request_stop: called with a reason when a node asks for the stop.
        cancelled: when it is set, the fork servers are not waited for any longer.

    Raises:
        LaunchError: a fork server does not come up, or the system has no thread. Nothing is left running.
    """

    def __init__(
        self,
        surroundings: ProcessSurroundings,
        output: OutputPump,
        post: Callable[[Event], None],
        request_stop: Callable[[str], None],
        cancelled: StopToken,
    ) -> None:
        open_standard_files()
        self._surroundings = surroundings
        self._output = output
        self._post = post
        self._request_stop = request_stop
        self._workers: dict[int, _Worker] = {}  # by key: one for every process there ever was
        self._current: dict[int, int] = {}  # key of a node's newest process
        self._setups: dict[int, Setup] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, wake = Channel.pair()
        self._wake_receiver = Channel(wake)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self._servers: dict[Any, ForkServer] = {}
        self._thread = threading.Thread(target=self._listen, name="processes of nodes", daemon=True)
        forget = cancelled.subscribe(self._abort)
        try:
            self._start_servers(cancelled)
            start_thread(self._thread)
        except BaseException:
            self._release()
            raise
        finally:
            forget()

    def _abort(self) -> None:
        for server in list(self._servers.values()):
            server.abort()

    def _start_servers(self, cancelled: StopToken) -> None:
        plan = self._surroundings.plan
        for node in plan.nodes:
            configuration = node.process.configuration()
            if configuration not in self._servers:
                temporary = self._surroundings.temporary_directories
                run = self._surroundings.directory.path
                server = ForkServer(node.process, plan.preload, temporary, run=run)
                self._servers[configuration] = server
                self._surroundings.record(describe_process(server.pid))
        for number, node in enumerate(plan.nodes):  # while the servers come up
            self._setups[number] = make_setup(self._surroundings, node)
        if cancelled.is_set():
            self._abort()
        for server in self._servers.values():
            server.wait_until_ready()
            self._selector.register(server.channel, selectors.EVENT_READ, server)

    def start(self, node: int, restarts: int) -> None:
        planned = self._surroundings.plan.nodes[node]
        server = self._servers[planned.process.configuration()]
        control, theirs = Channel.pair()
        reader, writer = os.pipe()
        key = len(self._workers)
        self._workers[key] = _Worker(node, server, control)
        self._current[node] = key
        setup = file_with(self._setups[node], restarts)
        try:
            server.fork(key, planned.name, control=theirs.fileno(), output=writer, setup=setup)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(setup)
            os.close(writer)
            theirs.close()
        executable = planned.executable
        log = self._surroundings.directory.log_path(executable.label, executable.index)
        self._output.add(planned.name, reader, log)
        self._wake.send({"listen": key})

    def announce_stop(self, reason: str) -> None:
        for node in self._current:
            self._newest(node).control.send({"do": "stop", "reason": reason})

    def nudge(self, node: int) -> None:
        self._newest(node).control.send({"do": "nudge"})

    def check(self, node: int) -> None:
        """Nothing: the nudge reaches also a process that sleeps, and the kill ends any other."""

    def interrupt(self, node: int) -> None:
        self._newest(node).control.send({"do": "interrupt"})

    def kill(self, node: int) -> None:
        self._newest(node).server.kill(self._current[node])

    def _newest(self, node: int) -> _Worker:
        return self._workers[self._current[node]]

    def close(self) -> None:
        self._wake.close()
        self._thread.join()
        self._release()

    def _release(self) -> None:
        for server in self._servers.values():
            server.quit()
        for server in self._servers.values():
            server.close()
        for worker in self._workers.values():
            _end_group(worker)
            worker.control.close()
        self._wake.close()
        self._wake_receiver.close()
        self._selector.close()
        self._output.close()

    def _listen(self) -> None:
        try:
            self._hear_all()
        except Exception as error:
            _logger.exception("the launcher lost its processes")
            for key in list(self._workers):
                self._end(key, Outcome(failed=True, message=f"the launcher failed: {error!r}", exit_code=None))

    def _hear_all(self) -> None:
        while True:
            for key, _ in self._selector.select():
                source = key.data
                if source is None:
                    if not self._adopt():
                        return
                elif isinstance(source, _Worker):
                    self._hear_node(source)
                else:
                    self._hear_server(source)

    def _adopt(self) -> bool:
        received = self._wake_receiver.receive()
        for message, _ in received or ():
            worker = self._workers[message["listen"]]
            if not worker.ended:
                worker.listened = True
                self._selector.register(worker.control, selectors.EVENT_READ, worker)
        return received is not None

    def _hear_nodes(self) -> None:
        for key, _ in self._selector.select(0):
            if isinstance(key.data, _Worker):
                self._hear_node(key.data)

    def _hear_node(self, worker: _Worker) -> None:
        if worker.ended:  # heard of in the same moment, from its server
            return
        received = worker.control.receive()
        if received is None:
            self._unlisten(worker)
            return
        for message, _ in received:
            self._take(worker, message)

    def _unlisten(self, worker: _Worker) -> None:
        if worker.listened:
            worker.listened = False
            self._selector.unregister(worker.control)

    def _take(self, worker: _Worker, message: Message) -> None:
        event = message.pop("event")
        if event == "stop_requested":
            self._request_stop(message["reason"])
        elif event == "outcome":
            worker.outcome = Outcome(**message)

    def _hear_server(self, server: ForkServer) -> None:
        received = server.channel.receive()
        if received is None:
            self._selector.unregister(server.channel)
            lost = [key for key, worker in self._workers.items() if worker.server is server]
            for key in lost:
                _end_group(self._workers[key])
                self._end(key, Outcome(failed=True, message="its fork server was killed", exit_code=None))
            return
        if any(message["event"] == "exited" for message, _ in received):
            self._hear_nodes()  # whoever asked for a stop did so before others failed over it
        for message, _ in received:
            key = message["key"]
            match message["event"]:
                case "forked":
                    self._workers[key].pid = message["pid"]
                    self._post(Started(self._workers[key].node, message["pid"]))
                case "failed":
                    text = f"its process could not be started: {message['error']}"
                    self._end(key, Outcome(failed=True, message=text, exit_code=None))
                case "exited":
                    self._exited(key, message["exit_code"])

    def _exited(self, key: int, exit_code: int) -> None:
        worker = self._workers[key]
        for message in worker.control.drain():
            self._take(worker, message)
        outcome = worker.outcome
        if outcome is None:
            text = describe_exit(exit_code) if exit_code else ""
            outcome = Outcome(failed=exit_code != 0, message=text, exit_code=exit_code)
        self._end(key, outcome)

    def _end(self, key: int, outcome: Outcome) -> None:
        worker = self._workers[key]
        if worker.ended:
            return
        worker.ended = True
        self._unlisten(worker)
        worker.control.close()
        self._post(Ended(worker.node, outcome))


def _end_group(worker: _Worker) -> None:
    """Kills a node, and what it started, that its fork server cannot kill any more."""
    if worker.pid is not None and not worker.ended:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
