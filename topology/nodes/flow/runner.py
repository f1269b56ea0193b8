"""What the node of a plan runs: the plan, without a pause, and what others may ask of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from topology.context import try_get_context
from topology.errors import ProgramStopped
from topology.nodes.courier.client import Client
from topology.nodes.courier.methods import asynchronous
from topology.nodes.flow.actors import Actor
from topology.nodes.flow.checkpoints import files_of_node
from topology.nodes.flow.failures import WorkerFailures
from topology.nodes.flow.plan import Plan, RunningPlan
from topology.nodes.flow.worker import RolloutWorker
from topology.nodes.flow.worker_set import WorkerSet

__all__ = ["PlanRunner"]


def _never(result: Any) -> bool:  # noqa: ARG001 - a default
    return False


class PlanRunner:
    """Runs a plan until it ends, until it has done enough, or until the program stops.

    Args:
        plan: what to run.
        local_worker: makes the worker that learns, in the driver's place.
        workers: courier clients of the `RolloutWorker`s.
        aggregators: of the `Aggregator`s.
        replay_actors: of the `ReplayActor`s.
        failures: what to do when a worker fails.
        report: told every result, in the driver's thread.
        is_done: whether a result is the last one that is needed; the program is then stopped.
        checkpoint_period_s: seconds from one state of the plan on disk to the next, at the result that follows; one
            more is saved when the plan ends or the program stops. They are kept under `checkpoints/plan` of the run
            directory; a plan that is begun where there are some goes on from the newest. None for none.
        checkpoint_replay: whether replay buffers in this place are part of them.

    Raises:
        ValueError: a period that is not above 0, or of a run that keeps no run directory.
        TypeError: states are to be kept, and a policy gives none.
    """

    def __init__(
        self,
        plan: Plan,
        local_worker: Callable[[], RolloutWorker],
        workers: Sequence[Client] = (),
        *,
        aggregators: Sequence[Client] = (),
        replay_actors: Sequence[Client] = (),
        failures: WorkerFailures | None = None,
        report: Callable[[Any], object] | None = None,
        is_done: Callable[[Any], bool] = _never,
        checkpoint_period_s: float | None = None,
        checkpoint_replay: bool = False,
    ) -> None:
        self._files = files_of_node("plan", checkpoint_period_s)
        self._saves_replay = checkpoint_replay
        self._plan = plan
        self._clients = (*workers, *aggregators, *replay_actors)
        self.workers = WorkerSet(
            local_worker(),
            _named(workers, "worker"),
            aggregators=_named(aggregators, "aggregator"),
            replay_actors=_named(replay_actors, "replay"),
            failures=failures,
        )
        if self._files is not None:
            _check_saves(self.workers.local_worker())
        self._report = report
        self._is_done = is_done
        self._running: RunningPlan | None = None
        self._lock = threading.Lock()
        self._waiting: list[Future[Any]] = []
        self._latest: Any = None
        self._num_results = 0

    def run(self) -> None:
        """Runs the plan. Raises what an operator, a learner or a worker raises."""
        error: BaseException = ProgramStopped("the plan has ended")
        try:
            self._running = running = self._plan.build(self.workers)
            self._restore(running)
            try:
                self._drive(running)
            except ProgramStopped:
                self._save(running)
                raise
            self._save(running)
            self.finish()
            self._stop_program()
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """Ends workers that are here, and tells the error to whoever waits for a result."""
        try:
            self.workers.stop()
        except Exception as caught:
            if isinstance(error, ProgramStopped):
                raise
            error.add_note(f"then the end of the local worker's environments raised {type(caught).__name__}: {caught}")
        finally:
            for client in self._clients:
                client.close()
            for future in self._take_waiting():
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)

    def _drive(self, running: RunningPlan) -> None:
        for result in running:
            self._publish(result)
            if self._is_done(result):
                return
            if self._files is not None and self._files.due:
                self._save(running)

    def _restore(self, running: RunningPlan) -> None:
        if self._files is None:
            return
        workers = self.workers
        actors = (*workers.remote_workers(), *workers.aggregators, *workers.replay_actors)
        state = self._files.newest({actor.name: actor for actor in actors})
        if state is not None:
            running.set_state(state)

    def _save(self, running: RunningPlan) -> None:
        if self._files is None:
            return
        state = running.get_state(replay=self._saves_replay)
        state["metrics"]["info"] = {}  # what was told of the last updates: anything, and soon told anew
        self._files.save(state)

    def finish(self) -> None:
        """Called when the plan has done enough, before the program is stopped: for subclasses."""

    def _stop_program(self) -> None:
        context = try_get_context()
        if context is not None:
            context.stop.request("the plan is done")

    def _publish(self, result: Any) -> None:
        if self._report is not None:
            self._report(result)
        with self._lock:
            self._latest = result
            self._num_results += 1
        for future in self._take_waiting():
            if future.set_running_or_notify_cancel():
                future.set_result(result)

    def _take_waiting(self) -> list[Future[Any]]:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return waiting

    # --- for clients -------------------------------------------------------------------------------------------------

    @asynchronous
    def train(self) -> Future[Any]:
        """The next result of the plan, which runs in any case. Blocks until it is there."""
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append(future)
        return future

    def latest(self) -> tuple[int, Any]:
        """How many results there were, and the last of them; None before the first."""
        with self._lock:
            return self._num_results, self._latest

    def get_weights(self) -> tuple[dict[str, Any], int]:
        """The learner's weights by policy id, and the updates that made them."""
        return self.workers.local_worker().versioned_weights()


def _check_saves(worker: RolloutWorker) -> None:
    for name, policy in worker.policy_map.items():
        missing = [method for method in ("get_state", "set_state") if not hasattr(policy, method)]
        if missing:
            raise TypeError(
                f"checkpoint_period_s is given, but policy {name!r}, {type(policy).__name__}, has no method "
                f"{' and '.join(missing)}"
            )


def _named(clients: Sequence[Client], label: str) -> list[Actor]:
    return [Actor(client, f"{label}/{index}") for index, client in enumerate(clients)]
