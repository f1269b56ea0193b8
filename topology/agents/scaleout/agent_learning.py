"""The trainer of an agent that is scaled out: its table and its learner, in one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, final

import jax
import numpy as np
from numpy.typing import NDArray

from topology.agents.core.builder import AgentBuilder
from topology.agents.core.config import ReplayConfig
from topology.agents.core.counter import ChildCounter, Counter
from topology.agents.core.distributed import DistributedAgent
from topology.agents.core.metrics import MetricsWriter
from topology.agents.scaleout.agent_items import ItemWriter, nothing_caught
from topology.agents.scaleout.agent_playing import WEIGHTS
from topology.agents.scaleout.algorithm import ExperienceLearner
from topology.agents.scaleout.ring import Ring
from topology.agents.scaleout.roles import Columns
from topology.agents.scaleout.trees import flatten, part, unflatten
from topology.context import StopToken
from topology.nodes.replay import Client
from topology.nodes.replay.service import ReplayService
from topology.nodes.store.experience import Experience

__all__ = ["AgentLearner"]

_STATE = "learner"
_PROGRESS = "progress"
_REPLAY = "replay"
_WAITING = "waiting"


@final
class AgentLearner(ExperienceLearner):
    """Puts what comes into the agent's table, and learns as often as its settings say.

    Args:
        agent: with its settings.
        builder: of its parts, in the trainer's node.
        seed: of the table.
        by_rounds: SYNC: what a round brought and was too little for a batch is not learned from in the next, where the
            table is a queue.
        keep_replay: whether what is in the table is saved with the state.
    """

    def __init__(
        self,
        agent: DistributedAgent[Any],
        builder: AgentBuilder[Any],
        *,
        seed: int,
        by_rounds: bool,
        keep_replay: bool,
    ) -> None:
        super().__init__()
        self._config = config = agent.config
        self._ratio = config if isinstance(config, ReplayConfig) else None
        table = agent.make_table(seed=seed, lockstep=True)
        self._service = ReplayService([table])
        self._client = Client("local", service=self._service)
        self._table = table.name
        self._learner = builder.make_learner(
            self._client,
            counts=ChildCounter(Counter(), "learner", max_delay_s=0),
            metrics=MetricsWriter(None),
            stop=StopToken(),
        )
        self._writer = ItemWriter(self._client, self._table, jax.tree.map(lambda leaf: leaf[:1], self._learner.example))
        self._policy = builder.policy_variable
        self._by_rounds = by_rounds
        self._ring = Ring(self._ratio.max_replay_size) if keep_replay and self._ratio is not None else None
        self._rows: deque[Columns] = deque()
        self._inserted = self._sampled = self._dropped = 0
        self._spread = False

    def keep(self, experience: Experience) -> None:
        columns = dict(experience.columns)
        if not nothing_caught(columns):
            self._rows += _rows_of(columns)

    @property
    def wants_more(self) -> bool:
        return not self._is_due() and (self._ratio is None or not self._rows)

    def _is_due(self) -> bool:
        size: int = self._config.items_per_call
        if self._ratio is None:  # a queue: what is in a batch is inserted when all of it is there
            return len(self._rows) >= size
        assert self._ratio.samples_per_insert is not None  # refused by the settings
        inserts = self._inserted - self._ratio.min_replay_size
        return inserts >= 0 and inserts * self._ratio.samples_per_insert - self._sampled >= size

    def learn(self) -> dict[str, float] | None:
        if self._ratio is not None:
            while self._rows and not self._is_due():
                self._insert(self._rows.popleft())
        if not self._is_due():
            self._end_round()
            return None
        if self._ratio is None:
            for _ in range(self._config.items_per_call):
                self._insert(self._rows.popleft())
        self._writer.flush()
        if not self._spread:
            self._learner.spread(self._config.learner_devices)
            self._spread = True
        loss = self._learner.step()
        self._sampled += self._config.items_per_call
        self.updates = self._learner.steps
        return {"loss": loss, "items": float(self._inserted), "dropped_items": float(self._dropped)}

    def _insert(self, row: Columns) -> None:
        self._writer.write(row)
        self._inserted += 1
        if self._ring is not None:
            self._ring.add({name: leaf[None] for name, leaf in row.items()})

    def _end_round(self) -> None:
        if self._by_rounds and self._ratio is None:
            self._dropped += len(self._rows)
            self._rows.clear()

    def close(self) -> None:
        self._learner.close()
        self._writer.close()
        self._client.close()
        self._service.close()

    # --- what is saved -----------------------------------------------------------------------------------------------

    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        return flatten(self._learner.get_variables([self._policy]).values[0], WEIGHTS)

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        return {
            **flatten(self._learner.state, _STATE),
            **self.counts_array(),
            **_named(_WAITING, _stacked(self._rows)),
            **_named(_REPLAY, {} if self._ring is None else self._ring.columns()),
            _PROGRESS: np.array([self._inserted, self._sampled, self._dropped], np.int64),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]], state: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002 - they are in the state
        self._learner.restore(jax.device_put(unflatten(self._learner.state, state, _STATE)))
        self.restore_counts(state)
        self._inserted, self._sampled, self._dropped = (int(count) for count in state[_PROGRESS])
        self._rows = deque(_rows_of(part(state, _WAITING)))
        if self._ratio is None:
            return
        kept = part(state, _REPLAY)
        if self._ring is None or not kept:  # the table is filled anew before there is learning
            self._inserted = self._sampled = 0
            return
        self._ring.add(kept)
        for row in _rows_of(kept):
            self._writer.write(row)
        self._writer.flush()


def _rows_of(columns: Columns) -> list[Columns]:
    count = len(next(iter(columns.values()), ()))
    return [{name: column[index] for name, column in columns.items()} for index in range(count)]


def _stacked(rows: Sequence[Columns]) -> Columns:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _named(prefix: str, columns: Columns) -> Columns:
    return {f"{prefix}/{name}": column for name, column in columns.items()}
