"""Filters of observations and rewards by running statistics, of one worker or shared by all.

    normalise = NormaliseObservations((4,), statistics, worker="worker/3")   # the service, or a client of it
    observation = normalise(observation)

A worker counts what it sees in a batch of its own, and sends that when it is large enough; the answer is what all have
seen together. In between it normalises by what it knows: the last answer, and its own since then.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
from collections.abc import Iterator, Mapping
from typing import final

import numpy as np
import numpy.typing as npt

from topology.errors import ConnectionBroken, DeadlineExceeded
from topology.nodes.courier.client import Client
from topology.nodes.store.codec import Array
from topology.nodes.store.moments import Moments
from topology.nodes.store.running_statistics import Batch, RunningStatistics

__all__ = ["NormaliseObservations", "ScaleRewards"]

_logger = logging.getLogger(__name__)


@final
class _Shared:
    """The statistics of one name as one worker knows them. For one thread."""

    def __init__(
        self, name: str, shape: tuple[int, ...], source: RunningStatistics | Client | None, worker: str, send_every: int
    ) -> None:
        if send_every < 1:
            raise ValueError(f"send_every is how many numbers a batch has at least, 1 or more, got {send_every}")
        self._name = name
        self._source = source
        self._worker = worker
        self._send_every = send_every
        self._session = secrets.token_hex(8)
        self._sequence = 0
        self._shared = self._own = Moments.empty(shape)
        self._sent: Batch | None = None  # it may have arrived, or not
        self.frozen = False

    @property
    def known(self) -> Moments:
        """The last answer, and what was counted here since."""
        known = self._shared.merge(self._own)
        return known if self._sent is None else known.merge(self._sent.moments)

    def count(self, batch: npt.NDArray[np.float64]) -> None:
        """Counts [N, ...]; sends when there is enough. Blocks for that, and goes on alone when nobody answers."""
        if self.frozen:
            return
        self._own = self._own.merge(Moments.of(batch))
        if self._source is not None and self._own.count >= self._send_every:
            try:
                self.flush()
            except (ConnectionBroken, DeadlineExceeded) as error:
                _logger.warning("running statistics of %s go on alone for now: %s", self._name, error)

    def flush(self) -> None:
        """Sends what was counted and not sent."""
        while self._source is not None and (self._sent is not None or self._own.count):
            if self._sent is None:
                self._sent = Batch(self._worker, self._session, self._sequence, self._name, self._own)
                self._sequence += 1
                self._own = Moments.empty(self._own.mean.shape)
            self._shared = self._source.add(self._sent)
            self._sent = None

    def refresh(self) -> None:
        """Asks for what all have counted."""
        if self._source is not None:
            fetched: Moments | None = self._source.fetch(self._name)
            self._shared = self._shared if fetched is None else fetched

    def restore(self, moments: Moments) -> None:
        if moments.mean.shape != self._own.mean.shape:
            raise ValueError(
                f"the state is of {self._name} of shape {moments.mean.shape}, and these have {self._own.mean.shape}"
            )
        self._shared, self._own, self._sent = moments, Moments.empty(moments.mean.shape), None


class _Filter:
    """What both filters are but for the numbers."""

    def __init__(self, shared: _Shared, clip: float | None, epsilon: float) -> None:
        if clip is not None and not clip > 0:
            raise ValueError(f"clip is a bound above 0, or None, got {clip}")
        if not 0 < epsilon < math.inf:
            raise ValueError(f"epsilon is a number above 0, got {epsilon}")
        self._shared = shared
        self._clip = clip
        self._epsilon = epsilon

    @property
    def moments(self) -> Moments:
        """By which it would change a number now."""
        return self._shared.known

    def flush(self) -> None:
        """Sends what was counted and not sent yet; returns when it has arrived.

        Raises:
            CourierError: the service did not answer. What was counted is sent again the next time, and counts once.
        """
        self._shared.flush()

    def refresh(self) -> None:
        """Takes over what all workers have counted, without counting: at the beginning of an evaluation.

        Raises:
            CourierError: the service did not answer.
        """
        self._shared.refresh()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing is counted within the block: numbers are changed by what is known."""
        before, self._shared.frozen = self._shared.frozen, True
        try:
            yield
        finally:
            self._shared.frozen = before

    def state(self) -> dict[str, Array]:
        """What it knows, as arrays by name, for a checkpoint."""
        return self._shared.known.to_arrays()

    def restore(self, state: Mapping[str, Array]) -> None:
        """Goes on from a state. With a service this lasts until its next answer: restore that one too.

        Raises:
            ValueError: it is not the state of such a filter, or of numbers of another shape.
        """
        self._shared.restore(Moments.from_arrays(state))


@final
class NormaliseObservations(_Filter):
    """Observations with mean 0 and deviation 1, as far as is known so far. For one thread.

    Args:
        shape: of one observation.
        source: the service, or a client of it; None for statistics of this worker alone.
        worker: name of this worker, distinct from those of others.
        name: of these numbers in the service.
        clip: the result is at least -clip and at most clip; None for no bound.
        epsilon: added to the variance.
        send_every: how many observations are sent at once.

    Example:
        >>> normalise = NormaliseObservations((2,))
        >>> normalise(np.array([[1.0, 5.0], [3.0, 1.0]])).tolist()
        [[-1.0, 1.0], [1.0, -1.0]]

    Raises:
        ValueError: a setting makes no sense.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        source: RunningStatistics | Client | None = None,
        *,
        worker: str = "",
        name: str = "observations",
        clip: float | None = 10.0,
        epsilon: float = 1e-8,
        send_every: int = 256,
    ) -> None:
        super().__init__(_Shared(name, shape, source, worker, send_every), clip, epsilon)
        self._shape = shape

    def __call__(self, observations: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Counts, then normalises, one observation [...] or a batch [N, ...]; float32, of the same shape.

        Raises:
            ValueError: another shape, or numbers that are not finite.
        """
        values = np.asarray(observations, np.float64)
        if self._shape not in {values.shape, values.shape[1:]} or values.ndim - len(self._shape) not in {0, 1}:
            raise ValueError(f"observations have the shape {self._shape}, alone or in a batch, got {values.shape}")
        self._shared.count(values.reshape(-1, *self._shape))
        return self._shared.known.normalise(values, clip=self._clip, epsilon=self._epsilon)


@final
class ScaleRewards(_Filter):
    """Rewards over the deviation of the discounted return so far: their size is the same in all tasks. For one thread.

    Args:
        source: the service, or a client of it; None for statistics of this worker alone.
        environments: how many run side by side: rewards come as [environments]; None for one, as numbers.
        discount: of the return; 0 for the deviation of the rewards themselves.
        worker: name of this worker, distinct from those of others.
        name: of these numbers in the service.
        clip: the result is at least -clip and at most clip; None for no bound.
        epsilon: added to the variance.
        send_every: how many rewards are sent at once.

    Raises:
        ValueError: a setting makes no sense.
    """

    def __init__(
        self,
        source: RunningStatistics | Client | None = None,
        *,
        environments: int | None = None,
        discount: float = 0.99,
        worker: str = "",
        name: str = "returns",
        clip: float | None = 10.0,
        epsilon: float = 1e-8,
        send_every: int = 256,
    ) -> None:
        super().__init__(_Shared(name, (), source, worker, send_every), clip, epsilon)
        if not 0 <= discount <= 1:
            raise ValueError(f"discount is between 0 and 1, got {discount}")
        self._discount = discount
        self._returns = np.zeros(() if environments is None else (environments,))

    def __call__(self, rewards: npt.ArrayLike, last: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Counts, then scales, the rewards of one step; float32, of the same shape.

        Args:
            rewards: a number, or [environments].
            last: of the same shape: whether the episode ended with this step.

        Raises:
            ValueError: another shape, or numbers that are not finite.
        """
        values, ended = np.asarray(rewards, np.float64), np.asarray(last, np.bool_)
        if values.shape != self._returns.shape or ended.shape != self._returns.shape:
            raise ValueError(
                f"rewards and ends of episodes have the shape {self._returns.shape}, got {values.shape} and "
                f"{ended.shape}"
            )
        if not self._shared.frozen:
            self._returns = self._returns * self._discount + values
            self._shared.count(self._returns.reshape(-1))
            self._returns = np.where(ended, 0.0, self._returns)
        return self._shared.known.scale(values, clip=self._clip, epsilon=self._epsilon)
