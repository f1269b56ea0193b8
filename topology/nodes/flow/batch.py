"""Experience as columns: of one policy, and of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

__all__ = ["DEFAULT_POLICY_ID", "Batch", "MultiAgentBatch", "SampleBatch", "check_batch", "concat_samples"]

DEFAULT_POLICY_ID = "default_policy"


@final
class SampleBatch(dict[str, npt.NDArray[Any]]):
    """Columns of equal length, by name: the steps of one policy.

    Example:
        >>> batch = SampleBatch(obs=np.zeros((3, 4)), rewards=np.ones(3))
        >>> batch.count, batch.slice(1, 3).count
        (3, 2)

    Raises:
        ValueError: columns that differ in length, or have no rows at all.
    """

    OBS, NEXT_OBS, ACTIONS, REWARDS = "obs", "new_obs", "actions", "rewards"
    TERMINATEDS, TRUNCATEDS = "terminateds", "truncateds"
    ADVANTAGES, VALUE_TARGETS, VF_PREDS = "advantages", "value_targets", "vf_preds"
    ACTION_DIST_INPUTS, ACTION_LOGP = "action_dist_inputs", "action_logp"
    WEIGHTS, INDEXES = "weights", "batch_indexes"
    STATE_IN = "state_in"

    def __init__(self, columns: Mapping[str, npt.ArrayLike] | None = None, /, **more: npt.ArrayLike) -> None:
        super().__init__({name: np.asarray(column) for name, column in {**(columns or {}), **more}.items()})
        single = [name for name, column in self.items() if not column.ndim]
        if single:
            raise ValueError(f"a batch has columns of rows, but {single} are single values: give lists or arrays")
        lengths = {name: len(column) for name, column in self.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns of a batch must be of one length, got {lengths}")

    @property
    def count(self) -> int:
        """Rows, which are steps of the environment."""
        for column in self.values():
            return len(column)
        return 0

    def env_steps(self) -> int:
        """Rows."""
        return self.count

    def agent_steps(self) -> int:
        """Rows: each is the step of one agent."""
        return self.count

    def slice(self, start: int, end: int) -> SampleBatch:
        """Rows `start` to `end - 1`, as views."""
        return SampleBatch({name: column[start:end] for name, column in self.items()})

    def take(self, rows: npt.NDArray[np.integer[Any]]) -> SampleBatch:
        """These rows, as copies."""
        return SampleBatch({name: column[rows] for name, column in self.items()})

    def minibatches(self, size: int, random: np.random.Generator | None = None) -> Iterator[SampleBatch]:
        """Parts of `size` rows, of shuffled rows where `random` is given; what is left over is dropped.

        A batch below `size` rows is one part.
        """
        batch = self if random is None else self.take(random.permutation(self.count))
        for start in range(0, max(1, self.count - size + 1), size):
            yield batch.slice(start, start + size)

    def as_multi_agent(self) -> MultiAgentBatch:
        """As the batch of the one policy `DEFAULT_POLICY_ID`."""
        return MultiAgentBatch({DEFAULT_POLICY_ID: self}, self.count)


@final
class MultiAgentBatch:
    """The steps of several policies in the same environment steps.

    Args:
        policy_batches: by the policies' ids.
        env_steps: how many steps of the environment they come from.
    """

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int) -> None:
        self.policy_batches = dict(policy_batches)
        self.count = env_steps

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {batch.count}" for name, batch in self.policy_batches.items())
        return f"MultiAgentBatch({{{parts}}}, env_steps={self.count})"

    def env_steps(self) -> int:
        """Steps of the environment."""
        return self.count

    def agent_steps(self) -> int:
        """Rows of all policies."""
        return sum(batch.count for batch in self.policy_batches.values())

    def as_multi_agent(self) -> MultiAgentBatch:
        """Itself."""
        return self

    def select(self, policy_ids: Sequence[str]) -> MultiAgentBatch:
        """Only these policies; as many environment steps."""
        kept = {name: batch for name, batch in self.policy_batches.items() if name in policy_ids}
        return MultiAgentBatch(kept, self.count)


Batch: TypeAlias = SampleBatch | MultiAgentBatch
"""Experience of one policy or of several."""


def check_batch(value: Any, who: str) -> Batch:
    """The value, which must be a batch.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, SampleBatch | MultiAgentBatch):
        raise ValueError(  # noqa: TRY004 - as plans written for RLlib know it
            f"{who} takes batches (SampleBatch or MultiAgentBatch), got {type(value).__name__}"
        )
    return value


def concat_samples(batches: Sequence[Batch]) -> Batch:
    """One batch with the rows of all, in order.

    Raises:
        ValueError: there is none, kinds are mixed, or columns differ.
    """
    if not batches:
        raise ValueError("concat_samples() needs at least one batch")
    for batch in batches:
        check_batch(batch, "concat_samples()")
    if len(batches) == 1:
        return batches[0]
    single = [batch for batch in batches if isinstance(batch, SampleBatch)]
    if len(single) == len(batches):
        return _concat(single)
    several = [batch for batch in batches if isinstance(batch, MultiAgentBatch)]
    if len(several) != len(batches):
        raise ValueError(
            f"batches of one policy and of several cannot be joined: {[type(batch).__name__ for batch in batches]}"
        )
    names = dict.fromkeys(name for batch in several for name in batch.policy_batches)
    joined = {
        name: _concat([batch.policy_batches[name] for batch in several if name in batch.policy_batches])
        for name in names
    }
    return MultiAgentBatch(joined, sum(batch.count for batch in several))


def _concat(batches: Sequence[SampleBatch]) -> SampleBatch:
    first = batches[0]
    if any(batch.keys() != first.keys() for batch in batches):
        raise ValueError(f"batches of different columns cannot be joined: {[sorted(batch) for batch in batches]}")
    return SampleBatch({name: np.concatenate([batch[name] for batch in batches]) for name in first})
