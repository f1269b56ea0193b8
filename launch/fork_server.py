"""The fork server: one fresh, single-threaded Python that the nodes' processes are forked from.

A launcher starts one for each interpreter configuration (options and environment variables), so these are in force from
the interpreter's first instruction. It imports once what all nodes need; a fork then takes a millisecond, not the
seconds of a new interpreter, and shares the memory. It is forked only while it has one thread, which no process of a
user can promise.

It also is the watchman: when the launcher dies, however it dies, it ends all nodes and their children.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
import warnings
from typing import Any, NoReturn, final

from launch import child, linux
from launch.channel import Channel, Message, open_standard_files
from launch.import_guard import importing

__all__ = ["main"]

_TERM_GRACE_S = 2.0  # from the launcher's death to the kill
_KILL_GRACE_S = 1.0  # for the system to end what was killed


def main(config: dict[str, Any]) -> NoReturn:
    """Serves one launcher until it goes.

    Args:
        config: `fd` of the channel to the launcher, its `pid`, modules to `preload`, and `temporary` directories
            that go when the launcher is gone.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # the launcher decides
    open_standard_files()
    channel = Channel(socket.socket(fileno=config["fd"]))
    try:
        for name in config["preload"]:
            with importing(f"{name} was imported for all nodes"):
                importlib.import_module(name)
    except BaseException:  # noqa: BLE001 - told to the launcher, which raises it
        channel.send({"event": "broken", "error": traceback.format_exc()})
        os._exit(1)
    gc.collect()
    gc.freeze()  # or the first collection in every child would copy the memory that all share
    server = _ForkServer(channel, config)
    channel.send({"event": "ready"})
    server.serve()
    os._exit(0)


@final
class _ForkServer:
    def __init__(self, channel: Channel, config: dict[str, Any]) -> None:
        self._channel = channel
        self._temporary: list[str] = config["temporary"]
        self._quit = False
        self._keys: dict[int, int] = {}  # by process id
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_w, False)
        os.set_blocking(self._wake_r, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, "channel")
        self._selector.register(self._wake_r, selectors.EVENT_READ, "child")
        # A fork of the launcher may hold its end of the channel open, so its end is watched for as well.
        self._launcher = linux.open_process(config["pid"])
        if self._launcher is not None:
            self._selector.register(self._launcher, selectors.EVENT_READ, "launcher")
        linux.adopt_orphans()

    def serve(self) -> None:
        """Until the launcher says so, or is gone."""
        while not self._quit:
            for key, _ in self._selector.select():
                if key.data == "child":
                    self._reap()
                elif key.data == "launcher" or not self._receive():
                    self._end_all()
                    for directory in self._temporary:
                        shutil.rmtree(directory, ignore_errors=True)
                    return
        self._end_all()

    def _receive(self) -> bool:
        received = self._channel.receive()
        if received is None:
            return False
        for message, fds in received:
            if message["do"] == "fork":
                self._fork(message, fds)
            elif message["do"] == "kill":
                self._kill(message["key"])
            else:
                self._quit = True
        return True

    def _fork(self, message: Message, fds: list[int]) -> None:
        try:
            with warnings.catch_warnings():
                # A preloaded module may have threads, e.g. those of a BLAS, which knows about forks.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            self._channel.send({"event": "failed", "key": message["key"], "error": str(error)})
            pid = -1
        if pid == 0:
            self._become_child(message["name"], *fds)
        for descriptor in fds:
            os.close(descriptor)
        if pid > 0:
            self._keys[pid] = message["key"]
            self._channel.send({"event": "forked", "key": message["key"], "pid": pid})

    def _become_child(self, name: str, control: int, output: int, setup: int) -> NoReturn:
        code = 70
        try:
            linux.die_with_parent()
            os.setsid()  # its children die with it, and Ctrl-C on the terminal is the launcher's
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            self._selector.close()
            self._channel.close()
            for descriptor in (self._wake_r, self._wake_w, self._launcher):
                if descriptor is not None:
                    os.close(descriptor)
            linux.set_process_name(name)
            code = child.main(Channel(socket.socket(fileno=control)), setup)
        except BaseException:  # noqa: BLE001 - nothing may run on into the server's own code
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_r, 512):
                pass
        while (ended := linux.wait_for_any_child(self._end_group)) is not None:
            pid, status = ended
            key = self._keys.pop(pid, None)  # None: an orphan of a node
            if key is not None:
                exit_code = os.waitstatus_to_exitcode(status)
                self._channel.send({"event": "exited", "key": key, "exit_code": exit_code})

    def _end_group(self, pid: int) -> None:
        """What a node leaves behind when it ends."""
        if pid in self._keys:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _kill(self, key: int) -> None:
        for pid, known in self._keys.items():
            if known == key:
                self._end_group(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _end_all(self) -> None:
        for pid in self._keys:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _TERM_GRACE_S
        while self._keys and (left_s := deadline - time.monotonic()) > 0:
            select.select([self._wake_r], [], [], left_s)
            self._reap()
        for key in list(self._keys.values()):
            self._kill(key)
        self._end_orphans()

    def _end_orphans(self) -> None:
        """Whoever is killed leaves its own children to this process, so one round is not enough."""
        deadline = time.monotonic() + _KILL_GRACE_S
        while (pids := linux.children()) and (left_s := deadline - time.monotonic()) > 0:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            select.select([self._wake_r], [], [], left_s)
            self._reap()
