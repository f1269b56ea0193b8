"""Inference servers: the actors send what they see, and get actions; one network call answers many of them.

The actors hold no weights then, so there is one copy of them for each server, which may compute on an accelerator
(`accelerator_roles`).
"""

from __future__ import annotations

import math
import threading
from typing import Any, final

import jax
import numpy as np
from numpy.typing import NDArray

from topology.agents.core.learner import zeros_like_spec
from topology.agents.core.metrics import Averages, RowWriter
from topology.agents.core.policy import Policy, PolicyOutput, WeightedPolicy
from topology.agents.core.stopping import follow, until_stopped
from topology.agents.core.variables import VariableClient
from topology.clock import SYSTEM_CLOCK, Clock
from topology.context import StopToken, try_get_context
from topology.errors import ConnectionBroken, CourierClosed, ProgramStopped
from topology.nodes.courier.batching import batched_handler

__all__ = ["InferenceServer", "ServedPolicy"]


@final
class InferenceServer:
    """Answers actors with the actions of a policy, many in one call of the network.

    A request has the observations of all environments of one actor. Requests are gathered until there are `batch_size`
    or the first has waited for `timeout_s`; so actors that have ended, or wait elsewhere, hold up nobody for longer. A
    batch that is not full is padded: the network is compiled for one size. When the policy raises, every actor of that
    batch gets the error.

    Args:
        policy: of the agent.
        client: gives the weights.
        observations: specs of one observation, a tree.
        environments: of each actor.
        batch_size: requests that make a batch.
        timeout_s: what the first request of a batch waits at most for more, in seconds.
        refresh_s: time between two requests for weights, in seconds.
        seed: of what is random.
        metrics: gets a row about once a second.
        stop: of the program.
        clock: for tests.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        client: VariableClient,
        observations: Any,
        environments: int,
        batch_size: int,
        timeout_s: float,
        refresh_s: float,
        seed: int,
        metrics: RowWriter,
        stop: StopToken,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._policy = WeightedPolicy(policy, seed=seed)
        self._client = client
        self._rows = batch_size * environments
        states = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], self._rows, 0), policy.initial_state)
        self._example = zeros_like_spec(observations, self._rows), states, np.zeros(self._rows, np.float32)
        self._environments = environments
        self._refresh_s = refresh_s
        self._averages = Averages(metrics, clock=clock)
        self._stop = stop
        self._ready = threading.Event()  # or there is nothing to wait for any more
        self._serves = False
        self._lock = threading.Lock()  # of what follows: batches are computed in another thread than `run`
        self._version, self._made_s = -1, 0.0
        self._requests = self._batches = 0
        self.act = batched_handler(batch_size, timeout=timeout_s, clock=clock)(self._act)
        """Called by the actors; see `ServedPolicy`."""

    def run(self) -> None:
        """Keeps the weights fresh until the program stops. Calls wait for the first ones."""
        forget = self._stop.on_stop(self._ready.set)
        try:
            with until_stopped(self._stop):
                self._refresh()
                self._policy(*self._example)  # compiles, before an actor waits for it
                self._serves = True
                self._ready.set()
                while not self._stop.wait(self._refresh_s):
                    self._refresh()
                    self._report()
        finally:
            forget()
            self._serves = False
            self._ready.set()  # whatever ended it
            self.act.close()

    def _act(
        self, observations: Any, states: Any, explorations: NDArray[np.float32]
    ) -> tuple[PolicyOutput, NDArray[np.int64], NDArray[np.float64]]:
        """Answers `B` requests: trees of `[B, N, ...]`, `N` environments each; see `ServedPolicy`."""
        self._ready.wait()
        requests = len(explorations)
        rows = requests * self._environments
        inputs = jax.tree.map(lambda leaf: leaf.reshape(rows, *leaf.shape[2:]), (observations, states, explorations))
        with self._lock:
            if not self._serves:
                raise CourierClosed("the inference server has ended")
            output = self._policy(*jax.tree.map(lambda leaf: _pad(leaf, self._rows - rows), inputs))
            self._requests += requests
            self._batches += 1
            version, made_s = np.full(requests, self._version), np.full(requests, self._made_s)
        shape = requests, self._environments
        return jax.tree.map(lambda leaf: leaf[:rows].reshape(*shape, *leaf.shape[1:]), output), version, made_s

    def _refresh(self) -> None:
        newer = self._client.update_and_wait()
        with self._lock:
            if newer or self._version < 0:
                self._policy.set_weights(self._client.values[0])
            self._version, self._made_s = self._client.version, self._client.time_s

    def _report(self) -> None:
        if not self._averages.due:
            return
        with self._lock:
            requests, batches, self._requests, self._batches = self._requests, self._batches, 0, 0
        self._averages.write(
            rates={"inferences_per_second": requests * self._environments, "batches_per_second": batches},
            requests_per_batch=requests / batches if batches else 0,
            weights_version=self._client.version,
            weights_age_s=self._client.age_s,
        )


@final
class ServedPolicy:
    """The policy of an inference server, for one actor.

    Args:
        server: courier client of an `InferenceServer`.
        clock: for tests.
    """

    def __init__(self, server: Any, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._server = server
        context = try_get_context()
        self._stop = None if context is None else context.stop
        self._clock = clock
        self._version, self._made_s = -1, math.nan

    @property
    def version(self) -> int:
        """Learner steps that made the weights of the last answer; -1 before the first."""
        return self._version

    @property
    def age_s(self) -> float:
        """Seconds since the weights of the last answer were given out; not a number before the first."""
        return self._clock.time() - self._made_s

    def __call__(self, observations: Any, states: Any, explorations: NDArray[np.float32]) -> PolicyOutput:
        def ask() -> Any:
            try:
                return self._server.act(observations, states, explorations)
            except ProgramStopped:
                raise
            except CourierClosed as error:  # it ends, by a stop or by a failure of its own: then it may come again
                raise ConnectionBroken(f"the inference server went away: {error}") from error

        output, version, made_s = follow(ask, self._stop, what="the inference server")
        self._version, self._made_s = int(version), float(made_s)
        return PolicyOutput(*output)

    def update(self) -> None:
        """There is nothing to update: the server has the weights."""

    def update_and_wait(self) -> bool:
        """There is nothing to wait for; returns False."""
        return False


def _pad(leaf: NDArray[Any], rows: int) -> NDArray[Any]:
    return np.concatenate([leaf, np.repeat(leaf[-1:], rows, axis=0)]) if rows else leaf
