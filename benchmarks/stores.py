"""Memory backends beside plain pub/sub of Redis with pickle, as ratios of one run.

    python benchmarks/stores.py [--writers 1,4,16] [--seconds 2] [--rounds 3] [--systems redis,replay,node]

Every writer is a process that stores batches of 20 steps as fast as it is let, 4 of them under way; one reader takes
them, 200 steps at a time where there is a way to say so. A figure is steps a second that reached the reader, the median
over rounds in which the systems take turns. `noise` are frames of 84x84 random bytes, `game` frames of a ball and two
bats, `small` transitions of 4 numbers. Pub/sub is redis-py as it comes, a message a batch, and a reader that subscribes
again when the server has thrown it out; what it loses is counted. Needs redis-server, which it starts itself. Ends with
one JSON object a bar; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

STEPS = 20  # of a batch
FETCHED = 200  # steps the trainer asks for at a time
IN_FLIGHT = 4  # stores of a writer under way
WARM_UP_S = 0.5
TARGET = 3.0
NAME = "benchmark"
MAX_STEPS = 4000  # of a memory: 28 MB of frames


def noise(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, (STEPS, 84, 84), np.uint8)


def game(rng: np.random.Generator) -> np.ndarray:
    frames = np.full((STEPS, 84, 84), 87, np.uint8)
    frames[:, :8] = frames[:, 80:] = 52
    x, y = rng.integers(20, 60, 2)
    dx, dy = rng.integers(-2, 3, 2)
    for t, frame in enumerate(frames):
        frame[20 + 2 * t : 34 + 2 * t, 5:7] = 213
        frame[30:44, 77:79] = 92
        frame[y + dy * t // 2 :][:2, x + dx * t // 2 :][:, :2] = 236
    return frames


def small(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(STEPS, 4)).astype(np.float32)


KINDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {"noise": noise, "game": game, "small": small}


def batch_of(kind: str) -> dict[str, np.ndarray]:
    return {
        "observation": KINDS[kind](np.random.default_rng(os.getpid())),
        "action": np.zeros(STEPS, np.int32),
        "reward": np.zeros(STEPS, np.float32),
        "discount": np.ones(STEPS, np.float32),
    }


# --- pub/sub ----------------------------------------------------------------------------------------------------------


class PubSub:
    """What a plain program does. Nothing tells a publisher that nobody could keep up."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextlib.contextmanager
    def writer(self) -> Iterator[Callable[[dict[str, np.ndarray]], None]]:
        import redis

        with redis.Redis.from_url(self._url) as client:
            yield lambda batch: client.publish(NAME, pickle.dumps(batch, pickle.HIGHEST_PROTOCOL))

    @contextlib.contextmanager
    def reader(self) -> Iterator[Callable[[], int]]:
        import redis

        with redis.Redis.from_url(self._url) as client, contextlib.ExitStack() as stack:
            subscribed = stack.enter_context(client.pubsub(ignore_subscribe_messages=True))
            subscribed.subscribe(NAME)

            def read() -> int:
                nonlocal subscribed
                try:
                    message = subscribed.get_message(timeout=0.2)
                except (redis.ConnectionError, redis.TimeoutError):  # it was too slow
                    subscribed = stack.enter_context(client.pubsub(ignore_subscribe_messages=True))
                    subscribed.subscribe(NAME)
                    return 0
                return 0 if message is None else len(pickle.loads(message["data"])["reward"])

            yield read


class Memory:
    """A memory backend; `options` are those of `open_memory_backend`."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = {"name": NAME, "max_steps": MAX_STEPS, **options}

    def _open(self) -> Any:
        from topology.nodes.store.memory import open_memory_backend
        from topology.nodes.store.memory_remote import RemoteMemory

        if self._url.startswith("node:"):
            return RemoteMemory(self._url.removeprefix("node:"))
        return open_memory_backend(self._url, **self._options)

    @contextlib.contextmanager
    def writer(self) -> Iterator[Callable[[dict[str, np.ndarray]], None]]:
        with self._open() as handle, handle.writer(max_in_flight=IN_FLIGHT) as writer:
            yield lambda batch: writer.store(batch, {"worker": 0}, timeout_s=60)

    @contextlib.contextmanager
    def reader(self) -> Iterator[Callable[[], int]]:
        with self._open() as handle:

            def read() -> int:
                try:
                    got = handle.fetch(num_steps=FETCHED, timeout_s=0.2)
                except TimeoutError:
                    got = handle.fetch_available()
                handle.acknowledge(got)
                return sum(experience.steps for experience in got)

            yield read


System = PubSub | Memory


class Measured(NamedTuple):
    steps_per_s: float
    stored: int
    lost: int


def write(system: System, kind: str, ready: Any, go: Any, stop: Any, count: Any) -> None:
    logging.disable(logging.WARNING)
    batch = batch_of(kind)
    with system.writer() as store:
        ready.release()
        go.wait()
        while not stop.is_set():
            store(batch)
            count.value += STEPS


def measure(system: System, kind: str, writers: int, seconds: float) -> Measured:
    context = multiprocessing.get_context("forkserver")
    ready, go, stop = context.Semaphore(0), context.Event(), context.Event()
    counts = [context.Value("q", 0, lock=False) for _ in range(writers)]
    with system.reader() as read:
        read()
        processes = [
            context.Process(target=write, args=(system, kind, ready, go, stop, count), daemon=True) for count in counts
        ]
        for process in processes:
            process.start()
        for _ in processes:
            if not ready.acquire(timeout=120):
                raise RuntimeError("a writer did not come up")
        go.set()
        total = read_for(read, WARM_UP_S)
        began = time.perf_counter()
        steps = read_for(read, seconds)
        seconds = time.perf_counter() - began
        total += steps
        stop.set()
        while any(process.is_alive() for process in processes):
            total += read()
        while got := read():
            total += got
    stored = sum(count.value for count in counts)
    return Measured(steps / seconds, stored, stored - total)


def read_for(read: Callable[[], int], seconds: float) -> int:
    end, steps = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        steps += read()
    return steps


# --- servers ----------------------------------------------------------------------------------------------------------


def serve(kind: str, report: Any, stop: Any) -> None:
    """A replay server, or the memory of a node, in a process of its own."""
    if kind == "replay":
        from topology.nodes import replay
        from topology.nodes.store.memory_replay import memory_tables

        server: Any = replay.Server(memory_tables(NAME, max_steps=MAX_STEPS))
    else:
        from topology.nodes import courier
        from topology.nodes.store.memory_remote import MemoryHandlers
        from topology.nodes.store.memory_service import MemoryService

        server = courier.Server("memory")
        courier.bind_object(server, MemoryHandlers(MemoryService(MAX_STEPS, 1 << 30)))
    server.start()
    report.put(server.address)
    stop.wait()
    server.stop()


@contextlib.contextmanager
def served(kind: str) -> Iterator[str]:
    context = multiprocessing.get_context("forkserver")
    report, stop = context.Queue(), context.Event()
    process = context.Process(target=serve, args=(kind, report, stop), daemon=True)
    process.start()
    try:
        yield report.get(timeout=60)
    finally:
        stop.set()
        process.join(10)


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("redis-server is not installed (Debian: apt-get install redis-server)")
    port = 16379
    folder = tempfile.mkdtemp(prefix="redis-")
    command = [program, "--port", str(port), "--dir", folder, "--save", "", "--bind", "127.0.0.1"]
    with open(os.path.join(folder, "log"), "w+") as log:  # not a pipe: it says so each time it throws a reader out
        process = subprocess.Popen(command, stdout=log)
        try:
            wait_for_redis(port, process)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait(30)
            shutil.rmtree(folder, ignore_errors=True)


def wait_for_redis(port: int, process: subprocess.Popen[bytes]) -> None:
    import redis

    with redis.Redis(port=port) as client:
        for _ in range(200):
            if process.poll() is not None:
                sys.exit(f"redis-server did not start at port {port}: code {process.returncode}")
            with contextlib.suppress(redis.ConnectionError):
                client.ping()
                return
            time.sleep(0.05)
    sys.exit(f"redis-server does not answer at port {port}")


# --- bars -------------------------------------------------------------------------------------------------------------


def judge(name: str, ours: list[Measured], peer: list[Measured]) -> bool:
    """Prints a bar as JSON; whether it is met. The ratio is the median of those of the rounds."""
    ratio = statistics.median(
        mine.steps_per_s / max(other.steps_per_s, 1.0) for mine, other in zip(ours, peer, strict=True)
    )
    lost, stored = sum(each.lost for each in peer), sum(each.stored for each in peer)
    met = ratio >= TARGET and not any(each.lost for each in ours)
    bar = {
        "name": name,
        "ours": round(statistics.median(each.steps_per_s for each in ours)),
        "peer": round(statistics.median(each.steps_per_s for each in peer)),
        "ratio": round(ratio, 2),
        "target": TARGET,
        "lost": sum(each.lost for each in ours),
        "peer_lost": round(lost / max(stored, 1), 3),
        "met": met,
    }
    print(json.dumps(bar), flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", default="1,4,16")
    parser.add_argument("--kinds", default="noise,game,small")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", default="redis,replay,node", help="measured beside pub/sub")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    numbers = [int(text) for text in options.writers.split(",")]
    kinds, judged_ones = options.kinds.split(","), options.systems.split(",")
    preload = ["numpy", "redis", "topology.nodes.store.memory_redis", "topology.nodes.store.memory_replay"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(preload)
    figures: dict[tuple[str, str, int], list[Measured]] = {}
    with redis_server() as url, served("replay") as replay, served("node") as node:
        systems: dict[str, System] = {
            "pub/sub": PubSub(url),
            "redis": Memory(url),
            "redis, not packed": Memory(url, name=f"{NAME}-plain", packing=None),
            "replay": Memory(f"replay:{replay}"),
            "node": Memory(f"node:{node}"),
        }
        systems = {
            name: system for name, system in systems.items() if name.partition(",")[0] in {"pub/sub", *judged_ones}
        }
        for kind in kinds:
            for number in numbers:
                for _ in range(options.rounds):
                    for name, system in systems.items():
                        measured = measure(system, kind, number, options.seconds)
                        figures.setdefault((name, kind, number), []).append(measured)
                line = {
                    name: round(statistics.median(m.steps_per_s for m in figures[name, kind, number]))
                    for name in systems
                }
                print(json.dumps({"steps/s of": kind, "writers": number, **line}), flush=True)
    met = [
        judge(
            f"{judged} against pub/sub with pickle, {kind}, {number} writers, steps/s",
            *(figures[name, kind, number] for name in (judged, "pub/sub")),
        )
        for judged in judged_ones
        for kind in kinds
        if kind != "small"
        for number in numbers
    ]
    lost = {
        f"{name}, {kind}, {number}": sum(m.lost for m in measured)
        for (name, kind, number), measured in figures.items()
        if name != "pub/sub" and any(m.lost for m in measured)
    }
    print(
        json.dumps(
            {"name": "lost by a memory backend, steps", "ours": sum(lost.values()), "where": lost, "met": not lost}
        )
    )
    return 0 if all(met) and not lost else 1


if __name__ == "__main__":
    sys.exit(main())
