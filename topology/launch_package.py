"""Finds the package `launch` that belongs to this one, also from a script that is itself called launch.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from topology.errors import LaunchError

__all__ = ["import_launch"]

_HOME = Path(__file__).resolve().parents[1] / "launch"


def import_launch() -> ModuleType:
    """The package `launch` that was installed with this package.

    A plain import would find the user's own launch.py, which many programs have beside their other modules.

    Raises:
        LaunchError: the name is taken by another module that has been imported.
    """
    found = sys.modules.get("launch")
    if found is None:
        return _load()
    if Path(found.__file__ or "").resolve().parent != _HOME:
        raise LaunchError(
            f"A module of yours is called launch ({found.__file__}), as is the package that runs programs: rename yours"
        )
    return found


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "launch", _HOME / "__init__.py", submodule_search_locations=[str(_HOME)]
    )
    if spec is None or spec.loader is None:
        raise LaunchError(f"The package launch is not at {_HOME}: install rl-topology again")
    module = importlib.util.module_from_spec(spec)
    sys.modules["launch"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["launch"]
        raise
    return module
