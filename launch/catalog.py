"""Finds agents: by entry point name, `module:function`, or `path/to/file.py:function`.

Packages offer agents under the entry point group `topology.agents`. Listing them reads metadata and source text only,
so that it stays quick however heavy the agents are; one is imported when it is asked for.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, final

import cloudpickle

from launch.checked import checked_names
from launch.import_guard import importing
from launch.settings import Settings, nearest
from topology.errors import ProgramError, TopologyError
from topology.program import Program

__all__ = ["GROUP", "Agent", "Listed", "find_agent", "list_agents"]

GROUP = "topology.agents"
"""The entry point group that packages put their agents in."""


@final
@dataclass(frozen=True, kw_only=True)
class Listed:
    """An agent as its package announces it. `description` is the first line of its docstring, "" when unknown."""

    name: str
    target: str
    package: str
    description: str


@final
@dataclass(frozen=True)
class Agent:
    """An agent that was loaded: a function that returns a Program, and the module it stands in."""

    name: str
    function: Callable[..., object]
    module: ModuleType

    @property
    def settings(self) -> Settings:
        """What it can be told. Raises ProgramError when its signature cannot be read."""
        return Settings.of(self.function, self.name)

    @property
    def description(self) -> str:
        """First line of its docstring, or ""."""
        return _first_line(self.function.__doc__)

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules its nodes need: a launcher of processes may import them once for all. From `PRELOAD`."""
        return checked_names(f"PRELOAD of agent {self.name!r}", getattr(self.module, "PRELOAD", ()))

    def build(self, texts: Mapping[str, str]) -> Program:
        """The program with these settings.

        Raises:
            ProgramError: wrong settings, or the agent raised, or it returned something else.
        """
        program = self._call(lambda: self.settings.call(texts))
        if not isinstance(program, Program):
            raise ProgramError(
                f"agent {self.name!r} returned {_short(program)}, not a topology Program: an agent is a function that "
                "builds a Program and returns it"
            )
        return program

    def local_resources(self, texts: Mapping[str, str]) -> Mapping[str, Any] | None:
        """Launch options by label, where the agent's module has a function `local_resources`; else None.

        Raises:
            ProgramError: it raised, has parameters that do not fit, or returned something else.
        """
        return self._by_label("local_resources", "PythonProcess(...)", texts)

    def restarts(self, texts: Mapping[str, str]) -> Mapping[str, int] | None:
        """How often failed nodes are started again, by label, where the agent's module has a function `restarts`.

        Raises:
            ProgramError: as `local_resources`.
        """
        return self._by_label("restarts", "whole numbers", texts)

    def _by_label(self, function: str, what: str, texts: Mapping[str, str]) -> Mapping[str, Any] | None:
        make = getattr(self.module, function, None)
        if make is None:
            return None
        made = self._call(lambda: self.settings.call_beside(make, texts))
        if made is not None and not isinstance(made, Mapping):
            raise ProgramError(
                f"{function} of agent {self.name!r} returned {_short(made)}, not a dict from the labels of groups to "
                f"{what}"
            )
        return made

    def _call(self, call: Callable[[], object]) -> object:
        try:
            return call()
        except TopologyError:
            raise
        except SystemExit as error:
            raise ProgramError(
                f"agent {self.name!r} called sys.exit({error.code!r}){_place(error)}: it is to build a Program and "
                "return it, or to raise an error that says what is wrong"
            ) from error
        except ValueError as error:  # the agent refuses a setting, and says why
            raise ProgramError(f"agent {self.name!r}: {error}") from error
        except Exception as error:
            what = f"{type(error).__name__}: {error}{_place(error)}"
            raise ProgramError(f"agent {self.name!r} raised {what}. TOPOLOGY_DEBUG=1 shows where") from error


def list_agents() -> list[Listed]:
    """Every agent that installed packages offer, by name. Imports none of them."""
    return [
        Listed(
            name=point.name,
            target=point.value,
            package=point.dist.name if point.dist else "",
            description=_describe(point.value),
        )
        for point in _points()
    ]


def _points() -> list[EntryPoint]:
    # A package that is installed twice (wheel and editable) announces the same agent twice.
    unique = {(point.name, point.value): point for point in entry_points(group=GROUP)}
    return [unique[key] for key in sorted(unique)]


def find_agent(name: str) -> Agent:
    """Loads the agent.

    Args:
        name: an entry point, `module:function`, or `path/to/file.py:function`.

    Raises:
        ProgramError: there is no such agent, or its module cannot be imported.
    """
    target, colon, attribute = name.rpartition(":")
    if not colon:
        target, _, attribute = _target_of(name).partition(":")
    is_file = target.endswith(".py")
    module = _run_file(Path(target), name) if is_file else _import(target, name)
    return Agent(name, _function(module, attribute, name), module)


def _target_of(name: str) -> str:
    points = _points()
    values = [point.value for point in points if point.name == name]
    if len(values) == 1:
        return values[0]
    if values:
        raise ProgramError(f"{len(values)} packages offer an agent {name!r}: say which, {' or '.join(values)}")
    if name.endswith(".py"):
        raise ProgramError(f"{name!r} is a file: say which function builds the program, {name}:FUNCTION")
    known = [point.name for point in points]
    listing = f"The agents are: {', '.join(known)}" if known else "No installed package offers an agent"
    raise ProgramError(f"unknown agent {name!r}{nearest(name, known)}. {listing}; or give module:function")


def _import(target: str, name: str) -> ModuleType:
    _add_to_path(Path.cwd())  # as `python -m` does: the console script's own directory is of no use
    return _load(lambda: importlib.import_module(target), f"the module {target!r}", name)


def _run_file(path: Path, name: str) -> ModuleType:
    if not path.is_file():
        raise ProgramError(f"agent {name!r}: there is no file {str(path)!r} (looked in {Path.cwd()})")
    # A file may be called like a module that is in use, say launch.py.
    module_name = f"{path.stem}_file" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ProgramError(f"agent {name!r}: {str(path)!r} is not a Python file")
    _add_to_path(path.resolve().parent)  # as `python file.py` does
    module = importlib.util.module_from_spec(spec)
    loader = spec.loader

    def load() -> ModuleType:
        sys.modules[module_name] = module  # dataclasses and pickle look their module up
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
        return module

    loaded = _load(load, f"the file {str(path)!r}", name)
    cloudpickle.register_pickle_by_value(loaded)  # nodes' processes cannot import it by name
    return loaded


def _add_to_path(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _load(load: Callable[[], ModuleType], what: str, name: str) -> ModuleType:
    try:
        with importing(f"the command imported {what}"):
            return load()
    except (Exception, SystemExit) as error:
        place = _place(error)
        raise ProgramError(
            f"agent {name!r}: {what} cannot be imported: {type(error).__name__}: {error}{place}"
        ) from error


def _place(error: BaseException) -> str:
    """Where in the user's code the import broke, as ` (file, line n)`."""
    if isinstance(error, SyntaxError):
        return ""  # its text says where
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _function(module: ModuleType, attribute: str, name: str) -> Callable[..., object]:
    value: Any = module
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if value is None:
        own = [key for key, item in vars(module).items() if inspect.isfunction(item) and not key.startswith("_")]
        raise ProgramError(f"agent {name!r}: {module.__name__} has no function {attribute!r}{nearest(attribute, own)}")
    if not callable(value):
        raise ProgramError(f"agent {name!r}: {attribute} is {_short(value)}, not a function that returns a Program")
    function: Callable[..., object] = value
    return function


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _describe(target: str) -> str:
    """First line of the docstring of `package.module:function`, from its source text; "" when it is not there."""
    module, _, attribute = target.partition(":")
    source = _source(module)
    if source is None:
        return ""
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ""  # asking for the agent will say what is wrong with it
    return next((_first_line(ast.get_docstring(node)) for node in _definitions(tree) if node.name == attribute), "")


def _definitions(tree: ast.Module) -> Iterable[ast.FunctionDef | ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))


def _source(module: str) -> Path | None:
    # Finding the spec of a submodule would import its parents; that of the top-level package imports nothing.
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin else None
    for root in spec.submodule_search_locations or ():
        base = Path(root, *rest)
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _first_line(docstring: str | None) -> str:
    lines = (docstring or "").strip().splitlines()
    return lines[0].strip() if lines else ""
