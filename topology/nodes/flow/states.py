"""What a plan remembers: counters, the local worker, and what its stages and operators hold from item to item.

Stages have `get_state` and `set_state`; so may operators, those of users too, and what operators share: `flow_shared`
(queues, learners) and `flow_replays` (buffers). All of it is plain data (numbers, text, arrays, batches, lists, tuples,
dicts) and `Item`s. What a closure or a generator holds is not seen, and what is under way to or from a worker is not
there yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol, runtime_checkable

from topology.errors import ProgramError
from topology.nodes.flow.learner import learner_of, learners_of
from topology.nodes.flow.metrics import MetricsContext
from topology.nodes.flow.naming import name_of_function
from topology.nodes.flow.queues import Queue
from topology.nodes.flow.stages import Stage
from topology.nodes.flow.worker import RolloutWorker

__all__ = ["get_state", "set_state"]


@runtime_checkable
class Stateful(Protocol):
    """What has something to remember."""

    def get_state(self) -> Any:
        """What it holds, as plain data."""

    def set_state(self, state: Any) -> None:
        """Takes `get_state` back."""


class _Part(NamedTuple):
    name: str
    what: Stateful
    is_replay: bool


def get_state(root: Stage, metrics: MetricsContext, worker: RolloutWorker, *, replay: bool) -> dict[str, Any]:
    """The state of a plan that rests: no item of it is being worked on in this thread.

    Args:
        root: what gives the plan's results.
        metrics: its counters.
        worker: the local worker. Its learners pause meanwhile, between two batches.
        replay: whether replay buffers are part of it.
    """
    with _resting(worker):
        parts = {part.name: part.what.get_state() for part in _parts(root) if replay or not part.is_replay}
        return {"metrics": metrics.save(), "worker": worker.get_state(), "parts": parts}


def set_state(state: Mapping[str, Any], root: Stage, metrics: MetricsContext, worker: RolloutWorker) -> None:
    """Takes `get_state` back. Replay buffers that are not part of it stay as they are.

    Raises:
        ProgramError: the state is that of another plan.
    """
    known = list(_parts(root))
    saved = state["parts"]
    wanted = {part.name for part in known if not part.is_replay}
    found = {name for name in saved if not name.startswith(_REPLAY)}
    if wanted != found:
        faults = (
            *(f"{name}: in this plan, but not in the state" for name in sorted(wanted - found)),
            *(f"{name}: in the state, but not in this plan" for name in sorted(found - wanted)),
        )
        raise ProgramError(
            "The plan has changed since its state was saved:\n"
            + "".join(f"  - {fault}\n" for fault in faults)
            + "Go on with the plan and the settings it was saved with, or give the run another directory.",
            faults=faults,
        )
    with _resting(worker):
        worker.set_state(state["worker"])
        metrics.restore(state["metrics"])
        for part in known:
            if part.name in saved:
                part.what.set_state(saved[part.name])


_REPLAY = "replay "


def _resting(worker: RolloutWorker) -> ExitStack:
    stack = ExitStack()
    for learner in learners_of(worker):
        stack.enter_context(learner.lock)
    return stack


def _parts(root: Stage) -> Iterator[_Part]:
    """Everything in a plan that may remember something, each once; with names that are the same for the same plan."""
    seen: dict[int, object] = {}
    numbers = itertools.count(1)
    for stage in _stages(root, seen):
        yield _Part(f"{next(numbers)} {stage.name}", stage, False)
        operator = getattr(stage, "fn", None)
        for holder in (operator, stage):
            for what, is_replay in _held(holder, holder is operator):
                if id(what) in seen or not isinstance(what, Stateful):
                    continue
                seen[id(what)] = what
                name = f"{next(numbers)} {name_of_function(what if what is operator else type(what))}"
                yield _Part(_REPLAY + name if is_replay else name, what, is_replay)


def _held(holder: Any, itself: bool) -> Iterator[tuple[Any, bool]]:
    """What an operator or a stage holds, and whether that is replay."""
    if holder is None:
        return
    if itself and not isinstance(holder, type):
        yield holder, False
    for what in getattr(holder, "flow_shared", ()):
        yield (learner_of(what) or what) if isinstance(what, Queue) else what, False
    for what in getattr(holder, "flow_replays", ()):
        yield what, True


def _stages(stage: Stage, seen: dict[int, object]) -> Iterator[Stage]:
    """A stage after those that it asks, each once."""
    if id(stage) in seen:
        return
    seen[id(stage)] = stage
    for source in stage.inputs:
        yield from _stages(source, seen)
    yield stage
