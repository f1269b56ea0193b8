"""Names of Reverb that are not provided, and where TensorFlow is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from topology.compat.instead import submodule

__all__ = ["has_tensorflow", "lazily", "need_tensorflow"]

GONE = {
    "ReplayDataset": "Reverb itself has it no more: use reverb.TimestepDataset",
    "ItemSelector": "use reverb.selectors",
    "Sample": "use reverb.ReplaySample",
}


def has_tensorflow() -> bool:
    """Whether TensorFlow is installed. Does not import it."""
    return find_spec("tensorflow") is not None


def need_tensorflow(what: str, instead: str) -> None:
    """Raises `ModuleNotFoundError` where TensorFlow is not installed.

    Args:
        what: was asked for.
        instead: what does without it.
    """
    if not has_tensorflow():
        raise ModuleNotFoundError(
            f"{what} needs TensorFlow, which is not installed here: pip install 'rl-topology[tensorflow]'. Without it "
            f"use {instead}",
            name="tensorflow",
        )


def lazily(module: str, where: Mapping[str, str], missing: Mapping[str, str] = GONE) -> Callable[[str], Any]:
    """A `__getattr__` for a module, which also gives the modules inside it.

    Args:
        module: its name.
        where: module of each name that is imported only when it is asked for, as TensorFlow is slow to import.
        missing: what to use instead of names that are not provided.
    """

    def get(name: str) -> Any:
        if name in where:
            return getattr(importlib.import_module(where[name]), name)
        found = submodule(module, name)
        if found is not None:
            return found
        text = f"module {module!r} has no attribute {name!r}"
        if not name.startswith("__"):
            use = missing.get(name, "docs/migration/reverb.md lists what there is, and what to use instead")
            text += f" among those that topology.compat provides; {use}"
        raise AttributeError(text, name=name)

    return get
