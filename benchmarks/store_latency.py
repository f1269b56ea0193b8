"""How long a policy is on its way: from "saved" to "all workers act with it", for each data store.

    python benchmarks/store_latency.py [--workers 16] [--policies 20] [--megabytes 1] [--interval 1.0] [--only ...]

Workers are processes that wait for a newer policy, load it, and compute an action with it; the clock is the machine's
monotonic one, which they share. A policy is saved every `--interval` seconds, as a trainer would. Redis and the object
store are servers that this script starts: redis-server, and moto's, which is written in Python and answers one request
at a time, so its figures say more of it than of S3. Prints one JSON object a store; milliseconds, medians over the
policies: `save_ms` is the time of save(), `first_ms` and `all_ms` from its return to the first and the last worker's
action, `worst_ms` the largest of the latter. A policy is visible a little before save() returns, so the first may have
acted by then: less than 0. `load` is the machine's load average meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np

from topology.errors import PoliciesFinished
from topology.nodes.store.policies import open_data_store

DEADLINE_S = 120.0

MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("ready", *server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


class Place(NamedTuple):
    url: str
    options: dict[str, Any]


@contextlib.contextmanager
def directory() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        yield Place(folder, {})


@contextlib.contextmanager
def redis() -> Iterator[Place]:
    if shutil.which("redis-server") is None:
        raise FileNotFoundError("redis-server is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = ["redis-server", "--port", "0", "--unixsocket", f"{folder}/socket", "--save", "", "--dir", folder]
        with serving(command, "eady to accept connections"):
            yield Place(f"unix://{folder}/socket?db=0", {})


@contextlib.contextmanager
def s3() -> Iterator[Place]:
    import s3fs

    with serving([sys.executable, "-c", MOTO], "ready") as line:
        _, host, port = line.split()
        options = {"endpoint_url": f"http://{host}:{port}", "key": "key", "secret": "secret"}
        s3fs.S3FileSystem(**options).mkdir("policies")
        yield Place("s3://policies/run", options)


PLACES = {"directory": directory, "redis": redis, "s3": s3}


@contextlib.contextmanager
def serving(command: list[str], ready: str) -> Iterator[str]:
    """Runs a server until the block ends; gives the line with which it said that it is ready."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield next(line for line in process.stdout if ready in line)
        finally:
            process.kill()


def work(place: Place, pipe: Connection) -> None:
    """A worker: says "here", then the number and time of each policy it has acted with."""
    observation = np.ones(500, np.float32)
    with open_data_store(place.url, **place.options) as store:
        pipe.send("here")
        number = -1
        while True:
            try:
                policy = store.wait_newer(number, timeout_s=DEADLINE_S)
            except PoliciesFinished:
                return
            number = policy.number
            action = float((observation @ policy.arrays["w"]).argmax())
            pipe.send((number, time.monotonic(), action))


def receive(pipes: list[Connection]) -> list[Any]:
    """What each worker says next."""
    said: dict[int, Any] = {}
    end = time.monotonic() + DEADLINE_S
    while len(said) < len(pipes):
        ready = wait([pipe for index, pipe in enumerate(pipes) if index not in said], end - time.monotonic())
        if not ready:
            raise TimeoutError(f"{len(pipes) - len(said)} workers said nothing for {DEADLINE_S:g} s")
        for index, pipe in enumerate(pipes):
            if pipe in ready:
                said[index] = pipe.recv()
    return list(said.values())


def measure(place: Place, workers: int, policies: int, megabytes: float, interval_s: float) -> dict[str, Any]:
    weights = np.random.default_rng(0).standard_normal((500, max(1, int(megabytes * 500)))).astype(np.float32)
    pairs = [multiprocessing.Pipe(duplex=False) for _ in range(workers)]
    pipes = [reader for reader, _ in pairs]
    processes = [multiprocessing.Process(target=work, args=(place, writer), daemon=True) for _, writer in pairs]
    for process in processes:
        process.start()
    receive(pipes)
    saves, firsts, alls = [], [], []
    with (
        open_data_store(place.url, **place.options) as store,
        store.lease("trainer", max(60.0, 10 * interval_s)) as lease,
    ):
        for _ in range(policies):
            time.sleep(interval_s)
            start = time.monotonic()
            number = store.save({"w": weights}, lease=lease)
            saved = time.monotonic()
            answers = receive(pipes)
            assert {answer[0] for answer in answers} == {number}
            saves.append(saved - start)
            firsts.append(min(answer[1] for answer in answers) - saved)
            alls.append(max(answer[1] for answer in answers) - saved)
        store.announce_finished("measured", lease=lease)
    for process in processes:
        process.join(DEADLINE_S)
    return {
        "workers": workers,
        "policy_bytes": weights.nbytes,
        "policies": policies,
        "interval_s": interval_s,
        "save_ms": milliseconds(statistics.median(saves)),
        "first_ms": milliseconds(statistics.median(firsts)),
        "all_ms": milliseconds(statistics.median(alls)),
        "worst_ms": milliseconds(max(alls)),
        "load": round(os.getloadavg()[0], 1),
    }


def milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--policies", type=int, default=20)
    parser.add_argument("--megabytes", type=float, default=1.0)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two policies")
    parser.add_argument("--only", nargs="*", choices=[*PLACES], default=[*PLACES])
    args = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    for name in args.only:
        with contextlib.ExitStack() as stack:
            try:
                place = stack.enter_context(PLACES[name]())
            except (ImportError, FileNotFoundError) as error:
                print(json.dumps({"store": name, "skipped": str(error)}), flush=True)
                continue
            result = measure(place, args.workers, args.policies, args.megabytes, args.interval)
            print(json.dumps({"store": name, **result}), flush=True)


if __name__ == "__main__":
    main()
