"""A rollout worker: plays with its policies, and can learn with them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from topology.nodes.flow.batch import DEFAULT_POLICY_ID, Batch, MultiAgentBatch, SampleBatch, check_batch
from topology.nodes.flow.shards import Forever, ParallelIteratorWorker

__all__ = ["Episode", "Policy", "RolloutWorker", "Sampler", "by_policy_id"]


class Episode(NamedTuple):
    """An episode that ended.

    Attributes:
        episode_return: undiscounted sum of rewards.
        length: environment steps.
    """

    episode_return: float
    length: int


class Policy(Protocol):
    """What a rollout worker learns with. Weights and gradients are whatever the policy understands, and picklable.

    Every policy has `get_weights` and `set_weights`; of the others those that its plan calls. One that does not care
    how far the run is may do without `on_global_vars_update`.
    """

    def get_weights(self) -> Any:
        """The weights, as a value: later updates do not change it."""

    def set_weights(self, weights: Any) -> None:
        """Acts and learns with these from now on."""

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        """One update; what there is to tell of it."""

    def compute_gradients(self, batch: SampleBatch) -> tuple[Any, dict[str, Any]]:
        """The gradients of the mean loss, and what there is to tell; changes nothing."""

    def apply_gradients(self, gradients: Any) -> None:
        """One update with these gradients, a tree of arrays of lists, tuples and dicts."""

    def update_target(self) -> None:
        """Copies the weights to the target network; nothing without one."""

    def on_global_vars_update(self, global_vars: Mapping[str, Any]) -> None:
        """Learns how far the run is: `timestep` is the number of steps sampled by all."""

    def get_state(self) -> Any:
        """All that a checkpoint needs, as plain data: numbers, text, arrays, lists, tuples and dicts."""

    def set_state(self, state: Any) -> None:
        """Takes `get_state` back."""


class Sampler(Protocol):
    """What a rollout worker plays with. Every sampler has `sample`; it may do without the others."""

    def sample(self) -> Batch:
        """A fragment of experience with the policies' weights of now; goes on where the last one ended."""

    def drain_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""

    def recover(self) -> None:
        """Makes anew what may have broken when `sample` raised, such as the environments."""

    def close(self) -> None:
        """Ends the environments."""


class RolloutWorker(ParallelIteratorWorker):
    """Plays with its policies; learns with them where it is the local one. Its methods exclude one another.

    Args:
        policies: by id, or the one policy.
        sampler: plays with them; None for a worker that only learns.
        worker_index: 0 for the local worker, from 1 on for remote ones.
        policies_to_train: ids of those that learn; None for all.

    Raises:
        TypeError: a policy or the sampler lacks what every one has.
        ValueError: `policies_to_train` has an id that is none of a policy.
    """

    def __init__(
        self,
        policies: Mapping[str, Policy] | Policy,
        sampler: Sampler | None = None,
        *,
        worker_index: int = 0,
        policies_to_train: list[str] | None = None,
    ) -> None:
        super().__init__(Forever(self.sample))
        self.policy_map = dict(policies) if isinstance(policies, Mapping) else {DEFAULT_POLICY_ID: policies}
        self.sampler = sampler
        self.worker_index = worker_index
        self.policies_to_train = list(self.policy_map) if policies_to_train is None else policies_to_train
        unknown = [name for name in self.policies_to_train if name not in self.policy_map]
        if unknown:
            raise ValueError(f"policies_to_train={policies_to_train}: this worker has {sorted(self.policy_map)}")
        for name, policy in self.policy_map.items():
            _check_methods(f"policy {name!r}", policy, "get_weights", "set_weights")
        if sampler is not None:
            _check_methods("sampler", sampler, "sample")
        self.weights_version = 0
        self.global_vars: dict[str, Any] = {"timestep": 0}
        self._lock = threading.RLock()

    @property
    def lock(self) -> threading.RLock:
        """Held while the policies change: take it for changes of one's own."""
        return self._lock

    # --- playing -----------------------------------------------------------------------------------------------------

    def sample(self) -> Batch:
        """A fragment of experience.

        Raises:
            RuntimeError: the worker has no sampler.
        """
        if self.sampler is None:
            raise RuntimeError(f"worker {self.worker_index} has no sampler, so it cannot play")
        with self._lock:
            return check_batch(self.sampler.sample(), f"{type(self.sampler).__name__}.sample() gave no batch: a plan")

    def sample_with_count(self) -> tuple[Batch, int]:
        """A fragment, and its environment steps."""
        batch = self.sample()
        return batch, batch.env_steps()

    def drain_notes(self) -> tuple[Any, ...]:
        return tuple(_call_if_there(self.sampler, "drain_episodes") or ())

    def recover(self) -> None:
        with self._lock:
            _call_if_there(self.sampler, "recover")

    def stop(self) -> None:
        """Ends the environments, after the fragment that is being played."""
        with self._lock:
            _call_if_there(self.sampler, "close")

    # --- weights -----------------------------------------------------------------------------------------------------

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Policy:
        """One policy."""
        return self.policy_map[policy_id]

    def get_weights(self, policies: list[str] | None = None) -> dict[str, Any]:
        """Weights by policy id."""
        with self._lock:
            return {name: self.policy_map[name].get_weights() for name in policies or self.policy_map}

    def versioned_weights(self, policies: list[str] | None = None) -> tuple[dict[str, Any], int]:
        """`get_weights`, and the updates that made them."""
        with self._lock:
            return self.get_weights(policies), self.weights_version

    def set_weights(
        self, weights: Mapping[str, Any], global_vars: Mapping[str, Any] | None = None, version: int | None = None
    ) -> None:
        """Takes weights by policy id; the version is the number of updates that made them."""
        with self._lock:
            for name, value in weights.items():
                self.policy_map[name].set_weights(value)
            if version is not None:
                self.weights_version = version
            if global_vars:
                self.set_global_vars(global_vars)

    def set_global_vars(self, global_vars: Mapping[str, Any]) -> None:
        """Tells the policies how far the run is."""
        with self._lock:
            self.global_vars = dict(global_vars)
            for policy in self.policy_map.values():
                _call_if_there(policy, "on_global_vars_update", global_vars)

    def get_global_vars(self) -> dict[str, Any]:
        """What `set_global_vars` was last told."""
        return dict(self.global_vars)

    # --- learning ----------------------------------------------------------------------------------------------------

    def learn_on_batch(self, batch: Batch) -> dict[str, Any]:
        """One update of each policy that learns and is in the batch; statistics by policy id."""
        with self._lock:
            info = {
                name: self.policy_map[name].learn_on_batch(part) for name, part in self.parts_to_train(batch).items()
            }
            self.weights_version += 1
            return info

    def compute_gradients(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        """Gradients, and statistics by policy id; gradients by policy id for a `MultiAgentBatch`."""
        with self._lock:
            parts = self.parts_to_train(batch)
            computed = {name: self.policy_map[name].compute_gradients(part) for name, part in parts.items()}
        info = {name: stats for name, (_, stats) in computed.items()}
        gradients = {name: value for name, (value, _) in computed.items()}
        return gradients if isinstance(batch, MultiAgentBatch) else gradients.get(DEFAULT_POLICY_ID), info

    def apply_gradients(self, gradients: Any) -> None:
        """One update with gradients as `compute_gradients` gives them; nothing with None, those of an empty batch."""
        if gradients is None or (isinstance(gradients, Mapping) and not gradients):
            return
        parts = gradients if by_policy_id(gradients, self.policy_map) else {DEFAULT_POLICY_ID: gradients}
        with self._lock:
            for name, value in parts.items():
                self.policy_map[name].apply_gradients(value)
            self.weights_version += 1

    def update_target(self, policies: list[str] | None = None) -> None:
        """Copies weights to target networks."""
        with self._lock:
            for name in policies or self.policies_to_train:
                self.policy_map[name].update_target()

    def parts_to_train(self, batch: Batch, policies: list[str] | None = None) -> dict[str, SampleBatch]:
        """What each policy that learns is to learn from.

        Raises:
            ValueError: the batch does not say of which policy it is, and there are several.
        """
        if isinstance(batch, SampleBatch) and DEFAULT_POLICY_ID not in self.policy_map:
            raise ValueError(
                f"a SampleBatch is of the policy {DEFAULT_POLICY_ID!r}, but this worker has {sorted(self.policy_map)}: "
                "give it a MultiAgentBatch"
            )
        wanted = policies or self.policies_to_train
        parts = check_batch(batch, "a RolloutWorker").as_multi_agent().policy_batches
        return {name: part for name, part in parts.items() if name in wanted and part.count}

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """All that a checkpoint needs."""
        with self._lock:
            return {
                "policies": {name: policy.get_state() for name, policy in self.policy_map.items()},
                "weights_version": self.weights_version,
                "global_vars": dict(self.global_vars),
            }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes `get_state` back."""
        with self._lock:
            for name, value in state["policies"].items():
                self.policy_map[name].set_state(value)
            self.weights_version = state["weights_version"]
            self.set_global_vars(state["global_vars"])


def _check_methods(what: str, value: object, *names: str) -> None:
    missing = [name for name in names if not callable(getattr(value, name, None))]
    if missing:
        raise TypeError(f"the {what} of a RolloutWorker, {type(value).__name__}, has no method {' and '.join(missing)}")


def _call_if_there(value: object, name: str, *args: Any) -> Any:
    method = getattr(value, name, None)
    return None if method is None else method(*args)


def by_policy_id(gradients: Any, policies: Mapping[str, Any]) -> bool:
    """Whether gradients are given by policy id."""
    return isinstance(gradients, Mapping) and bool(gradients) and set(gradients) <= set(policies)
