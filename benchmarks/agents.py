"""DQN beside Stable-Baselines3's and RLlib's: environment steps per second, and seconds to a return of 475.

    python benchmarks/agents.py [--peers DIRECTORY] [--sb3-python PYTHON] [--rllib-python PYTHON] [--only frames ...]

The peers' scripts `sb3_dqn.py` and `rllib_dqn.py` are looked for in --peers, or in $TOPOLOGY_PEERS, and run under the
Pythons of --sb3-python and --rllib-python, or $SB3_PYTHON and $RLLIB_PYTHON. Without a peer our figures are printed
alone. All take turns in one run, and a figure is the median over the rounds; of the numbers of threads that a peer is
tried with, the one that suits it best counts. One JSON object a bar; exit code 1 if one is missed.

Ours is the program as the command `topology launch dqn` starts it, every node a process: replay, counter, learner,
evaluator, cacher, actors. The rules, for everyone: the same environments; batches of 64 and 32 samples of each step
for CartPole, 32 and 8 for frames (84x84x4, uint8); 1,000 steps before the first update. A window opens 5 s after the
first update. `replay_ratio` is measured: samples for each step. `cores` are those that a program kept busy, `others`
those of everything else on the machine: where the two add up to all there are, steps_per_core_s says more than speed.

until 475: seconds from the command to the first greedy evaluation of at least 475 over 20 episodes, one every 2,000
steps, start-up included.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
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

import psutil

WARM_UP_S = 5.0
TIMEOUT_S = 900.0


class Workload(NamedTuple):
    """What all agree on, our settings for it, and how many threads the peers are tried with."""

    batch_size: int
    replay_ratio: float
    settings: dict[str, str]
    threads: tuple[int, ...]
    like_sb3: dict[str, str] = {}  # noqa: RUF012 - never changed


WORKLOADS = {
    # The peers make 128 updates at a time here, ours 64. RLlib's algorithm is ours, with another head for the value;
    # SB3's is DQN of 2015.
    "CartPole-v1": Workload(
        64,
        32.0,
        {
            "environment": "gym:CartPole-v1",
            "hidden_sizes": "256,256",
            "updates_per_call": "64",
            "variable_update_period": "200",
            "samples_per_insert_tolerance": "0.2",
        },
        (1,),
        {"double_q": "false", "priority_exponent": "0", "n_step": "1"},
    ),
    # All run DQN of 2015 here: its convolutions, samples drawn evenly, targets of one step.
    "frames": Workload(
        32,
        8.0,
        {
            "environment": "{peers}/frames_env.py:FramesEnv",
            "max_replay_size": "20000",
            "hidden_sizes": "512",
            "n_step": "1",
            "double_q": "false",
            "priority_exponent": "0",
            "learning_rate": "1e-4",
            "target_update_period": "1000",
            "updates_per_call": "1",
            "samples_per_insert_tolerance": "0.05",
            "variable_update_period": "200",
        },
        (1, 2),
    ),
}


class Bar(NamedTuple):
    """How many times a peer's speed is wanted."""

    environment: str
    actors: int
    ratios: dict[str, float]

    @property
    def name(self) -> str:
        return f"{self.environment}, {self.actors} actor{'s' if self.actors > 1 else ''}"


BARS = [
    Bar(environment, actors, ratios)
    for environment, ratios in (
        ("CartPole-v1", {"sb3": 5.0, "rllib": 20.0}),
        ("frames", {"sb3": 1.5, "rllib": 2.5}),
    )
    for actors in (1, 2, 4)
]


class Figures(NamedTuple):
    """What one run did in its window."""

    steps_per_s: float
    replay_ratio: float
    cores: float
    others: float

    def report(self) -> dict[str, float]:
        return {
            **{name: round(value, 2) for name, value in self._asdict().items()},
            "steps_per_core_s": round(self.steps_per_s / self.cores, 1),
        }


# --- ours -----------------------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """Where a run stood: its counts with the time they were written, and the processor time used until now."""

    time_s: float
    steps: int
    updates: int
    clock_s: float
    own_cpu_s: float
    machine_cpu_s: float


@contextmanager
def launched(options: argparse.Namespace, settings: dict[str, str], seed: int) -> Iterator[tuple[psutil.Popen, Path]]:
    """The command, and the directory of its run; it is stopped at the end."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        command = [str(Path(sys.executable).with_name("topology")), "launch", "dqn", "--no-live"]
        command += ["--run-directory", str(run), "--seed", str(seed)]
        for name, value in settings.items():
            command += ["--set", f"{name}={value.format(peers=options.peers)}"]
        with (Path(directory) / "log").open("w+") as log:
            process = psutil.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            try:
                yield process, run
                if process.poll() is not None:
                    log.seek(0)
                    raise SystemExit(f"{' '.join(command)} ended too early:\n{log.read()}")
            finally:
                process.terminate()  # not SIGINT, which a job in the background ignores
                process.wait(60)


def rows(run: Path, node: str) -> list[dict[str, float]]:
    """The metrics of a node so far; a line that is being written is left out."""
    try:
        lines = (run / "metrics" / f"{node}.jsonl").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def wait_for(process: psutil.Popen, what: Callable[[], Any]) -> Any:
    """Looks ten times a second for something that is true; ends with the process or after `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if found := what():
            return found
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(0.1)
    raise SystemExit(f"the run ended, or had made nothing after {TIMEOUT_S:.0f} s (exit code {process.poll()})")


def mark(process: psutil.Popen, run: Path, after_s: float) -> Mark | None:
    """Where the run stands, from the first counts written after `after_s`; None until there are some."""
    later = [row for row in rows(run, "counter-0") if row["time"] >= after_s and row.get("learner_steps")]
    if not later:
        return None
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    machine = psutil.cpu_times()
    return Mark(
        later[-1]["time"],
        int(later[-1]["actor_steps"]),
        int(later[-1]["learner_steps"]),
        time.monotonic(),
        sum(each.user + each.system for each in times),
        sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice,
    )


def measure(options: argparse.Namespace, bar: Bar, peer: str, seed: int) -> Figures:
    """Our speed in a window of `--seconds`, with the algorithm of a peer."""
    workload = WORKLOADS[bar.environment]
    settings = {
        **workload.settings,
        **(workload.like_sb3 if peer == "sb3" else {}),
        "num_actors": str(bar.actors),
        "batch_size": str(workload.batch_size),
        "samples_per_insert": str(workload.replay_ratio),
        "max_actor_steps": "none",
        "evaluation_period": "1000000000",  # like the peers': outside the window
    }
    with launched(options, settings, seed) as (process, run):
        begin = wait_for(process, lambda: mark(process, run, 0.0))
        first: Mark = wait_for(process, lambda: mark(process, run, begin.time_s + WARM_UP_S))
        last: Mark = wait_for(process, lambda: mark(process, run, first.time_s + options.seconds))
    steps, seconds, clock_s = last.steps - first.steps, last.time_s - first.time_s, last.clock_s - first.clock_s
    own = last.own_cpu_s - first.own_cpu_s
    return Figures(
        steps / seconds,
        (last.updates - first.updates) * workload.batch_size / max(steps, 1),
        own / clock_s,
        (last.machine_cpu_s - first.machine_cpu_s - own) / clock_s,
    )


def until(options: argparse.Namespace, target: float, seed: int) -> float:
    """Our seconds from the command to the first evaluation of at least `target`; infinite when it is not reached."""
    settings = {
        **WORKLOADS["CartPole-v1"].settings,
        "num_actors": "2",
        "evaluation_period": "2000",
        "evaluation_episodes": "20",
        "final_evaluation_episodes": "20",
    }

    def reached() -> float | None:
        evaluations = rows(run, "evaluator-0")
        if good := [row["time"] for row in evaluations if row["evaluator_return"] >= target]:
            return good[0] - started
        over = time.time() - started > options.cap or any(row["evaluator_final"] for row in evaluations)
        return float("inf") if over else None

    started = time.time()
    with launched(options, settings, seed) as (process, run):
        return float(wait_for(process, reached))


# --- the peers, and the comparison ----------------------------------------------------------------------------------


def ask_peer(options: argparse.Namespace, peer: str, *arguments: str) -> dict[str, Any]:
    python = {"sb3": options.sb3_python, "rllib": options.rllib_python}[peer]
    command = [python, str(Path(options.peers) / f"{peer}_dqn.py"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure_peer(options: argparse.Namespace, peer: str, bar: Bar, seed: int) -> Figures:
    """A peer's speed, with the number of threads that suits it best."""
    common = ("--env", bar.environment, "--actors", str(bar.actors), "--seed", str(seed))
    results = [
        ask_peer(options, peer, *common, "--seconds", str(options.seconds), "--threads", str(threads))
        for threads in WORKLOADS[bar.environment].threads
    ]
    best = max(results, key=lambda result: result["env_steps_per_s"])
    return Figures(best["env_steps_per_s"], best["replay_ratio"], best["cores_used"], best["cores_used_by_others"])


def compare(options: argparse.Namespace, bar: Bar, peer: str | None) -> bool:
    """Prints the bar of one workload, number of actors and peer, or our figures alone; whether it is met."""
    ours: list[Figures] = []
    theirs: list[Figures] = []
    for seed in range(options.rounds):
        ours.append(measure(options, bar, peer or "", seed))
        if peer is not None:
            theirs.append(measure_peer(options, peer, bar, seed))
    mine = Figures(*map(statistics.median, zip(*ours, strict=True)))
    line: dict[str, Any] = {"name": bar.name, "unit": "steps/s", "ours": mine.report()}
    met = abs(mine.replay_ratio / WORKLOADS[bar.environment].replay_ratio - 1) < 0.05  # otherwise it is not comparable
    if peer is not None:
        other = Figures(*map(statistics.median, zip(*theirs, strict=True)))
        ratio = mine.steps_per_s / other.steps_per_s
        per_core = mine.steps_per_s / mine.cores / (other.steps_per_s / other.cores)
        met = met and ratio >= bar.ratios[peer]
        line["name"] += f": {peer}"
        line |= {"peer": other.report(), "ratio": round(ratio, 2), "ratio_per_core": round(per_core, 2)}
        line["target"] = bar.ratios[peer]
    print(json.dumps({**line, "met": met}), flush=True)
    return met


def seconds(value: float) -> float | None:
    """For JSON, which has no infinity: None where the return was not reached."""
    return round(value, 1) if math.isfinite(value) else None


def compare_until(options: argparse.Namespace, peers: list[str], target: float = 475.0) -> bool:
    """Prints the bar of the seconds to a return; whether it is met."""
    ours: list[float] = []
    theirs: list[float] = []
    for seed in range(options.seeds):
        ours.append(until(options, target, seed))
        if "sb3" in peers:
            # One environment, as the zoo has it.
            arguments = ("--until", str(target), "--seed", str(seed), "--cap", str(options.cap))
            result = ask_peer(options, "sb3", *arguments)
            wall_s = result["startup_s"] + result["target"]["wall_s"]
            theirs.append(wall_s if result["target"]["reached"] else float("inf"))
    mine = statistics.median(ours)
    line: dict[str, Any] = {"name": f"seconds until {target:.0f} on CartPole-v1", "unit": "s", "ours": seconds(mine)}
    line["ours_by_seed"] = [seconds(each) for each in ours]
    met = mine < float(options.cap)
    if theirs:
        other = statistics.median(theirs)
        met = met and mine <= other
        line |= {"peer": seconds(other), "peer_by_seed": [seconds(each) for each in theirs]}
        line |= {"ratio": round(other / mine, 2) if math.isfinite(other) else None, "target": 1.0}
    print(json.dumps({**line, "met": met}), flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=os.environ.get("TOPOLOGY_PEERS"))
    parser.add_argument("--sb3-python", default=os.environ.get("SB3_PYTHON"))
    parser.add_argument("--rllib-python", default=os.environ.get("RLLIB_PYTHON"))
    parser.add_argument("--rounds", type=int, default=1, help="of the speeds")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a window")
    parser.add_argument("--seeds", type=int, default=5, help="of the runs to a return")
    parser.add_argument("--cap", type=float, default=360.0, help="seconds after which a run to a return is given up")
    parser.add_argument("--only", nargs="*", default=[], help="words that a bar's name must contain")
    options = parser.parse_args()
    pythons = {"sb3": options.sb3_python, "rllib": options.rllib_python}
    peers = [name for name, python in pythons.items() if options.peers and python]
    if options.peers is None and any("frames" in bar.name for bar in chosen(options)):
        parser.error("the frames are made by frames_env.py of the peers: say where with --peers or $TOPOLOGY_PEERS")
    results = [compare(options, bar, peer) for bar in chosen(options) for peer in peers or [None]]
    if all(word in "seconds until 475 on CartPole-v1" for word in options.only):
        results.append(compare_until(options, peers))
    return 0 if all(results) else 1


def chosen(options: argparse.Namespace) -> list[Bar]:
    return [bar for bar in BARS if all(word in bar.name for word in options.only)]


if __name__ == "__main__":
    sys.exit(main())
