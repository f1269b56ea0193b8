"""Execution plans beside a loop written by hand over the same workers, and beside Ray actors, as ratios of one run.

    python benchmarks/flow.py [--rllib-python PYTHON] [--workers 4] [--seconds 3] [--rounds 5]

The bars of plans against loops have workers that play CartPole-v1 with a linear policy. Ray has workers whose policy is
one number and whose environment is a counter, so that the way of experience from workers to the driver is all there is;
plans and loops over such workers are shown, too, as what a batch costs the driver. Ray runs under --rllib-python, or
$TOPOLOGY_RLLIB_PYTHON: a Python that has Ray 2. Without it the plans are compared with the loops only. Every figure is
the median over rounds in which the systems take turns. Ends with one JSON object a bar; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

FRAGMENT = 200  # steps
IN_FLIGHT = 2  # requests of each worker
COLUMNS = ("obs", "actions", "rewards")


class Dummy:
    """Plays with a policy of one number."""

    def __init__(self) -> None:
        self.weight = 0.0
        self.state = 0

    def sample(self) -> dict[str, np.ndarray]:
        rows = []
        for _ in range(FRAGMENT):
            self.state = (self.state + 1) % 50
            rows.append((float(self.state), self.weight, 1.0))
        return {name: np.array(column) for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=True)}

    def set_weights(self, weight: float) -> None:
        self.weight = weight


# --- Ray ------------------------------------------------------------------------------------------------------------


def measure_ray(workers: int, seconds: float) -> Iterator[float]:
    """Steps a second, for each line on stdin."""
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
    actors = [ray.remote(Dummy).options(num_cpus=1).remote() for _ in range(workers)]
    ray.get([actor.sample.remote() for actor in actors])
    for _ in sys.stdin:
        under_way = {actor.sample.remote(): actor for actor in actors for _ in range(IN_FLIGHT)}

        def next_batch(under_way: dict[Any, Any] = under_way) -> int:
            [ready], _ = ray.wait(list(under_way), num_returns=1)
            batch = ray.get(ready)
            actor = under_way.pop(ready)
            under_way[actor.sample.remote()] = actor
            return len(batch["obs"])

        yield rate_of(next_batch, seconds)
        ray.get(list(under_way))
    ray.shutdown()


class RayPeer:
    """Ray in a process of its own."""

    def __init__(self, python: str, options: argparse.Namespace) -> None:
        command = [
            python,
            __file__,
            "--role",
            "ray",
            "--workers",
            str(options.workers),
            "--seconds",
            str(options.seconds),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("rate "):
                return float(line.split()[1])
        raise RuntimeError(f"Ray ended with code {self._process.wait()}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


# --- ours -----------------------------------------------------------------------------------------------------------


class OnePolicy(Dummy):
    """The same as a policy that learns: each batch adds 1."""

    def get_weights(self) -> float:
        return self.weight

    def learn_on_batch(self, batch: Any) -> dict[str, Any]:
        self.weight += 1
        return {"rows": batch.count}

    def on_global_vars_update(self, global_vars: Any) -> None:
        pass


class Sampler:
    """`Dummy` as a rollout worker's sampler."""

    def __init__(self, policy: OnePolicy) -> None:
        self._policy = policy

    def sample(self) -> Any:
        from topology.nodes.flow import SampleBatch

        return SampleBatch(self._policy.sample())

    def drain_episodes(self) -> list[Any]:
        return []

    def recover(self) -> None:
        pass

    def close(self) -> None:
        pass


class Player(OnePolicy):
    """Plays CartPole-v1: pushes to the side that a linear function of the observation says."""

    def __init__(self) -> None:
        import gymnasium

        super().__init__()
        self._environment = gymnasium.make("CartPole-v1")
        self._observation, _ = self._environment.reset(seed=0)
        self._slope = np.array([0.1, 0.2, 1.0, 1.0])

    def sample(self) -> dict[str, np.ndarray]:
        observations, actions, rewards = [], [], []
        for _ in range(FRAGMENT):
            action = int(self._observation @ self._slope + self.weight % 0.1 > 0)
            observations.append(self._observation)
            self._observation, reward, terminated, truncated, _ = self._environment.step(action)
            actions.append(action)
            rewards.append(reward)
            if terminated or truncated:
                self._observation, _ = self._environment.reset()
        return {"obs": np.array(observations), "actions": np.array(actions), "rewards": np.array(rewards)}


def make_worker(kind: type[OnePolicy] = OnePolicy) -> Any:
    from topology.nodes.flow import RolloutWorker

    policy = kind()
    return RolloutWorker(policy, Sampler(policy))


def new_set(clients: list[Any]) -> Any:
    from topology.nodes.flow import WorkerSet

    return WorkerSet(make_worker(), clients)


def plan_async(clients: list[Any], seconds: float) -> float:
    """Fragments as they come, by a plan."""
    from topology.nodes.flow import ParallelRollouts

    rollouts = ParallelRollouts(new_set(clients), mode="async", num_async=IN_FLIGHT)
    return rate_of(lambda: next(rollouts).count, seconds)


def loop_async(clients: list[Any], seconds: float) -> float:
    """The same by hand."""
    from concurrent.futures import FIRST_COMPLETED, wait

    under_way = {client.futures.sample(): client for client in clients for _ in range(IN_FLIGHT)}
    ready: set[Any] = set()

    def next_batch() -> int:
        nonlocal ready
        if not ready:
            ready = wait(under_way, return_when=FIRST_COMPLETED).done
        future = ready.pop()
        client = under_way.pop(future)
        under_way[client.futures.sample()] = client
        return int(future.result().count)

    rate = rate_of(next_batch, seconds)
    wait(under_way)
    return rate


def plan_sync(clients: list[Any], seconds: float) -> float:
    """A fragment of each worker, an update, new weights to all: by a plan."""
    from topology.nodes.flow import ConcatBatches, ParallelRollouts, TrainOneStep

    workers = new_set(clients)
    batches = ParallelRollouts(workers, mode="bulk_sync").combine(ConcatBatches(FRAGMENT * len(clients)))
    train = batches.for_each(TrainOneStep(workers))
    return rate_of(lambda: next(train)[0].count, seconds)


def loop_sync(clients: list[Any], seconds: float) -> float:
    """The same by hand."""
    from topology.nodes.flow import concat_samples

    local = make_worker()
    steps = 0

    def next_batch() -> int:
        nonlocal steps
        futures = [client.futures.sample() for client in clients]
        batch = concat_samples([future.result() for future in futures])
        steps += batch.count
        local.learn_on_batch(batch)
        weights = local.get_weights()
        for client in clients:
            client.futures.set_weights(weights, {"timestep": steps}, local.weights_version).ignore()
        return batch.count

    return rate_of(next_batch, seconds)


def with_workers(kind: type[OnePolicy], count: int, run: Callable[[list[Any]], None]) -> None:
    """Calls `run` with clients of so many workers of a kind, each a process."""
    import topology as lp
    from topology.nodes.flow.node import WorkerNode

    program = lp.Program("workers")
    with program.group("worker"):
        handles = [program.add_node(WorkerNode(functools.partial(make_worker, kind))) for _ in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        launched = lp.launch(program, lp.Processes(preload=("topology.nodes.flow",)), run_directory=folder)
        clients = [handle.dereference() for handle in handles]
        try:
            for client in clients:
                client.ping()
            run(clients)
        finally:
            for client in clients:
                client.close()
            launched.stop()
            launched.wait(30)


# --- measuring ------------------------------------------------------------------------------------------------------


def rate_of(next_batch: Callable[[], int], seconds: float) -> float:
    """Steps a second, after a fifth of the time to warm up."""
    end = time.perf_counter() + seconds / 5
    while time.perf_counter() < end:
        next_batch()
    began, steps = time.perf_counter(), 0
    while (now := time.perf_counter()) < began + seconds:
        steps += next_batch()
    return steps / (now - began)


def judge(name: str, ours: list[float], others: list[float], target: float) -> bool:
    """Prints a bar as JSON; whether it is met. The ratio is the median of those of the rounds."""
    ratio = statistics.median(mine / other for mine, other in zip(ours, others, strict=True))
    mine, other = statistics.median(ours), statistics.median(others)
    bar = {"name": name, "ours": round(mine), "peer": round(other), "ratio": round(ratio, 2), "target": target}
    print(json.dumps({**bar, "met": ratio >= target}), flush=True)
    return ratio >= target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rllib-python", default=os.environ.get("TOPOLOGY_RLLIB_PYTHON"))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "ray":
        for rate in measure_ray(options.workers, options.seconds):
            print(f"rate {rate}", flush=True)
        return 0
    systems = {"plan, async": plan_async, "loop, async": loop_async, "plan, sync": plan_sync, "loop, sync": loop_sync}
    figures: dict[str, list[float]] = {"ray": []}
    ray = RayPeer(options.rllib_python, options) if options.rllib_python else None

    def run(kind: str, clients: list[Any]) -> None:
        for _ in range(options.rounds):
            for name, measure in systems.items():
                figures.setdefault(f"{name}, {kind}", []).append(measure(clients, options.seconds))
            if ray is not None and kind == "empty":
                figures["ray"].append(ray())
            print(json.dumps({name: round(rates[-1]) for name, rates in figures.items() if rates}), flush=True)

    with_workers(Player, options.workers, functools.partial(run, "CartPole"))
    with_workers(OnePolicy, options.workers, functools.partial(run, "empty"))
    met = []
    for mode, text in (("async", "async"), ("sync", "bulk_sync with training")):
        plan, loop = (statistics.median(figures[f"{name}, {mode}, empty"]) for name in ("plan", "loop"))
        more_us = 1e6 * FRAGMENT * (1 / plan - 1 / loop)
        print(f"empty workers, {text}: {plan / loop:.2f} of the loop's steps/s, {more_us:.0f} us more a batch")
        ours, others = figures[f"plan, {mode}, CartPole"], figures[f"loop, {mode}, CartPole"]
        met.append(judge(f"plan against loop, {text}, steps/s", ours, others, 0.95))
    if ray is not None:
        ray.close()
        ours = figures["plan, async, empty"]
        met.append(judge("plan against Ray actors and ray.wait, steps/s", ours, figures["ray"], 2.0))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
