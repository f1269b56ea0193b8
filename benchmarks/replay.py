"""The replay service beside the original Reverb, as ratios of one run.

    python benchmarks/replay.py [--peers DIRECTORY --peer-python PYTHON] [--rounds 3] [--only insert ...]

The peer is measured by `reverb_peer.py` in --peers (or $TOPOLOGY_PEERS), under --peer-python (or
$TOPOLOGY_PEER_PYTHON), which has the original installed. Without it only our figures are printed. Every figure is the
median over rounds in which both take turns, on the same items. One JSON object a bar; exit code 1 if one is missed.
`cpu_us` is what an item cost our client and server together: on a machine that others use, it drifts less than speed.
`memcpy` is the share of what numpy alone gathers here, on one core, from an array of such items.

small: two vectors of 10 floats, action, reward, discount (92 bytes). frames: two 84x84 uint8 frames. sequences: 20
steps of one such frame, an item every 10 steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from topology.compat.reverb.client import Client
from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors

LENGTH, PERIOD, BATCH = 20, 10, 256
COUNTS = {"small": 20_000, "frames": 10_000, "sequences": 2_000}
MEMORY_COUNTS = {"small": 200_000, "frames": 40_000}


class Bar(NamedTuple):
    """What is measured, how much better it must be, and how the peer's script calls it."""

    what: str
    items: str
    ratio: float
    peer: tuple[str, ...]
    selector: str = "uniform"
    writers: int = 1
    most: float | None = None  # bytes an item, where that is the bar, whatever the peer needs

    @property
    def num_items(self) -> int:
        if self.what == "one by one":
            return 5000
        return MEMORY_COUNTS[self.items] if self.what == "memory" else COUNTS[self.items]

    @property
    def name(self) -> str:
        writers = f", {self.writers} writers" if self.writers > 1 else ""
        return f"{self.what} {self.items} ({self.selector}{writers})"


BARS = (
    Bar("insert", "small", 5, ("insert",)),
    Bar("insert", "frames", 5, ("insert",)),
    Bar("insert", "sequences", 5, ("insert",)),
    Bar("insert_batches", "small", 20, ("insert",)),
    Bar("insert", "small", 5, ("insert",), writers=4),
    Bar("batches", "small", 10, ("dataset",)),
    Bar("batches", "small", 10, ("dataset",), selector="prioritized"),
    Bar("batches", "frames", 10, ("dataset",)),
    Bar("batches", "frames", 10, ("dataset",), selector="prioritized"),
    Bar("batches", "sequences", 10, ("dataset",)),
    Bar("one by one", "small", 0.7, ("sample",)),
    Bar("one by one", "frames", 0.7, ("sample",)),
    Bar("priorities", "small", 1, ("priorities",), selector="prioritized"),
    Bar("memory", "small", 20, ("memory",)),
    Bar("memory", "frames", 1, ("memory",), most=1.05 * (2 * 84 * 84 + 12)),
    Bar("mixed", "small", 5, ("mixed",), writers=4),
)


class Figures(NamedTuple):
    """What was measured: items per second (inserted and sampled in `mixed`) or bytes per item; microseconds of CPU."""

    values: tuple[float, ...]
    cpu_us: float | None = None


# --- ours -----------------------------------------------------------------------------------------------------------


def steps(kind: str) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    scalars = {"action": np.int32(1), "reward": np.float32(1), "discount": np.float32(1)}
    if kind == "small":
        vectors = rng.standard_normal((64, 2, 10)).astype(np.float32)
        return [{"o": o, "o2": o2, **scalars} for o, o2 in vectors]
    shape = (2, 84, 84) if kind == "frames" else (84, 84)
    return [{"o": rng.integers(0, 255, shape, dtype=np.uint8), **scalars} for _ in range(64)]


def write(client: replay.Client, kind: str, count: int) -> float:
    """Inserts item by item; returns items per second."""
    data, length = steps(kind), LENGTH if kind == "sequences" else 1
    period = PERIOD if kind == "sequences" else 1
    start, created, step = time.perf_counter(), 0, 0
    with client.trajectory_writer(length) as writer:
        while created < count:
            writer.append(data[step % 64])
            step += 1
            if step >= length and (step - length) % period == 0:
                writer.create_item("table", 1.0 + created % 7, {k: v[-length:] for k, v in writer.history.items()})
                writer.flush(block_until_num_items=200 if length == 1 else 20)
                created += 1
    return count / (time.perf_counter() - start)


def write_batches(client: replay.Client, kind: str, count: int) -> float:
    """Inserts steps and items by batches; returns items per second."""
    some = steps(kind)
    batch = {k: np.stack([step[k] for step in some * (BATCH // 64)]) for k in some[0]}
    priorities = 1.0 + np.arange(BATCH) % 7
    start = time.perf_counter()
    with client.trajectory_writer(1) as writer:
        for _ in range(count // BATCH):
            writer.append_batch(batch)
            writer.create_items("table", priorities, {k: v[-1:] for k, v in writer.history.items()})
            writer.flush(block_until_num_items=4 * BATCH)
    return count // BATCH * BATCH / (time.perf_counter() - start)


def read_batches(client: replay.Client, kind: str, seconds: float) -> float:
    size = 32 if kind == "sequences" else BATCH
    # The fastest found, as for the peer.
    with client.batches("table", size, prefetch=4 if kind == "small" else 3) as batches:
        for _ in range(6):
            next(batches)
        done, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            next(batches)
            done += size
        return done / (time.perf_counter() - start)


def read_one_by_one(client: replay.Client, count: int) -> float:
    """As a program written for the peer does, by the names it uses."""
    start = time.perf_counter()
    with Client(client.server_address) as one:
        done = sum(1 for _ in one.sample("table", count))
        return done / (time.perf_counter() - start)


def update_priorities(client: replay.Client, seconds: float) -> float:
    keys = np.unique(client.sample_batch("table", 4096).info.key)[:2048]
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for first in range(0, len(keys) - 255, 256):
            client.update_priorities("table", keys[first : first + 256], np.full(256, 1.5))
            done += 256
    return done / (time.perf_counter() - start)


def role(command: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "--role", command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def server(selector: str) -> Iterator[tuple[replay.Client, psutil.Process]]:
    process = role("server", "--selector", selector)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with replay.Client(address) as client:
            yield client, psutil.Process(process.pid)
    finally:
        process.communicate()


def gather_speed(kind: str) -> float:
    """Items per second that numpy copies into batches from random places of an array as large as the table."""
    size, count, item_bytes = BATCH, COUNTS["frames"], 2 * 84 * 84
    if kind == "sequences":
        size, count, item_bytes = 32, COUNTS[kind] * PERIOD // LENGTH, LENGTH * 84 * 84
    items = np.ones((count, item_bytes), np.uint8)
    batch, rng = np.empty((size, item_bytes), np.uint8), np.random.default_rng(0)
    done, spent = 0, 0.0
    while spent < 0.3:
        chosen = rng.integers(0, count, size)
        start = time.perf_counter()
        items.take(chosen, 0, batch, "clip")
        spent += time.perf_counter() - start
        done += size
    return done / spent


def start_writers(client: replay.Client, bar: Bar, count: int) -> list[subprocess.Popen[str]]:
    arguments = ("--address", client.server_address, "--items", bar.items, "--count", str(count))
    return [role("writer", *arguments) for _ in range(bar.writers)]


def mixed(client: replay.Client, bar: Bar, count: int) -> tuple[float, float]:
    """Batches are read as long as all writers write; returns items per second inserted, and sampled."""
    with client.batches("table", BATCH, prefetch=4) as batches:
        for _ in range(6):
            next(batches)
        writers = start_writers(client, bar, count)
        done, start = 0, time.perf_counter()
        while all(writer.poll() is None for writer in writers):
            next(batches)
            done += BATCH
        sampled = done / (time.perf_counter() - start)
        return sum(float(writer.communicate()[0]) for writer in writers), sampled


def measure(bar: Bar, seconds: float) -> Figures:
    count = bar.num_items
    with server(bar.selector) as (client, process):
        write(client, bar.items, 300)
        if bar.what == "insert_batches":
            return timed(process, 20 * count, lambda: write_batches(client, bar.items, 20 * count))
        if bar.what == "insert" and bar.writers > 1:
            return Figures((sum(float(each.communicate()[0]) for each in start_writers(client, bar, count)),))
        before = process.memory_info().rss
        if bar.what == "insert":
            return timed(process, count, lambda: write(client, bar.items, count))
        write(client, bar.items, count)
        if bar.what == "memory":
            return Figures(((process.memory_info().rss - before) / count,))
        if bar.what == "mixed":
            return Figures(mixed(client, bar, 2 * count))
        if bar.what == "one by one":
            return timed(process, count, lambda: read_one_by_one(client, count))
        if bar.what == "batches":
            return timed(process, None, lambda: read_batches(client, bar.items, seconds))
        return timed(process, None, lambda: update_priorities(client, seconds))


def timed(process: psutil.Process, count: int | None, run: Callable[[], float]) -> Figures:
    """Runs something that returns a speed, and finds its CPU time; `count` of items, if that is not speed by time."""

    def cpu_s() -> float:
        times = process.cpu_times()
        return time.process_time() + float(times.user) + float(times.system)

    cpu, start = cpu_s(), time.perf_counter()
    speed = run()
    done = speed * (time.perf_counter() - start) if count is None else count
    return Figures((speed,), 1e6 * (cpu_s() - cpu) / done)


def serve(selector: str) -> None:
    sampler = selectors.Uniform() if selector == "uniform" else selectors.Prioritized(0.6)
    table = replay.Table("table", sampler, selectors.Fifo(), 1_000_000, rate_limiters.MinSize(1))
    with replay.Server([table]) as running:
        print(running.address, flush=True)
        sys.stdin.read()


# --- the peer, and the comparison -----------------------------------------------------------------------------------


def measure_peer(options: argparse.Namespace, bar: Bar) -> Figures:
    if bar.what == "mixed":
        command = [options.peer_python, str(Path(__file__).with_name("reverb_mixed_peer.py")), options.peers]
    else:
        script = str(Path(options.peers) / "reverb_peer.py")
        command = [options.peer_python, script, "--what", *bar.peer, "--selector", bar.selector]
        command += ["--seconds", str(options.seconds)]
    command += ["--items", bar.items, "--writers", str(bar.writers), "--count", str(bar.num_items)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    if bar.what == "mixed":
        return Figures((result["inserted_per_s"], result["sampled_per_s"]))
    return Figures((result["bytes_per_item" if bar.what == "memory" else "items_per_s"],))


def medians(rounds: list[Figures]) -> list[float]:
    return [statistics.median(each) for each in zip(*(figures.values for figures in rounds), strict=True)]


def compare(options: argparse.Namespace, bar: Bar, *, with_peer: bool) -> bool:
    ours: list[Figures] = []
    theirs: list[Figures] = []
    for _ in range(options.rounds):
        ours.append(measure(bar, options.seconds))
        if with_peer:
            theirs.append(measure_peer(options, bar))
    mine, memory = medians(ours), bar.what == "memory"
    line: dict[str, Any] = {"name": bar.name, "unit": "bytes/item" if memory else "items/s"}
    line["ours"] = [round(value, 1) for value in mine]
    if ours[0].cpu_us is not None:
        line["cpu_us"] = round(statistics.median(figures.cpu_us or 0.0 for figures in ours), 2)
    if bar.what == "batches" and bar.items != "small":
        line["memcpy"] = round(mine[0] / gather_speed(bar.items), 2)
    reached = bar.most is None or mine[0] <= bar.most
    if theirs:
        other = medians(theirs)
        ratio = min(b / a if memory else a / b for a, b in zip(mine, other, strict=True))
        reached = reached and ratio >= bar.ratio
        line.update(peer=[round(value, 1) for value in other], ratio=round(ratio, 2), target=bar.ratio)
    print(json.dumps({**line, "met": reached}), flush=True)
    return reached


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=os.environ.get("TOPOLOGY_PEERS"))
    parser.add_argument("--peer-python", default=os.environ.get("TOPOLOGY_PEER_PYTHON"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", nargs="*", help="words that a bar's name must contain")
    parser.add_argument("--role", choices=["main", "server", "writer"], default="main", help=argparse.SUPPRESS)
    parser.add_argument("--selector", default="uniform", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--items", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "server":
        serve(options.selector)
        return 0
    if options.role == "writer":
        with replay.Client(options.address) as client:
            print(write(client, options.items, options.count))
        return 0
    with_peer = bool(options.peers and options.peer_python)
    chosen = [bar for bar in BARS if all(word in bar.name for word in options.only or ())]
    checkpoints = all(word in "checkpoint small" for word in options.only or ())
    if not chosen and not checkpoints:
        parser.error(f"no bar's name contains all of {options.only}; there are {[bar.name for bar in BARS]}")
    results = [compare(options, bar, with_peer=with_peer) for bar in chosen]
    if checkpoints:
        results.append(compare_checkpoints(options, with_peer=with_peer))
    return 0 if all(results) else 1


# --- checkpoints ----------------------------------------------------------------------------------------------------


def compare_checkpoints(
    options: argparse.Namespace, *, with_peer: bool, count: int = 100_000, target: float = 3
) -> bool:
    """Seconds to save and to restore `count` small items; starting the server is part of restoring."""
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    for _ in range(options.rounds):
        ours.append(measure_checkpoint(count))
        if with_peer:
            script = str(Path(options.peers) / "reverb_peer.py")
            command = [options.peer_python, script, "--what", "checkpoint", "--items", "small", "--count", str(count)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
            result = json.loads(done.stdout.splitlines()[-1])
            theirs.append((result["save_s"], result["restore_s"]))
    reached = True
    for index, what in enumerate(("save", "restore")):
        mine = statistics.median(times[index] for times in ours)
        line: dict[str, Any] = {"name": f"checkpoint {what} {count} small", "unit": "s", "ours": round(mine, 3)}
        if theirs:
            other = statistics.median(times[index] for times in theirs)
            line.update(peer=round(other, 3), ratio=round(other / mine, 2), target=target, met=other / mine >= target)
            reached &= bool(line["met"])
        print(json.dumps(line), flush=True)
    return reached


def measure_checkpoint(count: int) -> tuple[float, float]:
    def start() -> replay.Server:
        table = replay.Table("table", selectors.Uniform(), selectors.Fifo(), 1_000_000, rate_limiters.MinSize(1))
        return replay.Server([table], checkpointer=replay.DefaultCheckpointer(folder))

    with tempfile.TemporaryDirectory() as folder:
        with start() as server, replay.Client(server.address) as client:
            write_batches(client, "small", count + BATCH)
            begin = time.perf_counter()
            client.checkpoint()
            save_s = time.perf_counter() - begin
        begin = time.perf_counter()
        with start() as server:
            restore_s = time.perf_counter() - begin
            assert server.tables["table"].info.current_size >= count
    return save_s, restore_s


if __name__ == "__main__":
    sys.exit(main())
