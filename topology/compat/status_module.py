"""`pybind11_abseil.status`, where TensorFlow may be loaded as well.

TensorFlow looks whether there is a module of that name, makes one if there is none, and puts statuses of its own into
its namespace. It fails where one of their names is taken there; and where it came first, the `StatusNotOk` of programs
would be its own, which is not what our calls raise. So our module is there from the start, its namespace empty.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final, final

__all__ = ["StatusModule", "leave_place", "take_place"]

_NAME: Final = "pybind11_abseil.status"
_OURS: Final = frozenset({"Status", "StatusCode", "StatusNotOk"})
_FILE: Final = Path(__file__).parent / "modules" / "pybind11_abseil" / "status.py"


@final
class StatusModule(ModuleType):
    """Gives our names, whatever stands in its namespace."""

    def __getattribute__(self, name: str) -> Any:
        if name in _OURS:
            return getattr(importlib.import_module("topology.compat.status"), name)
        return super().__getattribute__(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_OURS})


def take_place() -> None:
    """Puts our module in its place; with what TensorFlow has put into one before. Idempotent."""
    there = sys.modules.get(_NAME)
    if isinstance(there, StatusModule):
        return
    ours = StatusModule(_NAME)
    ours.__spec__ = spec_from_file_location(_NAME, _FILE)
    ours.__file__, ours.__package__ = str(_FILE), _NAME.partition(".")[0]
    vars(ours).update(_of_tensorflow(there), __all__=sorted(_OURS))
    sys.modules[_NAME] = ours


def leave_place() -> None:
    """Takes our module away; what TensorFlow has put into it stays."""
    ours = sys.modules.get(_NAME)
    if not isinstance(ours, StatusModule):
        return
    del sys.modules[_NAME]
    if theirs := _of_tensorflow(ours):
        module = sys.modules[_NAME] = ModuleType(_NAME)
        vars(module).update(theirs)


def _of_tensorflow(module: ModuleType | None) -> dict[str, Any]:
    return {} if module is None else {key: value for key, value in vars(module).items() if not key.startswith("__")}
