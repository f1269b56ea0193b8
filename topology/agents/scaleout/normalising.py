"""Observations and rewards normalised by running statistics that all workers share.

The statistics are a part of the policy: they travel with its weights, and the trainer alone adds to them, from the
experience that it takes. So all who act with policy k normalise alike, the trainer included; each experience counts
once, also over restarts; and what the statistics say is saved with what was learned under them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from topology.agents.scaleout.trees import part

__all__ = ["RETURNS", "Moments", "Normaliser"]

RETURNS = "returns"
"""Column of the discounted returns so far, of each step: what rewards are normalised by."""

_PREFIX = "statistics"
_CLIP = 10.0
_EPSILON = 1e-8


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations of rows `[N, ...]`, in float64.

    Example:
        >>> Moments.zeros(()).add(np.array([1.0, 3.0])).add(np.array([5.0])).variance
        array(2.66666667)
    """

    count: NDArray[np.float64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]

    @classmethod
    def zeros(cls, shape: tuple[int, ...]) -> Moments:
        """Those of no rows."""
        return cls(np.zeros(()), np.zeros(shape), np.zeros(shape))

    def add(self, rows: NDArray[Any]) -> Moments:
        """Those of these rows too. Rows that are not all finite are left out.

        Source: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
        """
        rows = np.asarray(rows, np.float64)
        rows = rows[np.isfinite(rows).reshape(len(rows), -1).all(axis=1)]
        if not len(rows):
            return self
        mean, count = rows.mean(axis=0), self.count + len(rows)
        delta = mean - self.mean
        m2 = self.m2 + ((rows - mean) ** 2).sum(axis=0) + delta**2 * (self.count * len(rows) / count)
        return Moments(np.asarray(count), self.mean + delta * (len(rows) / count), m2)

    @property
    def variance(self) -> NDArray[np.float64]:
        """Of the rows; 1 before there are two."""
        return self.m2 / self.count if self.count > 1 else np.ones_like(self.m2)


@final
class Normaliser:
    """What a policy knows of observations and returns. For one thread.

    Args:
        observation_shape: of one observation.
        observations: whether observations are normalised.
        rewards: whether rewards are.
    """

    def __init__(self, observation_shape: tuple[int, ...], *, observations: bool, rewards: bool) -> None:
        self._moments: dict[str, Moments] = {}
        if observations:
            self._moments["observations"] = Moments.zeros(observation_shape)
        if rewards:
            self._moments[RETURNS] = Moments.zeros(())

    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """`[N, ...]` with mean 0 and variance 1, within 10 deviations, as float32; as they are where that is off."""
        moments = self._moments.get("observations")
        if moments is None:
            return observations
        normal = (observations - moments.mean) / np.sqrt(moments.variance + _EPSILON)
        return np.clip(normal, -_CLIP, _CLIP).astype(np.float32)

    @property
    def reward_factor(self) -> float | None:
        """What rewards are multiplied by; None where they are not normalised."""
        moments = self._moments.get(RETURNS)
        return None if moments is None else float(1.0 / np.sqrt(moments.variance + _EPSILON))

    def add(self, *, observations: NDArray[Any], returns: NDArray[Any] | None) -> None:
        """Learns from the steps of a worker, `[T, ...]`."""
        if "observations" in self._moments:
            self._moments["observations"] = self._moments["observations"].add(observations)
        if RETURNS in self._moments and returns is not None:
            self._moments[RETURNS] = self._moments[RETURNS].add(returns)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What it knows, to travel with a policy."""
        return {
            f"{_PREFIX}/{name}/{field}": np.asarray(value)
            for name, moments in self._moments.items()
            for field, value in moments._asdict().items()
        }

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Takes `arrays` back from a policy. Statistics that the policy lacks begin anew."""
        found = part(arrays, _PREFIX)
        for name in self._moments:
            if f"{name}/count" in found:
                self._moments[name] = Moments(*(found[f"{name}/{field}"] for field in Moments._fields))
