"""Who plays in a worker or in the evaluator: what those who drive them need to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray

from topology.agents.core.loop import EpisodeResult
from topology.nodes.store.policies import Policy

__all__ = ["Acts", "Cast", "Columns", "Follow", "Plays", "WasPlayed"]

Columns: TypeAlias = dict[str, NDArray[Any]]
"""By name, `[T, ...]`."""


class WasPlayed(Protocol):
    """What was played."""

    @property
    def episodes(self) -> Sequence[EpisodeResult]:
        """Those that ended."""

    @property
    def oldest(self) -> int:
        """Number of the oldest policy that chose an action in it."""

    @property
    def num_steps(self) -> int:
        """Steps of all environments."""


class Plays(Protocol):
    """Plays environments. For one thread."""

    def play_steps(self, steps: int) -> Any:
        """So many steps of all environments; episodes go on from call to call. What was played is a `WasPlayed`.

        Raises:
            ProgramStopped: the program stopped meanwhile; what was played is lost.
        """

    def play_episodes(self, episodes: int) -> Any:
        """So many whole episodes, from their beginning. Gives and raises what `play_steps` does."""

    def close(self) -> None:
        """Closes the environments."""


class Acts(Protocol):
    """Has a policy.

    Attributes:
        number: of the policy that was loaded last; -1 before the first.
    """

    number: int

    def load(self, policy: Policy) -> None:
        """Acts with this policy from now on. Raises ProgramError for that of another network."""


Follow: TypeAlias = Callable[[Acts], None]
"""Loads a newer policy, if there is one. Never blocks."""


class Cast(NamedTuple):
    """Who plays.

    Attributes:
        player: plays with the policy of `acting`.
        acting: has it.
        make_columns: from what was played, and `acting`, to what is stored.
    """

    player: Plays
    acting: Acts
    make_columns: Callable[[Any, Any], Columns]
