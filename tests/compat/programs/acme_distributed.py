"""A distributed TensorFlow agent of dm-acme, on a task it can learn in a minute; as its users write such programs.

    TOPOLOGY_COMPAT=1 python acme_distributed.py --agent=d4pg --caches=1 --lp_launch_type=local_mp

Ends when the actors have done `--steps`, and then says what the first and the last episodes returned: of D4PG's
evaluator, of SVG0's actors. Acme's SVG0 fetches weights every 1000 steps of an actor or evaluator. What is learned from
the first policy alone saturates, so that actors become worse with the first fetch, and good with the second.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import dm_env
import launchpad as lp
import numpy as np
import sonnet as snt
from absl import app, flags
from acme import specs
from acme.agents.tf import d4pg, svg0_prior
from acme.tf import networks
from acme.tf import utils as tf2_utils

AGENT = flags.DEFINE_enum("agent", "d4pg", ["d4pg", "svg0"], "Which agent.")
STEPS = flags.DEFINE_integer("steps", 1500, "Actor steps after which the program ends.")
CACHES = flags.DEFINE_integer("caches", 0, "How many cachers stand between the learner and the actors.")
ACTORS = flags.DEFINE_integer("actors", 1, "How many actors.")


class Match(dm_env.Environment):
    """The action is to equal the observation, for ten steps. Random actions return about -6, zeros -4, the best 0.

    Args:
        path: where the returns of its episodes are appended; None for nowhere.
        pause_s: after each episode.
    """

    def __init__(self, path: Path | None, pause_s: float) -> None:
        self._path = path
        self._pause_s = pause_s
        self._random = np.random.default_rng()
        self._step, self._return = 0, 0.0

    def observation_spec(self) -> Any:
        return specs.BoundedArray((2,), np.float32, -1.0, 1.0, "observation")

    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.float32, -1.0, 1.0, "action")

    def reward_spec(self) -> Any:
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> Any:
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")

    def reset(self) -> dm_env.TimeStep:
        self._step, self._return = 0, 0.0
        self._draw()
        return dm_env.restart(self._goal)

    def _draw(self) -> None:
        self._goal = self._random.uniform(-0.8, 0.8, 2).astype(np.float32)

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        reward = -np.abs(action - self._goal).mean(dtype=np.float32)
        self._step, self._return = self._step + 1, self._return + float(reward)
        self._draw()
        if self._step < 10:
            return dm_env.TimeStep(dm_env.StepType.MID, reward, np.float32(1), self._goal)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(f"{self._return}\n")
        time.sleep(self._pause_s)
        return dm_env.TimeStep(dm_env.StepType.LAST, reward, np.float32(0), self._goal)


def d4pg_networks(action_spec: Any) -> dict[str, Any]:
    """Policy and critic of D4PG."""
    policy = [networks.LayerNormMLP([64], activate_final=True), networks.NearZeroInitializedLinear(2)]
    critic = networks.CriticMultiplexer(critic_network=networks.LayerNormMLP([64], activate_final=True))
    return {
        "policy": snt.Sequential([*policy, networks.TanhToSpec(action_spec)]),
        "critic": snt.Sequential([critic, networks.DiscreteValuedHead(-2.5, 0.1, 51)]),
        "observation": tf2_utils.batch_concat,
    }


def svg0_networks(action_spec: Any) -> dict[str, Any]:
    """Policy and critic of SVG0."""
    del action_spec
    head = networks.MultivariateNormalDiagHead(
        2, tanh_mean=True, min_scale=0.1, init_scale=0.3, fixed_scale=False, use_tfd_independent=False
    )
    critic = [networks.LayerNormMLP([64], activate_final=True), networks.NearZeroInitializedLinear(1)]
    return {
        "policy": snt.Sequential([tf2_utils.batch_concat, networks.LayerNormMLP([64], activate_final=True), head]),
        "critic": snt.Sequential([networks.CriticMultiplexer(), *critic]),
    }


def build(returns: Path) -> lp.Program:
    """The program; the returns that count are written to that file."""
    of_evaluator = AGENT.value == "d4pg"

    def make_environment(evaluation: bool) -> Match:
        pause_s = 0.05 if evaluation else 0.0  # the evaluator is to leave the processor to the others
        return Match(returns if evaluation == of_evaluator else None, pause_s)

    common: dict[str, Any] = {
        "environment_factory": make_environment,
        "num_actors": ACTORS.value,
        "num_caches": CACHES.value,
        "batch_size": 64,
        "min_replay_size": 100,
        "max_replay_size": 10_000,
        "target_update_period": 20,
        "critic_optimizer": snt.optimizers.Adam(1e-3),
        "max_actor_steps": STEPS.value,
        "log_every": 5.0,
    }
    if AGENT.value == "d4pg":
        common |= {"discount": 0.5, "policy_optimizer": snt.optimizers.Adam(1e-3)}
        return d4pg.DistributedD4PG(network_factory=d4pg_networks, n_step=1, **common).build()
    common |= {"discount": 0.1, "policy_optimizer": snt.optimizers.Adam(3e-4), "samples_per_insert": 192.0}
    return svg0_prior.DistributedSVG0(network_factory=svg0_networks, sequence_length=5, **common).build()


def main(_: Any) -> None:
    """Launches, waits, and tells."""
    with tempfile.TemporaryDirectory() as folder:
        returns = Path(folder, "returns")
        lp.launch(build(returns), terminal="current_terminal").wait()
        found = [float(line) for line in returns.read_text().split()]
    first, last = statistics.mean(found[:5]), statistics.mean(found[-10:])
    print(f"RETURNS of {len(found)} episodes: {first:.2f} at first, {last:.2f} at last", flush=True)


if __name__ == "__main__":
    app.run(main)
