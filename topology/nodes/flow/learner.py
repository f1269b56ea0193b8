"""A learner in a thread beside the plan, between two bounded queues."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

from topology.context import try_get_context
from topology.nodes.flow.batch import check_batch
from topology.nodes.flow.checks import check_seconds, check_whole
from topology.nodes.flow.inspection import inspecting
from topology.nodes.flow.metrics import LEARNER_INFO, WindowTimer
from topology.nodes.flow.queues import Queue, QueueClosed

if TYPE_CHECKING:
    from topology.nodes.flow.worker import RolloutWorker

__all__ = [
    "LearnerOutput",
    "LearnerThread",
    "MinibatchBuffer",
    "learner_of",
    "learners_of",
    "make_learner_thread",
]

_logger = logging.getLogger(__name__)


class LearnerOutput(NamedTuple):
    """What a learner tells of one batch.

    Attributes:
        env_steps: environment steps it learned from.
        info: statistics by policy id.
        agent_steps: steps of agents.
    """

    env_steps: int
    info: dict[str, Any]
    agent_steps: int


@final
class MinibatchBuffer:
    """A ring of the latest batches, each of which is learned from several times.

    Args:
        inqueue: gives new batches.
        size: batches in the ring.
        num_passes: how often each is learned from.
    """

    def __init__(self, inqueue: Queue, size: int, num_passes: int) -> None:
        self._inqueue = inqueue
        self._ring: deque[list[Any] | None] = deque([None] * check_whole("size", size, 1), size)
        self._passes = check_whole("num_passes", num_passes, 1)

    def get(self, timeout: float | None = None) -> tuple[Any, bool]:
        """A batch, and whether this was its last time. Blocks, and raises, like `Queue.get`."""
        if self._ring[0] is None and self._inqueue.empty():
            self._skip_to_batch()  # rather than wait with work at hand
        place = self._ring[0]
        if place is None:
            place = [self._inqueue.get(timeout), self._passes]
            self._ring[0] = place
        place[1] -= 1
        released = place[1] == 0
        if released:
            self._ring[0] = None
        self._ring.rotate(-1)
        return place[0], released

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until `get` has something to give or to raise; False if that took `timeout` seconds."""
        return self._inqueue.wait_for_item(timeout, unless=lambda: any(self._ring))

    def get_state(self) -> list[Any]:
        """The ring, beginning with what is next."""
        return [None if place is None else list(place) for place in self._ring]

    def set_state(self, state: Sequence[Any]) -> None:
        """Takes `get_state` back; of a ring of another size, what there is room for."""
        places = [None if place is None else list(place) for place in state][: len(self._ring)]
        self._ring.extend(places + [None] * (len(self._ring) - len(places)))

    def _skip_to_batch(self) -> None:
        for _ in range(len(self._ring)):
            if self._ring[0] is not None:
                return
            self._ring.rotate(-1)


@final
class LearnerThread:
    """Learns from the batches in `inqueue`, on the local worker; tells of each in `outqueue`.

    Both queues are bounded: a plan that does not read `outqueue` stops the learner, a learner that is slow stops the
    plan that fills `inqueue`. Without batches it waits, however long. When learning raises, the queues are closed with
    that very exception, so that it comes out where the plan reads; the thread ends.

    Attributes:
        inqueue: batches to learn from.
        outqueue: a `LearnerOutput` for each.
        weights_version: updates made so far: that of the local worker.

    Args:
        local_worker: learns.
        minibatch_buffer_size: see `MinibatchBuffer`.
        num_sgd_iter: how often each batch is learned from.
        learner_queue_size: most batches that wait.
        learner_queue_timeout: seconds without a batch after which a line in the log says so.

    Raises:
        ValueError: a size or a number that is no whole number, or below 1.
    """

    closes_its_queues = True

    def __init__(
        self,
        local_worker: RolloutWorker,
        *,
        minibatch_buffer_size: int = 1,
        num_sgd_iter: int = 1,
        learner_queue_size: int = 16,
        learner_queue_timeout: float = 300.0,
    ) -> None:
        self.local_worker = local_worker
        check_whole("learner_queue_size", learner_queue_size, 1)  # 0 would be without a bound
        check_whole("num_sgd_iter", num_sgd_iter, 1)
        check_whole("minibatch_buffer_size", minibatch_buffer_size, 1)
        self.inqueue = Queue(learner_queue_size)
        # Room for what may be told of everything that waits: then who fills the one never waits for the other.
        self.outqueue = Queue(learner_queue_size * num_sgd_iter + 1)
        self.buffer = MinibatchBuffer(self.inqueue, minibatch_buffer_size, num_sgd_iter)
        self.error: BaseException | None = None
        self.lock = threading.RLock()  # held from taking a batch until what there is to tell of it is kept
        self._told: LearnerOutput | None = None  # to be put into `outqueue`
        self._patience_s = check_seconds("learner_queue_timeout", learner_queue_timeout)
        self._timers = {name: WindowTimer() for name in ("queue", "grad")}
        self._queue_sizes: deque[int] = deque(maxlen=50)
        self._last_info: dict[str, Any] = {}
        self._thread: threading.Thread | None = None
        _learners.add(self)

    @property
    def weights_version(self) -> int:
        """Updates made so far."""
        return self.local_worker.weights_version

    def start(self) -> None:
        """Starts the thread. It ends with `stop`, with an error, and with the program.

        Raises:
            RuntimeError: it was started before.
        """
        if inspecting():
            return
        if self._thread is not None:
            raise RuntimeError("this learner was started before; make another one for another thread")
        self._thread = threading.Thread(target=self._run, name="flow learner", daemon=True)
        self._thread.start()
        context = try_get_context()
        if context is not None:
            context.stop.subscribe(self._close)

    def is_alive(self) -> bool:
        """Whether it learns, or waits for batches."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends the thread after the batch it learns from. Blocks until then, at most `timeout_s` seconds."""
        self._close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _close(self) -> None:
        self.inqueue.close()
        self.outqueue.close()

    def _run(self) -> None:
        try:
            while not self.outqueue.closed:
                self._step()
        except QueueClosed:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised where the plan reads
            error.add_note("raised in the learner's thread")
            self.error = error
            self.inqueue.close(error)
            self.outqueue.close(error)
        finally:
            self._close()

    # Waiting and taking are two steps, and so are learning and telling: the lock is never held while it waits, and who
    # holds it finds every batch in one place, learned from or not. Nobody else takes from the one queue, or fills the
    # other one, in between.

    def _step(self) -> None:
        with self._timers["queue"]:
            while not self.buffer.wait(self._patience_s):
                _logger.warning("the learner has had nothing to learn from for %g s; it waits on", self._patience_s)
        with self.lock:
            batch = check_batch(self.buffer.get(0.0)[0], "a LearnerThread")
            with self._timers["grad"]:
                info = self.local_worker.learn_on_batch(batch)
            self._timers["grad"].push_units_processed(batch.count)
            self._last_info = info
            self._queue_sizes.append(self.inqueue.qsize())
            self._told = LearnerOutput(batch.count, info, batch.agent_steps())
        self.outqueue.wait_for_room()
        with self.lock:
            if self._told is not None:  # the plan may have been taken back meanwhile
                self.outqueue.put(self._told)
                self._told = None

    def get_state(self) -> dict[str, Any]:
        """Batches to learn from, and what was not told yet. For a state that the weights belong to, hold the lock."""
        with self.lock:
            told = [] if self._told is None else [self._told]
            return {
                "inqueue": self.inqueue.get_state(),
                "ring": self.buffer.get_state(),
                "outqueue": [*self.outqueue.get_state(), *told],
            }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes `get_state` back, in the place of what is there."""
        with self.lock:
            self._told = None
            self.buffer.set_state(state["ring"])
            self.outqueue.set_state(state["outqueue"])
            self.inqueue.set_state(state["inqueue"])

    def add_learner_metrics(self, result: dict[str, Any]) -> dict[str, Any]:
        """A result of `CollectMetrics`, with what the learner knows of itself."""
        sizes = self._queue_sizes or [0]
        info = result.setdefault("info", {})
        info[LEARNER_INFO] = self._last_info
        info["learner_queue"] = {"size_mean": sum(sizes) / len(sizes), "size_max": max(sizes)}
        info["timing_breakdown"] = {
            "learner_grad_time_ms": 1000 * self._timers["grad"].mean,
            "learner_dequeue_time_ms": 1000 * self._timers["queue"].mean,
        }
        info["num_weight_updates"] = self.weights_version
        return result


_learners: weakref.WeakSet[LearnerThread] = weakref.WeakSet()


def learner_of(queue: Queue) -> LearnerThread | None:
    """The learner that one of the queues belongs to."""
    return next((learner for learner in list(_learners) if queue in (learner.inqueue, learner.outqueue)), None)


def learners_of(local_worker: Any) -> list[LearnerThread]:
    """The learners of a local worker: whoever ends the worker ends them."""
    return [learner for learner in list(_learners) if learner.local_worker is local_worker]


def make_learner_thread(local_worker: RolloutWorker, config: Mapping[str, Any]) -> LearnerThread:
    """A learner by the settings that are named like its arguments, where there are such."""
    names = ("minibatch_buffer_size", "num_sgd_iter", "learner_queue_size", "learner_queue_timeout")
    return LearnerThread(local_worker, **{name: config[name] for name in names if name in config})
