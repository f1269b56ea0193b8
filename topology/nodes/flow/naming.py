"""Names of functions and operators, as graphs and reprs show them."""

from __future__ import annotations

from typing import Any

from topology.graph_values import name_of

__all__ = ["name_of_function"]


def name_of_function(fn: Any) -> str:
    """The name of a function, or of the class of an operator; never a memory address."""
    return str(getattr(fn, "flow_name", None) or name_of(fn)).lstrip("_")
