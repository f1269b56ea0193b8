"""What the node of such an agent runs: its plan, the rows of its metrics, and the evaluation at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import dm_env
import numpy as np

from topology.agents.core.metrics import RowWriter
from topology.agents.core.policy import PolicyOutput
from topology.agents.core.vector import VectorLoop
from topology.agents.flow.policy import JaxPolicy
from topology.context import StopToken
from topology.nodes.courier.client import Client
from topology.nodes.flow import STALENESS, STEPS_DROPPED_COUNTER, Plan, PlanRunner, RolloutWorker, WorkerFailures

__all__ = ["AgentRunner", "play"]


@final
class _Greedy:
    """A policy that does what it thinks best, as a `VectorLoop` asks it."""

    version = 0

    def __init__(self, policy: JaxPolicy) -> None:
        self._policy = policy

    def __call__(self, observations: Any, states: Any, explorations: Any) -> PolicyOutput:
        del explorations
        return self._policy.act(observations, states, greedy=True)

    def update(self) -> None:
        """It has the newest weights."""


@final
class _FirstEpisode:
    """Sums up the rewards of the first episode of one environment."""

    def __init__(self) -> None:
        self.total = 0.0
        self.ended = False

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Has no reward."""

    def observe(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = None, state: Any = None) -> None:  # noqa: ARG002
        if not self.ended:
            self.total += float(next_timestep.reward)
            self.ended = next_timestep.last()

    def close(self) -> None:
        """Nothing to send."""


def play(policy: JaxPolicy, environments: Sequence[dm_env.Environment], stop: StopToken) -> float | None:
    """Mean return of an episode in each environment, played greedily; None when the program stopped meanwhile."""
    episodes = [_FirstEpisode() for _ in environments]
    loop = VectorLoop(environments, episodes, agent=policy.agent, policy=_Greedy(policy))
    while not all(episode.ended for episode in episodes):
        if stop.is_set():
            return None
        loop.run_steps()
    return float(np.mean([episode.total for episode in episodes]))


@final
class AgentRunner(PlanRunner):
    """Runs a plan for so many steps; writes a row for each result, and plays with the final weights.

    Args:
        plan: see `PlanRunner`.
        local_worker: see `PlanRunner`.
        workers: see `PlanRunner`.
        aggregators: see `PlanRunner`.
        failures: see `PlanRunner`.
        metrics: gets the rows.
        stop: of the program.
        max_actor_steps: steps after which the run ends; None for a run without end.
        make_environments: for the evaluation, an episode in each; none for no evaluation.
        report: gets a line of text on the evaluation.
        checkpoint_period_s: see `PlanRunner`.
        checkpoint_replay: see `PlanRunner`.
    """

    def __init__(
        self,
        plan: Plan,
        local_worker: Callable[[], RolloutWorker],
        workers: Sequence[Client],
        *,
        aggregators: Sequence[Client],
        failures: WorkerFailures,
        metrics: RowWriter,
        stop: StopToken,
        max_actor_steps: int | None,
        make_environments: Callable[[], Sequence[dm_env.Environment]],
        report: Callable[[str], None],
        checkpoint_period_s: float | None = None,
        checkpoint_replay: bool = False,
    ) -> None:
        super().__init__(
            plan,
            local_worker,
            workers,
            aggregators=aggregators,
            failures=failures,
            report=self._write,
            is_done=self._has_enough,
            checkpoint_period_s=checkpoint_period_s,
            checkpoint_replay=checkpoint_replay,
        )
        self._metrics = metrics
        self._stop = stop
        self._max_steps = max_actor_steps
        self._make_environments = make_environments
        self._print = report
        self._steps = 0

    def _has_enough(self, result: Any) -> bool:
        return self._max_steps is not None and result["timesteps_total"] >= self._max_steps

    def _write(self, result: Any) -> None:
        self._steps = result["timesteps_total"]
        info = result["info"]
        row = {
            "actor_steps": self._steps,
            "learner_steps": self.workers.local_worker().weights_version,
            "episode_return": result["episode_reward_mean"],
            "episode_length": result["episode_len_mean"],
            "steps_trained": info.get("num_steps_trained", 0),
            "staleness": info.get(STALENESS, 0),
            "steps_dropped": info.get(STEPS_DROPPED_COUNTER, 0),
            "healthy_workers": result["num_healthy_workers"],
        }
        if self._max_steps is not None:
            row["progress"] = min(1.0, self._steps / self._max_steps)
        for stats in info.get("learner", {}).values():
            row |= stats["learner_stats"]
        self._metrics.write(**{name: value for name, value in row.items() if math.isfinite(value)})

    def finish(self) -> None:
        worker = self.workers.local_worker()
        policy = worker.get_policy()
        assert isinstance(policy, JaxPolicy)
        environments = self._make_environments()
        if not environments:
            return
        try:
            mean = play(policy, environments, self._stop)
        finally:
            for environment in environments:
                environment.close()
        if mean is None:
            return
        self._metrics.write(
            evaluator_return=mean,
            evaluator_episodes=len(environments),
            evaluator_final=1,
            actor_steps=self._steps,
            learner_steps=worker.weights_version,
        )
        self._print(
            f"final evaluation after {self._steps} actor steps, {worker.weights_version} learner steps: mean return "
            f"{mean:.2f} over {len(environments)} episodes"
        )
