"""Functions that make environments, by `package.module:function` or `path/to/file.py:function`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from topology.errors import ProgramError

__all__ = ["call_factory", "find_factory"]

_files: dict[Path, ModuleType] = {}


def find_factory(name: str) -> Callable[..., object]:
    """The function of that path. A file is run once in each process; its directory is where it imports from.

    Raises:
        ProgramError: there is no such file, module or function, or it cannot be imported.
    """
    target, _, attribute = name.rpartition(":")
    module = _run_file(Path(target), name) if target.endswith(".py") else _import(target, name)
    value: Any = module
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if callable(value):
        factory: Callable[..., object] = value
        return factory
    if value is not None:
        raise ProgramError(f"environment {name!r}: {attribute} is {value!r}, not a function that makes an environment")
    own = [key for key, item in vars(module).items() if not key.startswith("_") and callable(item)]
    near = difflib.get_close_matches(attribute, own, n=3, cutoff=0.5)
    hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
    raise ProgramError(f"environment {name!r}: {target} has no function {attribute!r}{hint}")


def call_factory(name: str, factory: Callable[..., object], *, seed: int | None) -> object:
    """What the factory of that path returns; one without a parameter `seed` is called without.

    Raises:
        ProgramError: it raised; says where.
    """
    try:
        return factory(seed=seed) if takes_seed(factory) else factory()
    except Exception as error:
        raise ProgramError(
            f"environment {name!r} could not be made: {type(error).__name__}: {error}{_place(error)}"
        ) from error


def takes_seed(factory: Callable[..., object]) -> bool:
    """Whether it can be called with `seed=`."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return any(p.name == "seed" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _import(target: str, name: str) -> ModuleType:
    _add_to_path(Path.cwd())  # as `python -m` does
    return _load(lambda: importlib.import_module(target), f"the module {target!r}", name)


def _run_file(path: Path, name: str) -> ModuleType:
    if not path.is_file():
        raise ProgramError(f"environment {name!r}: there is no file {str(path)!r} (looked in {Path.cwd()})")
    resolved = path.resolve()
    if resolved in _files:
        return _files[resolved]
    # A file may be called like a module that is in use, and two files alike.
    module_name = f"{path.stem}_file{len(_files)}" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(module_name, resolved)
    if spec is None or spec.loader is None:
        raise ProgramError(f"environment {name!r}: {str(path)!r} is not a Python file")
    _add_to_path(resolved.parent)  # as `python file.py` does
    module, loader = importlib.util.module_from_spec(spec), spec.loader

    def load() -> ModuleType:
        sys.modules[module_name] = module  # dataclasses and pickle look their module up
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
        return module

    _files[resolved] = _load(load, f"the file {str(path)!r}", name)
    return module


def _add_to_path(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _load(load: Callable[[], ModuleType], what: str, name: str) -> ModuleType:
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise ProgramError(
            f"environment {name!r}: {what} cannot be imported: {type(error).__name__}: {error}{_place(error)}"
        ) from error


def _place(error: BaseException) -> str:
    """Where in the user's code it broke, as ` (file, line n)`."""
    if isinstance(error, SyntaxError):
        return ""  # its text says where
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
