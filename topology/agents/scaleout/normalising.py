"""Observations and rewards normalised by running statistics that all workers share.

The statistics are a part of the policy: they travel with its weights, and the trainer alone adds to them, from the
experience that it takes. So all who act with policy k normalise alike, the trainer included; each experience counts
once, also over restarts; and what the statistics say is saved with what was learned under them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from topology.nodes.store.moments import Moments

__all__ = ["RETURNS", "Normaliser"]

RETURNS = "returns"
"""Column of the discounted returns so far, of each step: what rewards are normalised by."""

_OBSERVATIONS = "observations"
_CLIP = 10.0


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
            self._moments[_OBSERVATIONS] = Moments.empty(observation_shape)
        if rewards:
            self._moments[RETURNS] = Moments.empty()

    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """`[N, ...]` with mean 0 and variance 1, within 10 deviations, as float32; as they are where that is off."""
        moments = self._moments.get(_OBSERVATIONS)
        return observations if moments is None else moments.normalise(observations, clip=_CLIP)

    @property
    def reward_factor(self) -> float | None:
        """What rewards are multiplied by; None where they are not normalised."""
        moments = self._moments.get(RETURNS)
        return None if moments is None else float(moments.scale(1.0))

    def add(self, *, observations: NDArray[Any], returns: NDArray[Any] | None) -> None:
        """Learns from the steps of a worker, `[T, ...]`.

        Raises:
            ValueError: they are not all finite.
        """
        for name, rows in ((_OBSERVATIONS, observations), (RETURNS, returns)):
            if name in self._moments and rows is not None:
                self._moments[name] = self._moments[name].merge(Moments.of(rows))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What it knows, to travel with a policy."""
        return {
            name: array
            for key, moments in self._moments.items()
            for name, array in moments.to_arrays(_prefix(key)).items()
        }

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Takes `arrays` back from a policy. Statistics that the policy lacks begin anew."""
        for key, moments in self._moments.items():
            if f"{_prefix(key)}count" in arrays:
                self._moments[key] = Moments.from_arrays(arrays, _prefix(key))
            else:
                self._moments[key] = Moments.empty(np.shape(moments.mean))


def _prefix(key: str) -> str:
    return f"statistics/{key}/"
