"""Finds the modules of other projects that are provided here."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import final

from topology.compat.additions import put_additions, take_additions_away
from topology.compat.instead import module_hint
from topology.compat.status_module import leave_place, take_place

__all__ = ["ENVIRONMENT", "PROVIDED", "install", "is_installed", "provided", "uninstall"]

ENVIRONMENT = "TOPOLOGY_COMPAT"
"""Set to 1 (or to "shadow") it installs the modules at the start of an interpreter, and of those it starts."""

_SHADOW = "shadow"
_MODULES = Path(__file__).parent / "modules"
_SITE = Path(__file__).parent / "site"

# What only the real package has, so that a folder of a program inside one of these names is not taken for it.
PROVIDED = {
    "launchpad": "program.py",
    "courier": "python",
    "reverb": "client.py",
    "pybind11_abseil": "status.so",
}
"""The top-level modules, each with a file that tells a real installation."""


@final
class _Finder(MetaPathFinder):
    """Gives our files under those names, and finds the folders that a program adds inside them.

    Args:
        shadow: use ours even where the real package is installed.
    """

    def __init__(self, *, shadow: bool) -> None:
        self.shadow = shadow

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del target
        top, _, rest = fullname.partition(".")
        if top not in PROVIDED:
            return None
        ours = _MODULES.joinpath(*fullname.split("."))
        if not rest:
            return None if self.is_real(top) else self._package(fullname, ours, sys.path)
        if path is None or str(_MODULES / top) not in sys.modules[top].__path__:
            return None  # the real package
        if ours.is_dir():
            return self._package(fullname, ours, path)
        if ours.with_suffix(".py").is_file():
            return spec_from_file_location(fullname, ours.with_suffix(".py"))
        if (spec := PathFinder.find_spec(fullname, path)) is not None:
            return spec  # the program's own
        raise ModuleNotFoundError(
            f"{fullname} is not among the modules that topology.compat provides: {module_hint(fullname)}", name=fullname
        )

    def is_real(self, top: str) -> bool:
        """Whether a real package of that name is found, which is not to be shadowed."""
        if self.shadow:
            return False
        places = (Path(entry or os.curdir) / top for entry in sys.path)
        return any((place / PROVIDED[top]).exists() for place in places if place != _MODULES / top)

    @staticmethod
    def _package(fullname: str, ours: Path, path: Sequence[str]) -> ModuleSpec | None:
        name = ours.name
        others = [str(Path(entry or os.curdir) / name) for entry in path if entry != str(ours.parent)]
        return spec_from_file_location(
            fullname,
            ours / "__init__.py",
            submodule_search_locations=[str(ours), *(other for other in others if Path(other).is_dir())],
        )


def is_installed() -> bool:
    """Whether the modules are provided in this interpreter."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def install(*, shadow: bool = False) -> None:
    """Provides the modules from now on, here and in the interpreters that are started from here. Idempotent.

    Args:
        shadow: also where the real package is installed.

    Raises:
        ImportError: one of the modules was imported already, from elsewhere.
    """
    for top in PROVIDED:
        loaded = sys.modules.get(top)
        if shadow and loaded is not None and str(_MODULES / top) not in list(getattr(loaded, "__path__", ())):
            raise ImportError(
                f"{top} was imported already, from {getattr(loaded, '__file__', '?')}: call topology.compat.install() "
                "before the first import of it",
                name=top,
            )
    uninstall()
    finder = _Finder(shadow=shadow)
    sys.meta_path.insert(0, finder)
    if not finder.is_real("pybind11_abseil"):
        take_place()
    os.environ[ENVIRONMENT] = _SHADOW if shadow else "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_SITE), *_python_path()])
    from topology.compat.courier_ways import take_their_ways

    take_their_ways()
    put_additions()


def install_if_asked() -> None:
    """Installs when the environment says so; what an interpreter calls when it starts."""
    value = os.environ.get(ENVIRONMENT, "")
    if value not in {"", "0"} and not is_installed():
        install(shadow=value == _SHADOW)


def uninstall() -> None:
    """Provides nothing any more, and our classes are as they were; modules that were imported stay."""
    if not is_installed():
        return
    from topology.compat.courier_ways import take_their_ways

    take_their_ways(False)
    take_additions_away()
    leave_place()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    os.environ.pop(ENVIRONMENT, None)
    os.environ["PYTHONPATH"] = os.pathsep.join(_python_path())
    if not os.environ["PYTHONPATH"]:
        del os.environ["PYTHONPATH"]


@contextlib.contextmanager
def provided(*, shadow: bool = False) -> Iterator[None]:
    """Provides the modules inside a `with` block, and afterwards as before: for tests in a process that has others."""
    before = is_installed()
    if not before:
        install(shadow=shadow)
    try:
        yield
    finally:
        if not before:
            uninstall()


def _python_path() -> list[str]:
    """The entries of PYTHONPATH, without ours."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in entries if entry and entry != str(_SITE)]
