"""Catch: a ball falls down a small grid, the paddle at the bottom is to be under it when it lands."""

from __future__ import annotations

from typing import final

import dm_env
import numpy as np
from dm_env import specs
from numpy.typing import NDArray

__all__ = ["Catch"]


@final
class Catch(dm_env.Environment):  # type: ignore[misc]  # dm_env has no type information
    """The game of bsuite: one ball an episode, one reward of +1 or -1 at its end.

    Observations are float32 `[rows, columns]`, 1 at the ball and at the paddle, else 0. The actions move the paddle
    left, not at all, or right. An episode takes `rows - 1` decisions. With 10x5 a random policy returns -0.6 on
    average, the best one 1.0.

    Source: Osband et al., "Behaviour Suite for Reinforcement Learning", 2020.

    Args:
        rows: height of the grid, at least 2.
        columns: width of the grid, at least 1.
        seed: of the column where each ball starts.
    """

    def __init__(self, rows: int = 10, columns: int = 5, *, seed: int | None = None) -> None:
        if rows < 2 or columns < 1:
            raise ValueError(f"Catch needs at least 2 rows and 1 column, got {rows}x{columns}")
        self._rows = rows
        self._columns = columns
        self._random = np.random.default_rng(seed)
        self._ball = (0, 0)
        self._paddle = 0
        self._must_reset = True

    def reset(self) -> dm_env.TimeStep:
        self._must_reset = False
        self._ball = (0, int(self._random.integers(self._columns)))
        self._paddle = self._columns // 2
        return dm_env.restart(self._observation())

    def step(self, action: int) -> dm_env.TimeStep:
        if self._must_reset:
            return self.reset()
        if not 0 <= action < 3:
            raise ValueError(f"Catch takes the actions 0 (left), 1 (stay) and 2 (right), got {action}")
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self._columns - 1)
        row, column = self._ball
        self._ball = (row + 1, column)
        if row + 1 < self._rows - 1:
            return dm_env.transition(reward=0.0, observation=self._observation())
        self._must_reset = True
        return dm_env.termination(reward=1.0 if column == self._paddle else -1.0, observation=self._observation())

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((self._rows, self._columns), np.float32, 0.0, 1.0, name="board")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(3, name="action")

    def _observation(self) -> NDArray[np.float32]:
        board = np.zeros((self._rows, self._columns), np.float32)
        board[self._ball] = 1.0
        board[self._rows - 1, self._paddle] = 1.0
        return board
