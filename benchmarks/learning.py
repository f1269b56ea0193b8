"""What the agents learn: the bars of docs/results.md, each a command run with several seeds, one after the other.

    python benchmarks/learning.py [--only dqn catch ...] [--seeds 0 1 2] [--pictures docs/images] [--list]

Every node is a process, as the command `topology launch` starts it. The figure of a run is the mean return of its final
evaluation, and each seed must reach the target. One JSON object a bar; exit code 1 if one is missed. With --pictures
the learning curves of each bar become one PNG. All of it takes about an hour on two free cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

TIMEOUT_S = 3600.0


class Bar(NamedTuple):
    """An agent on an environment, and what each seed must reach.

    Attributes:
        name: of the picture.
        agent: its name.
        settings: other than the defaults.
        target: least mean return of the final evaluation; with `below`, the greatest.
        below: whether the target is not to be passed: an agent that lacks what the environment asks for.
    """

    name: str
    agent: str
    settings: dict[str, Any]
    target: float
    below: bool = False

    def command(self, seed: int) -> list[str]:
        """The command, for a shell."""
        words = ["topology", "launch", self.agent, "--no-live", "--seed", str(seed)]
        return words + [f"--set={name}={value}" for name, value in self.settings.items()]

    def is_met(self, value: float) -> bool:
        return value < self.target if self.below else value >= self.target


CHAIN = {"environment": "memory_chain:10", "num_actors": 2, "max_actor_steps": 6_000, "final_evaluation_episodes": 400}
BARS = [
    Bar("dqn-catch", "dqn", {"environment": "catch", "final_evaluation_episodes": 100}, 0.95),
    Bar("dqn-cartpole", "dqn", {"environment": "gym:CartPole-v1", "final_evaluation_episodes": 20}, 475),
    Bar(
        "dqn-breakout",
        "dqn",
        {
            "environment": "gym:MinAtar/Breakout-v1",
            "max_actor_steps": 500_000,
            "hidden_sizes": "256,128",
            "samples_per_insert": 4,
            "learning_rate": 5e-4,
            "target_update_period": 500,
            "min_replay_size": 5_000,
            "max_replay_size": 100_000,
            "evaluation_period": 50_000,
            "final_evaluation_episodes": 100,
        },
        8,
    ),
    Bar("r2d2-memory-chain", "r2d2", CHAIN, 0.9),
    Bar("dqn-memory-chain", "dqn", CHAIN, 0.2, below=True),
    Bar(
        "r2d2-cartpole-hidden",
        "r2d2",
        {
            "environment": "cartpole_hidden",
            "trace_length": 24,
            "replay_period": 12,
            "samples_per_insert": 64,
            "learning_rate": 5e-4,
            "final_learning_rate": 1e-5,
            "max_actor_steps": 80_000,
            "final_evaluation_episodes": 20,
        },
        400,
    ),
    Bar("impala-catch", "impala", {"environment": "catch", "final_evaluation_episodes": 100}, 0.95),
    Bar("impala-cartpole", "impala", {"environment": "gym:CartPole-v1", "final_evaluation_episodes": 20}, 450),
    Bar("dmpo-pendulum", "dmpo", {"environment": "gym:Pendulum-v1", "final_evaluation_episodes": 100}, -200),
    Bar(
        "dmpo-swingup",
        "dmpo",
        {
            "environment": "dm_control:cartpole-swingup",
            "min_return": 0,
            "max_return": 100,
            "n_step": 5,
            "final_learning_rate": 1e-5,
            "max_actor_steps": 200_000,
            "evaluation_period": 10_000,
            "evaluation_episodes": 3,
            "final_evaluation_episodes": 20,
        },
        700,
    ),
    Bar(
        "madqn-two-step-qmix",
        "madqn",
        {"environment": "two_step", "mixing": "qmix", "epsilon_min": 1.0, "max_actor_steps": 10_000},
        8,
    ),
    Bar("madqn-two-step", "madqn", {"environment": "two_step", "mixing": "none", "max_actor_steps": 10_000}, 7),
    Bar(
        "madqn-switch-riddle",
        "madqn",
        {
            "environment": "switch_riddle",
            "recurrent": "true",
            "sequence_length": 7,
            "replay_period": 6,
            "discount": 1.0,
            "epsilon_decay": 2e-3,
            "epsilon_min": 0.02,
            "target_update_period": 50,
            "max_actor_steps": 16_000,
        },
        0.9,
    ),
    Bar(
        "madqn-simple-spread",
        "madqn",
        {
            "environment": "pettingzoo:mpe.simple_spread_v3",
            "mixing": "vdn",
            "n_step": 3,
            "discount": 0.95,
            "samples_per_insert": 16,
            "target_update_period": 200,
            "max_actor_steps": 25_000,
            "evaluation_period": 5_000,
            "final_evaluation_episodes": 50,
        },
        -23,
    ),
]


class Run(NamedTuple):
    """What one seed did: actor steps and mean returns of its evaluations, and seconds from the command to its end."""

    steps: list[int]
    returns: list[float]
    seconds: float


def run(bar: Bar, seed: int) -> Run:
    """Runs the command; blocks until it has ended."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        command = [str(Path(sys.executable).with_name("topology")), *bar.command(seed)[1:]]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--run-directory", str(directory)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        seconds = time.monotonic() - began
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
        lines = (directory / "metrics" / "evaluator-0.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "evaluator_return" in row]
    if not rows[-1]["evaluator_final"]:
        raise SystemExit(f"{' '.join(command)} ended without its final evaluation")
    return Run([row["actor_steps"] for row in rows], [row["evaluator_return"] for row in rows], seconds)


def draw(bar: Bar, runs: dict[int, Run], path: Path) -> None:
    """The curves of all seeds as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    for seed, each in runs.items():
        axes.plot(each.steps, each.returns, marker="o", markersize=3, label=f"seed {seed}: {each.returns[-1]:.4g}")
    axes.axhline(
        bar.target, color="#9aa4b2", linestyle="--", label=f"{'below' if bar.below else 'bar'}: {bar.target:g}"
    )
    axes.set_title(f"{bar.agent} on {bar.settings['environment']}", loc="left")
    axes.set_xlabel("actor steps")
    axes.set_ylabel("mean return of evaluations")
    axes.grid(visible=True, color="#e5e8ec")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, format="png")


def judge(bar: Bar, seeds: list[int], pictures: Path | None) -> bool:
    """Runs a bar and prints it; whether it is met."""
    runs = {seed: run(bar, seed) for seed in seeds}
    finals = [each.returns[-1] for each in runs.values()]
    met = all(map(bar.is_met, finals))
    line = {"name": bar.name, "unit": "mean return", "ours": [round(value, 3) for value in finals], "seeds": seeds}
    line |= {"seconds": [round(each.seconds) for each in runs.values()]}
    line |= {"peer": None, "ratio": None, "target": bar.target, "below": bar.below, "met": met}
    print(json.dumps(line), flush=True)
    if pictures is not None:
        draw(bar, runs, pictures / f"{bar.name}.png")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words that a bar's name must contain")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--pictures", type=Path, help="directory for the learning curves")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args()
    chosen = [bar for bar in BARS if all(word in bar.name for word in options.only)]
    if not chosen:
        parser.error(f"no bar's name contains all of {options.only}; there are {[bar.name for bar in BARS]}")
    if options.list:
        for bar in chosen:
            print(" ".join(bar.command(options.seeds[0])))
        return 0
    results = [judge(bar, options.seeds, options.pictures) for bar in chosen]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
