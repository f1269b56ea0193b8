"""The courier beside the original Courier and a bare socket, as ratios of one run.

    python benchmarks/courier.py [--peers DIRECTORY] [--peer-python PYTHON] [--seconds 1] [--rounds 3]

The peer's script `courier_peer.py` is looked for in --peers, or in $TOPOLOGY_PEERS; it runs under --peer-python, or
$TOPOLOGY_PEER_PYTHON: a Python that has the original courier. Without them ours is compared with the bare socket only.
Every figure is the median over rounds in which the systems take turns. Ends with one JSON object a bar; exit code 1
when one is missed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

MB = 1_000_000
GIB = 1 << 30
SIZES = {"1 MB": MB, "16 MB": 16 * MB}


# --- bare socket ----------------------------------------------------------------------------------------------------
# A request is a kind, a size and, for a sink, so many bytes; the reply is one byte or, for make, so many bytes.

_REQUEST = struct.Struct("<cQ")


def bare_socket(where: str) -> socket.socket:
    return socket.socket(socket.AF_UNIX if where.startswith("unix:") else socket.AF_INET)


def bare_place(where: str) -> Any:
    if where.startswith("unix:"):
        return where.removeprefix("unix:")
    host, port = where.split(":")
    return host, int(port)


def tune(sock: socket.socket) -> socket.socket:
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MB)
    return sock


def receive(sock: socket.socket, size: int) -> memoryview:
    """Into memory of its own, as every receiver of an array needs it."""
    memory = memoryview(np.empty(size, np.uint8))
    got = 0
    while got < size:
        count = sock.recv_into(memory[got:])
        if not count:
            raise EOFError
        got += count
    return memory


def serve_bare(where: str) -> str:
    listener = bare_socket(where)
    listener.bind(bare_place(where))
    listener.listen()
    arrays: dict[int, np.ndarray] = {}

    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(EOFError), sock:
            while True:
                kind, size = _REQUEST.unpack(receive_request(sock))
                if kind == b"m":
                    sock.sendall(arrays.setdefault(size, np.zeros(size, np.uint8)))
                    continue
                receive(sock, size)
                sock.send(b"\0")

    def accept() -> None:
        while True:
            threading.Thread(target=serve, args=(tune(listener.accept()[0]),), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return where if where.startswith("unix:") else f"localhost:{listener.getsockname()[1]}"


def receive_request(sock: socket.socket) -> bytes:
    data = sock.recv(_REQUEST.size)
    if not data:
        raise EOFError
    return data


class BareClient:
    def __init__(self, where: str) -> None:
        self._sock = bare_socket(where)
        self._sock.connect(bare_place(where))
        tune(self._sock)

    def echo(self, _: object) -> None:
        self._sock.send(_REQUEST.pack(b"s", 0))
        self._sock.recv(1)

    def sink(self, array: np.ndarray) -> None:
        self._sock.sendmsg([_REQUEST.pack(b"s", array.nbytes)])
        self._sock.sendall(array)
        self._sock.recv(1)

    def make(self, size: int) -> None:
        self._sock.send(_REQUEST.pack(b"m", size))
        receive(self._sock, size)


# --- ours -----------------------------------------------------------------------------------------------------------


def serve_ours(where: str) -> str:
    from topology.nodes.courier import Server

    arrays: dict[int, np.ndarray] = {}
    server = Server("benchmark", address=where)
    server.bind("echo", lambda x: x)
    server.bind("sink", lambda _: None)
    server.bind("make", lambda n: arrays.setdefault(n, np.zeros(n, np.uint8)))
    server.start()
    return server.address


def new_client(system: str, where: str) -> Any:
    if system == "bare":
        return BareClient(where)
    from topology.nodes.courier import Client

    return Client(where, call_timeout=60)  # as the peer's


# --- measuring (in a client's process) ------------------------------------------------------------------------------


def measure(client: Any, what: str, seconds: float) -> dict[str, float]:
    kind, _, size = what.partition(":")
    if kind == "futures":
        return measure_futures(client, seconds)
    call = getattr(client, kind)
    argument = {"echo": lambda: 1, "sink": lambda: np.zeros(int(size), np.uint8), "make": lambda: int(size)}[kind]()
    for _ in range(50 if kind == "echo" else 3):
        call(argument)
    wait_for_start()
    times = []
    began = now = time.perf_counter()
    while now < began + seconds:
        call(argument)
        later = time.perf_counter()
        times.append(later - now)
        now = later
    rate = len(times) / (now - began)
    figures = {"calls_per_s": rate, "p50_us": statistics.median(times) * 1e6}
    return figures | ({"gb_per_s": rate * int(size) / 1e9} if size else {})


def measure_futures(client: Any, seconds: float) -> dict[str, float]:
    for _ in range(50):
        client.futures.echo(1).result()
    wait_for_start()
    window: collections.deque[Any] = collections.deque()
    done, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        window.append(client.futures.echo(1))
        if len(window) == 64:
            window.popleft().result()
            done += 1
    return {"calls_per_s": done / (time.perf_counter() - began)}


def wait_for_start() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def peak_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def measure_peak(where: str, what: str) -> dict[str, float]:
    """Three arrays of 1 GiB in one call; peak memory of both sides over what they had before."""
    from topology.nodes.courier import Client

    client = Client(where)
    server_before, before = client.peak(), peak_bytes()
    if what == "peak:argument":
        client.take([np.ones(GIB, np.uint8) for _ in range(3)])
    else:
        client.give(3)
    return {"client": (peak_bytes() - before) / (3 * GIB), "server": (client.peak() - server_before) / (3 * GIB)}


def serve_peak(where: str) -> str:
    from topology.nodes.courier import Server

    server = Server("peak", address=where)
    server.bind("take", lambda _: None)
    server.bind("give", lambda count: [np.ones(GIB, np.uint8) for _ in range(count)])
    server.bind("peak", peak_bytes)
    server.start()
    return server.address


# --- processes ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def spawn(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"{process.args} ended with {process.wait()}")
    return line


def run(system: str, transport: str, what: str, clients: int, seconds: float) -> dict[str, float]:
    """One measurement: a server's process and those of its clients."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        where = f"unix:{directory}/s" if transport == "unix" else "localhost:0"
        server = stack.enter_context(spawn("--role", "server", "--system", system, "--where", where))
        arguments = ("--role", "client", "--system", system, "--where", read(server), "--what", what)
        processes = [stack.enter_context(spawn(*arguments, "--seconds", str(seconds))) for _ in range(clients)]
        if system != "peak":
            for process in processes:
                read(process)
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
        return total([json.loads(read(process)) for process in processes])


def has_peer(options: argparse.Namespace) -> bool:
    return bool(options.peers and options.peer_python)


def run_peer(options: argparse.Namespace, what: str, clients: int) -> dict[str, float]:
    command = [options.peer_python, os.path.join(options.peers, "courier_peer.py")]
    arguments = ["--what", what, "--clients", str(clients), "--seconds", str(options.seconds)]
    output = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True, timeout=120).stdout
    return json.loads(output.splitlines()[-1])


def total(results: list[dict[str, float]]) -> dict[str, float]:
    return {
        key: sum(r[key] for r in results) if key.endswith("per_s") else statistics.fmean(r[key] for r in results)
        for key in results[0]
    }


# --- bars -----------------------------------------------------------------------------------------------------------


class Report:
    def __init__(self) -> None:
        self.bars: list[dict[str, Any]] = []

    def bar(self, name: str, ours: float, peer: float, target: str) -> None:
        """Adds a bar; `target` is "<= 0.6" or ">= 5" of the ratio ours to peer."""
        ratio = ours / peer
        sign, limit = target.split()
        met = ratio <= float(limit) if sign == "<=" else ratio >= float(limit)
        self.bars.append(
            {
                "name": name,
                "ours": round(ours, 3),
                "peer": round(peer, 3),
                "ratio": round(ratio, 3),
                "target": target,
                "met": met,
            }
        )

    def print(self) -> int:
        for bar in self.bars:
            print(json.dumps(bar))
        return 0 if all(bar["met"] for bar in self.bars) else 1


Measurement = Callable[[], dict[str, float]]


def take_turns(systems: dict[str, Measurement], key: str, rounds: int) -> dict[str, float]:
    """Median of a figure of each system over rounds in which they alternate."""
    figures: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, measurement in systems.items():
            figures[name].append(measurement()[key])
    return {name: statistics.median(values) for name, values in figures.items()}


def compare(options: argparse.Namespace, what: str, key: str, clients: int = 1, bare: bool = True) -> dict[str, float]:
    seconds = options.seconds
    systems: dict[str, Measurement] = {
        f"ours {transport}": lambda transport=transport: run("ours", transport, what, clients, seconds)
        for transport in ("unix", "tcp")
    }
    if bare:
        for transport in ("unix", "tcp"):
            systems[f"bare {transport}"] = lambda transport=transport: run("bare", transport, what, clients, seconds)
    if has_peer(options):
        systems["courier"] = lambda: run_peer(options, what, clients)
    figures = take_turns(systems, key, options.rounds)
    print(f"{what:15} {clients} client(s), {key}: " + ", ".join(f"{k} {v:.3g}" for k, v in figures.items()), flush=True)
    return figures


def main(options: argparse.Namespace) -> int:
    report = Report()
    if not has_peer(options):
        print("no peer (--peers, --peer-python): only ours beside a bare socket")
    tiny = compare(options, "echo", "p50_us")
    report.bar("tiny call p50 us, to bare socket", tiny["ours unix"], tiny["bare unix"], "<= 2.0")
    futures = compare(options, "futures", "calls_per_s", bare=False)
    four = compare(options, "echo", "calls_per_s", clients=4)
    if has_peer(options):
        report.bar("tiny call p50 us, to Courier", tiny["ours unix"], tiny["courier"], "<= 0.6")
        report.bar("pipelined futures calls/s, to Courier", futures["ours unix"], futures["courier"], ">= 3")
        report.bar("four clients calls/s, to Courier", four["ours unix"], four["courier"], ">= 1.5")
    for label, size in SIZES.items():
        for kind, where in (("sink", "argument"), ("make", "result")):
            rate = compare(options, f"{kind}:{size}", "gb_per_s")
            name = f"{label} as {where} GB/s"
            report.bar(f"{name}, to bare socket", rate["ours unix"], rate["bare unix"], ">= 0.6")
            if has_peer(options):
                report.bar(f"{name}, to Courier", rate["ours unix"], rate["courier"], ">= 5")
    for where in ("argument", "result"):
        peaks = run("peak", "unix", f"peak:{where}", 1, 0)
        for side, peak in peaks.items():
            report.bar(f"3 GiB as {where}, peak memory of the {side} to payload", peak, 1.0, "<= 1.3")
    return report.print()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=os.environ.get("TOPOLOGY_PEERS"))
    parser.add_argument("--peer-python", default=os.environ.get("TOPOLOGY_PEER_PYTHON"))
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--role", choices=["main", "server", "client"], default="main", help=argparse.SUPPRESS)
    parser.add_argument("--system", default="ours", help=argparse.SUPPRESS)
    parser.add_argument("--where", default="", help=argparse.SUPPRESS)
    parser.add_argument("--what", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def main_of_server(options: argparse.Namespace) -> None:
    serve = {"ours": serve_ours, "bare": serve_bare, "peak": serve_peak}[options.system]
    print(serve(options.where), flush=True)
    sys.stdin.read()


def main_of_client(options: argparse.Namespace) -> None:
    if options.system == "peak":
        figures = measure_peak(options.where, options.what)
    else:
        figures = measure(new_client(options.system, options.where), options.what, options.seconds)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    OPTIONS = parse()
    if OPTIONS.role == "server":
        main_of_server(OPTIONS)
    elif OPTIONS.role == "client":
        main_of_client(OPTIONS)
    else:
        sys.exit(main(OPTIONS))
