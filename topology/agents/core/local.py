"""An agent in one process: the parts of its program, driven in turn by one thread.

The same configuration and seed give the same run, to the bit. For tests, debugging and tuning.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple, final

from topology.agents.core.actor_runner import ActingLoop, Closable
from topology.agents.core.config import ReplayConfig
from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.devices import prepare_jax
from topology.agents.core.distributed import DistributedAgent
from topology.agents.core.evaluator import Evaluation, evaluate
from topology.agents.core.learner import Learner
from topology.agents.core.metrics import MetricsWriter
from topology.context import StopToken, derive_seeds
from topology.errors import ProgramError
from topology.nodes.replay import Client
from topology.nodes.replay.service import ReplayService

__all__ = ["LocalResult", "LocalRun", "run_local"]


class LocalResult(NamedTuple):
    """How a run in one process went.

    Attributes:
        evaluations: actor steps and result of each; the last is the final one.
        counts: totals at the end.
    """

    evaluations: list[tuple[int, Evaluation]]
    counts: dict[str, int]


@final
class LocalRun:
    """Actors, learner and evaluator of one agent, stepped by the caller.

    The learner's turn comes when `samples_per_insert` makes a batch due; for an agent without that setting, such as one
    with a queue, whenever the table holds a whole batch.

    Args:
        agent: with its settings.

    Raises:
        ProgramError: there is no ratio to keep.
    """

    def __init__(self, agent: DistributedAgent[Any]) -> None:
        config = agent.config
        if isinstance(config, ReplayConfig) and config.samples_per_insert is None:
            raise ProgramError("a run in one process needs samples_per_insert: it says when the learner's turn is")
        prepare_jax(None)
        self._agent = agent
        self._config = config
        names = ["replay", "learner", "evaluator", *(f"actor/{i}" for i in range(config.num_actors))]
        self._seeds = derive_seeds(config.seed, names)
        self._stop = StopToken()
        self._counter = Counter()
        self._counts = ChildCounter(self._counter, "actor", max_delay_s=0)
        table = agent.make_table(seed=self._seeds["replay"], lockstep=True)
        self._service = ReplayService([table])
        self._table = self._service.tables[table.name]
        self._replay = Client("local", service=self._service)
        self.learner: Learner[Any] = agent.make_builder(self._seeds["learner"]).make_learner(
            self._replay,
            counts=ChildCounter(self._counter, "learner", max_delay_s=0),
            metrics=MetricsWriter(None),
            stop=self._stop,
        )
        self.learner.spread(config.learner_devices)
        self._closables: list[Closable] = [self.learner, self._service]
        self._loops = [self._make_loop(i, exploration) for i, exploration in enumerate(agent.explorations())]
        evaluator = agent.make_builder(self._seeds["evaluator"])
        self._evaluation_client = evaluator.make_variable_client(self.learner, in_background=False)
        self._evaluation_loop = evaluator.make_evaluation_loop(self._evaluation_client, self._stop)
        self._closables.insert(0, self._evaluation_loop)

    def _make_loop(self, index: int, exploration: float | None) -> ActingLoop:
        # With nothing on its way the table is the same at each update, whatever the machine is busy with. An inference
        # server would answer this one thread alone: here the actors have their weights themselves.
        parts = self._agent.make_builder(self._seeds[f"actor/{index}"]).make_actor_parts(
            self.learner, self._replay, exploration=exploration, max_in_flight=0, served=False
        )
        self._closables[:0] = parts.closables
        parts.weights.update_and_wait()
        return parts.loop

    @property
    def counts(self) -> dict[str, int]:
        """Steps and episodes so far."""
        return self._counter.get_counts()

    def step(self) -> None:
        """One step of every environment of the actors, then the updates that are due."""
        episodes = sum(len(loop.run_steps()) for loop in self._loops)
        self._counts.increment(steps=sum(loop.num_environments for loop in self._loops), episodes=episodes)
        while self._is_due():
            self.learner.step()

    def _is_due(self) -> bool:
        config, info = self._config, self._table.info
        if not isinstance(config, ReplayConfig) or config.samples_per_insert is None:
            return bool(info.current_size >= config.items_per_call)
        limiter = info.rate_limiter_info
        inserts = limiter.insert_stats.completed - config.min_replay_size
        return bool(inserts * config.samples_per_insert - limiter.sample_stats.completed >= config.items_per_call)

    def evaluate(self, episodes: int) -> Evaluation:
        """Plays with the newest weights."""
        self._evaluation_client.update_and_wait()
        evaluation = evaluate(self._evaluation_loop, self._evaluation_client, episodes)
        assert evaluation is not None  # nobody sets the stop of a run in one process
        return evaluation

    def close(self) -> None:
        """Closes the environments, and ends the threads of the replay service."""
        with contextlib.ExitStack() as stack:
            for closable in reversed(self._closables):
                stack.callback(closable.close)


def run_local(agent: DistributedAgent[Any]) -> LocalResult:
    """Runs an agent in this thread until its `max_actor_steps`, with the evaluations it asks for.

    Raises:
        ProgramError: as for `LocalRun`, or a run without end.
    """
    config = agent.config
    if config.max_actor_steps is None:
        raise ProgramError("a run in one process needs max_actor_steps, or it would never return")
    run = LocalRun(agent)
    try:
        evaluations = []
        next_mark = config.evaluation_period
        while (steps := run.counts.get("actor_steps", 0)) < config.max_actor_steps:
            if steps >= next_mark:
                evaluations.append((steps, run.evaluate(config.evaluation_episodes)))
                next_mark += config.evaluation_period
            run.step()
        evaluations.append((steps, run.evaluate(max(config.final_evaluation_episodes, 1))))
        return LocalResult(evaluations, run.counts)
    finally:
        run.close()
