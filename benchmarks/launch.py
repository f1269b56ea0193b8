"""Launch and stop beside the real Launchpad: a consumer and 32 producers as processes. One JSON line a bar.

    python benchmarks/launch.py [--peers DIRECTORY] [--peer-python PYTHON] [--producers 32] [--rounds 3]

The peer's script `launch_peer.py` is looked for in --peers, or in $TOPOLOGY_PEERS; it runs under --peer-python, or
$TOPOLOGY_PEER_PYTHON: a Python that has Launchpad. Without them only the absolute bars are judged. Exit code 1 when a
bar is missed.

up_s: from `launch()` to the consumer having one answer from every producer. down_s: from `lp.stop()` to the end of the
script. rss_mb: peak of the summed resident memory of the script and all its descendants, sampled every 20 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

import topology as lp


class Producer:
    def ping(self, value: int) -> int:
        return value


class Consumer:
    def __init__(self, producers: list[Any], started: float, path: str) -> None:
        self._producers = producers
        self._started = started
        self._path = path

    def run(self) -> None:
        for future in [producer.futures.ping(1) for producer in self._producers]:
            future.result()
        up_s = time.time() - self._started
        time.sleep(0.5)  # the sampler of memory sees the program at work
        Path(self._path).write_text(json.dumps({"up_s": up_s, "stop_at": time.time()}))
        lp.stop()


def run_program(producers: int, launch_type: str, path: str) -> None:
    """One program, in a process of its own."""
    program = lp.Program("bench")
    with program.group("producer"):
        handles = [program.add_node(lp.CourierNode(Producer)) for _ in range(producers)]
    with program.group("consumer"):
        program.add_node(lp.CourierNode(Consumer, handles, time.time(), path))
    lp.launch(program, launch_type, terminal="current_terminal").wait()


def measure(producers: int, launch_type: str) -> dict[str, float]:
    """Runs this file as a script and watches it."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/result.json"
        command = [
            sys.executable,
            __file__,
            "--path",
            path,
            "--producers",
            str(producers),
            "--launch-type",
            launch_type,
        ]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        peak = max(sample_memory(process))
        ended = time.time()
        if process.returncode != 0:
            raise SystemExit(f"the program failed with exit code {process.returncode}")
        result = json.loads(Path(path).read_text())
    return {"up_s": result["up_s"], "down_s": ended - result["stop_at"], "rss_mb": peak / 2**20}


def sample_memory(process: subprocess.Popen[bytes]) -> Iterator[int]:
    """Resident bytes of a process and its descendants, until it ends."""
    tree = psutil.Process(process.pid)
    yield 0
    while True:
        with contextlib.suppress(psutil.Error):  # one of them ended meanwhile
            yield sum(part.memory_info().rss for part in [tree, *tree.children(recursive=True)])
        try:
            process.wait(0.02)
            return
        except subprocess.TimeoutExpired:
            continue


def measure_peer(python: str, script: Path, producers: int) -> dict[str, float]:
    """The same program under Launchpad."""
    command = [python, str(script), "--producers", str(producers), "--launch-type", "local_mp"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def judge(name: str, ours: float, peer: float | None, target: float, *, better: float) -> bool:
    """Prints a bar as JSON; whether it is met: `better` times better than the peer, or at most `target` without one."""
    met = ours <= target if peer is None else better >= target
    bar = {"name": name, "ours": round(ours, 3), "peer": peer and round(peer, 3), "ratio": round(better, 2)}
    print(json.dumps({**bar, "target": target, "met": met}), flush=True)
    return met


def median(rounds: list[dict[str, float]], key: str) -> float:
    return statistics.median(figures[key] for figures in rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=os.environ.get("TOPOLOGY_PEERS"))
    parser.add_argument("--peer-python", default=os.environ.get("TOPOLOGY_PEER_PYTHON"))
    parser.add_argument("--producers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--launch-type", default="test_mp")
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.path:
        run_program(options.producers, options.launch_type, options.path)
        return 0
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(measure(options.producers, options.launch_type))
        print(json.dumps({"ours": ours[-1]}), flush=True)
        if options.peers and options.peer_python:
            theirs.append(measure_peer(options.peer_python, Path(options.peers) / "launch_peer.py", options.producers))
            print(json.dumps({"launchpad": theirs[-1]}), flush=True)
    down_s = median(ours, "down_s")
    met = [judge("stopped, at most 1 s", down_s, None, 1.0, better=1.0 / down_s)]
    if theirs:
        for name, key, target in (("seconds until all are up", "up_s", 8.0), ("summed memory in MB", "rss_mb", 3.0)):
            mine, other = median(ours, key), median(theirs, key)
            met.append(judge(name, mine, other, target, better=other / mine))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
