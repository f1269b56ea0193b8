"""The learning side of every agent: batches in, updates, weights and checkpoints out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from topology.agents.core.checkpoint import Checkpointer
from topology.agents.core.counter import ChildCounter
from topology.agents.core.finite import what_is_not_finite
from topology.agents.core.metrics import Averages, RowWriter
from topology.agents.core.parallel import data_parallel, learner_mesh, replicate
from topology.agents.core.replay import Batch, BatchSource
from topology.agents.core.stopping import until_stopped
from topology.agents.core.types import Variables
from topology.clock import SYSTEM_CLOCK, Clock
from topology.context import StopToken
from topology.errors import ProgramError, ProgramStopped

__all__ = ["Learner", "LearnerState", "Learning", "UpdateOutput", "zeros_like_spec"]

_logger = logging.getLogger(__name__)

_REMEDY = "lower learning_rate or max_gradient_norm"


class LearnerState(Protocol):
    """All that a learner must remember: a tree of arrays, with `steps`, an int32 scalar that counts updates."""

    @property
    def steps(self) -> Any: ...


class UpdateOutput(NamedTuple):
    """What the K updates of one call tell.

    Attributes:
        metrics: numbers for the log by name, scalar or `[K]`; "loss" among them.
        priorities: of the items, `[K * B]` in the order of the batch; None for a table without priorities.
    """

    metrics: dict[str, jax.Array]
    priorities: jax.Array | None = None


StateT = TypeVar("StateT", bound=LearnerState)
Update = Callable[[StateT, Any, Any], tuple[StateT, UpdateOutput]]


class _Call(NamedTuple, Generic[StateT]):
    """A call of the update that was begun: what went in, what comes out, and the updates made with it."""

    batch: Batch
    state: StateT
    output: UpdateOutput
    steps: int


@dataclass(frozen=True, kw_only=True)
class Learning(Generic[StateT]):
    """What an agent learns, and from which table; `AgentBuilder.make_learner` makes a learner of it.

    Attributes:
        state: before the first update.
        update: see `Learner`.
        variables: see `Learner`; the one that actors pull among them.
        table: name of the table of the items.
        signature: of its items, a tree of specs.
        remedy: what to do when the loss is not finite; part of the error's text.
        overlaps: see `Learner`.
    """

    state: StateT
    update: Update[StateT]
    variables: Mapping[str, Callable[[StateT], Any]]
    table: str
    signature: Any
    remedy: str = _REMEDY
    overlaps: bool = True


def zeros_like_spec(signature: Any, batch_size: int) -> Any:
    """A batch of zeros of the signature of a table: what an update is compiled with before there are items."""
    return jax.tree.map(lambda spec: np.zeros((batch_size, *spec.shape), spec.dtype), signature)


class Learner(Generic[StateT]):
    """Learns from replay and serves its weights.

    Args:
        state: before the first update; that of the newest checkpoint is used instead, if there is one.
        update: compiled function of the state, the data of a batch and the probabilities of its items, `[K * B]`; makes
            K updates.
        updates_per_call: K.
        variables: the trees that are served, by name, each taken from the state.
        replay: gives batches of `K * B` items.
        example: a batch to compile with while the actors still fill the table; only shapes and types matter.
        counts: counts under the prefix "learner".
        metrics: gets a row about once a second.
        stop: of the program.
        checkpointer: keeps states; None for none.
        checkpoint_period_s: seconds from one state on disk to the next.
        remedy: what to do when the loss is not finite; part of the error's text.
        overlaps: whether a call is begun before the one before is told of, which computes without a pause, but learns
            from a batch that is one call older.
        clock: for tests.
    """

    def __init__(
        self,
        *,
        state: StateT,
        update: Update[StateT],
        updates_per_call: int,
        variables: Mapping[str, Callable[[StateT], Any]],
        replay: BatchSource,
        example: Any,
        counts: ChildCounter,
        metrics: RowWriter,
        stop: StopToken,
        checkpointer: Checkpointer | None = None,
        checkpoint_period_s: float = 60.0,
        remedy: str = _REMEDY,
        overlaps: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._update = update
        self._updates_per_call = updates_per_call
        self._variables = variables
        self._replay = replay
        self._example = example
        self._counts = counts
        self._averages = Averages(metrics, clock=clock)
        self._stop = stop
        self._checkpointer = checkpointer
        self._checkpoint_period_s = checkpoint_period_s
        self._remedy = remedy
        self._overlaps = overlaps
        self._clock = clock
        self._state = state
        if checkpointer is not None and (restored := checkpointer.restore(state)) is not None:
            self._state = restored
        self._computed = self._state  # the newest that nobody has to wait for
        self._steps = int(self._state.steps)
        self._reported_steps = self._steps
        self._serving = threading.Lock()
        self._served: dict[str, tuple[int, Any]] = {}

    @property
    def state(self) -> StateT:
        """The newest state."""
        return self._state

    @property
    def example(self) -> Any:
        """A batch of which only shapes and types matter."""
        return self._example

    @property
    def steps(self) -> int:
        """Updates made, those of earlier runs in the same directory included."""
        return self._steps

    def spread(self, num_devices: int | None) -> None:
        """Has so many devices of this process share the work of each batch; see `topology.agents.core.parallel`.

        Call it before the first step. With None or 1 nothing changes.

        Raises:
            ProgramError: there are fewer devices.
        """
        if num_devices is not None and num_devices > 1:
            mesh = learner_mesh(num_devices)
            self._update = data_parallel(self._update, mesh)
            self._state = self._computed = replicate(self._state, mesh)

    def restore(self, state: StateT) -> None:
        """Goes on from this state. Call it before the first step, and before `spread`."""
        self._state = self._computed = state
        self._steps = self._reported_steps = int(state.steps)

    def get_variables(self, names: Sequence[str]) -> Variables:
        """The newest weights as numpy arrays, one tree a name, in the order of `names`.

        Raises:
            KeyError: an unknown name.
        """
        unknown = [name for name in names if name not in self._variables]
        if unknown:
            known = ", ".join(map(repr, self._variables))
            raise KeyError(f"this learner has the variables {known}, but was asked for {unknown}")
        state = self._computed
        version = int(state.steps)
        return Variables(version, self._clock.time(), [self._on_host(name, version, state) for name in names])

    def _on_host(self, name: str, version: int, state: StateT) -> Any:
        with self._serving:  # one copy for each version, however many ask
            if self._served.get(name, (-1, None))[0] != version:
                self._served[name] = (version, jax.device_get(self._variables[name](state)))
            return self._served[name][1]

    def step(self) -> float:
        """Makes `updates_per_call` updates; blocks until replay has the batches. Returns their mean loss.

        Raises:
            FloatingPointError: the loss is not finite: learning has failed. Says so if the batch is to blame.
            ProgramError: the update tells of no loss.
            ProgramStopped: there will be no more batches.
        """
        return self._settle(self._begin())

    def _begin(self) -> _Call[StateT]:
        """Takes batches and has them learned from. Blocks for the batches, not for the learning."""
        batch = self._replay.sample()
        self._state, output = self._update(self._state, batch.data, batch.probabilities)
        self._steps += self._updates_per_call
        return _Call(batch, self._state, output, self._steps)

    def _settle(self, call: _Call[StateT]) -> float:
        """Blocks until a call is done, and tells others of it. Returns its mean loss."""
        # Numpy's from here on: the mean of an array of JAX would be computed by XLA, after the call begun since.
        output = jax.device_get(call.output)
        metrics = {name: float(np.mean(value)) for name, value in output.metrics.items()}
        if "loss" not in metrics:
            raise ProgramError(f"the update tells of {list(metrics)}: it must tell of the 'loss', too")
        if not np.isfinite(metrics["loss"]):
            reason = what_is_not_finite(call.batch.data) or self._remedy
            raise FloatingPointError(f"The loss is {metrics['loss']} after {call.steps} updates: {reason}")
        self._computed = call.state
        self._report(metrics, call)
        if output.priorities is not None:
            self._replay.update_priorities(call.batch.keys, output.priorities.astype(np.float64))
        return metrics["loss"]

    def run(self) -> None:
        """Learns until the program stops; saves its state from time to time and at the end, unless it failed."""
        try:
            with until_stopped(self._stop):
                self._learn()
            self.save()
            if not self._steps:
                _logger.warning(
                    "the program ended before the first update: there were too few items in the table for one. Make "
                    "more steps, or let it begin with fewer items"
                )
        finally:
            self.close()

    def _learn(self) -> None:
        items = len(jax.tree.leaves(self._example)[0])
        self._update(self._state, self._example, np.ones(items))  # compiles
        self._count_earlier()
        under_way: _Call[StateT] | None = None
        saved_s = self._clock.monotonic()
        try:
            while not self._stop.is_set():
                # Begun before the one before it is settled: while others are told of that, this one is computed.
                begun = self._begin()
                if under_way is not None:
                    self._settle(under_way)
                under_way = begun
                is_due = self._clock.monotonic() - saved_s >= self._checkpoint_period_s
                if is_due or not self._overlaps:
                    self._settle(under_way)
                    under_way = None
                if is_due:
                    self.save()
                    saved_s = self._clock.monotonic()
        except ProgramStopped:
            if under_way is None:
                raise
        if under_way is not None:
            self._settle(under_way)

    def _count_earlier(self) -> None:
        """Counts updates of an earlier run of which the counter was not told: it ends as soon as the learner does."""
        self._counts.flush()
        if (untold := self._steps - self._counts.total("steps")) > 0:
            self._counts.increment(steps=untold)

    def save(self) -> None:
        """Saves the state; blocks until it is on disk."""
        if self._checkpointer is not None:
            self._checkpointer.save(self._steps, self._state)

    def close(self) -> None:
        """Hands on the last counts and lets go of replay; saves nothing."""
        self._replay.close()
        self._counts.close()

    def _report(self, metrics: dict[str, float], call: _Call[StateT]) -> None:
        self._counts.increment(steps=self._updates_per_call)
        self._averages.add(**metrics)
        if self._averages.due:
            made, self._reported_steps = call.steps - self._reported_steps, call.steps
            self._averages.write(
                rates={"learner_steps_per_second": made}, learner_steps=call.steps, replay_size=call.batch.table_size
            )
