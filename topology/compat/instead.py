"""Names and modules of other projects that are not provided, and what to use instead."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["NAMES", "attribute_of", "module_hint", "submodule"]

_MODULES_HERE = Path(__file__).parent / "modules"

_PAGE = "docs/migration/launchpad.md lists what there is, and what to use instead"
_IN_A_CONTAINER = (
    "to run in a container, put the program into an image and launch it inside with lp.launch(program, 'local_mp')"
)
_BY_THE_LAUNCHER = (
    "a node's process is the launcher's affair: lp.PythonProcess(args=, interpreter_args=, env=) sets it up, "
    "lp.launch() runs it, and docs/launchers.md shows how to write a launcher of your own"
)
_AT_ONCE = "nothing of launchpad is slow to import here; import it as always"

_MODULES = {
    "courier.python.py_client": "use courier.Client",
    "courier.python.router": "use Bind and Unbind of courier.Server",
    "courier.python.server": "use courier.Server",
    "courier.serialization": "values travel by pickle here: give a class of yours __reduce__",
    "launchpad.launch.local_docker": _IN_A_CONTAINER,
    "launchpad.launch.local_multi_threading.thread_waiter": "use wait() of the run that lp.launch() returns",
    "launchpad.launch.run_locally.feature_testing": "lp.launch(..., terminal=) finds out itself",
    "launchpad.launch.run_locally.launch_local": "use run_locally.run_commands_locally(commands, terminal=)",
    "launchpad.launch.wait_for_stop": "use lp.wait_for_stop()",
    "launchpad.lazy_loader": _AT_ONCE,
    "launchpad.nodes.python.flags_utils": f"absl's flags of the script are those of its nodes; {_BY_THE_LAUNCHER}",
    "launchpad.nodes.python.local_docker": _IN_A_CONTAINER,
    "launchpad.nodes.python.process_entry": _BY_THE_LAUNCHER,
}

NAMES = {
    "Controller": "programs are launched one by one: lp.launch(program)",
    "LazyModule": _AT_ONCE,
}
"""Of `launchpad` itself."""


def module_hint(name: str) -> str:
    """What to use instead of a module."""
    found = (use for module, use in _MODULES.items() if name == module or name.startswith((f"{module}.", f"{module}_")))
    return next(found, "docs/migration.md lists them, and what to use instead of the others")


def submodule(package: str, name: str) -> ModuleType | None:
    """A module inside a package that is provided; None when there is none of that name.

    The originals import all of theirs with the package, so that programs reach them as its attributes.
    """
    place = _MODULES_HERE.joinpath(*package.split("."), name)
    there = place.is_dir() or place.with_suffix(".py").is_file()
    return importlib.import_module(f"{package}.{name}") if there else None


def attribute_of(module: str, instead: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """A `__getattr__` for a module: gives the modules inside it, and of other names says what to use instead."""

    def find(name: str) -> Any:
        found = submodule(module, name)
        if found is not None:
            return found
        text = f"module {module!r} has no attribute {name!r}"
        if not name.startswith("__"):
            text += f" among those that topology.compat provides; {(instead or {}).get(name, _PAGE)}"
        raise AttributeError(text, name=name)

    return find
