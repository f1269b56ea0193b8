"""Which processes see which graphics cards."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, SupportsIndex

from launch.python_process import PythonProcess
from topology.errors import LaunchError

if TYPE_CHECKING:
    from topology.program import Program

__all__ = ["gpu_map"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpu_map(program: Program, cards: Mapping[str, SupportsIndex | Iterable[SupportsIndex]]) -> dict[str, PythonProcess]:
    """The `local_resources` with which these groups alone see graphics cards; all others of the program see none.

    Every node of a group sees all cards of its group, numbered from 0. A library that takes whatever it finds, such as
    JAX, then cannot take the learner's card in an actor.

    Args:
        program: whose groups they are.
        cards: by label, a card or several, as `nvidia-smi` numbers them.

    Example:
        >>> import topology as lp
        >>> program = lp.Program("pair")
        >>> for label in ("learner", "actor"):
        ...     with program.group(label):
        ...         _ = program.add_node(lp.PyNode(print))
        >>> {label: process.env for label, process in gpu_map(program, {"learner": [0, 1]}).items()}
        {'learner': {'CUDA_VISIBLE_DEVICES': '0,1'}, 'actor': {'CUDA_VISIBLE_DEVICES': ''}}

    Raises:
        LaunchError: a label the program does not have, or something else than numbers of cards, each once.
    """
    labels = list(program.groups)
    unknown = [label for label in cards if label not in labels]
    if unknown:
        raise LaunchError(f"gpu_map: {program.name!r} has the groups {', '.join(labels)}, but no {', '.join(unknown)}")
    return {label: PythonProcess(env={_VISIBLE: _numbers(label, cards.get(label, ()))}) for label in labels}


def _numbers(label: str, cards: SupportsIndex | Iterable[SupportsIndex]) -> str:
    try:
        found = list(cards) if isinstance(cards, Iterable) else [cards]
        numbers = [-1 if isinstance(card, bool) else operator.index(card) for card in found]
    except TypeError:
        numbers = [-1]
    if any(number < 0 for number in numbers) or len(set(numbers)) < len(numbers):
        raise LaunchError(f"gpu_map: the cards of {label!r} are numbers from 0, each once, got {cards!r}")
    return ",".join(map(str, numbers))
