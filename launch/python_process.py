"""How the Python of one group's processes is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from topology.errors import LaunchError

__all__ = ["PythonProcess"]


@final
@dataclass(frozen=True)
class PythonProcess:
    """Start options for the processes of one group: an entry of `local_resources`.

    Attributes:
        args: put into `sys.argv` of the node as `--name=value`; True and False as `--name` and `--noname`.
        interpreter_args: options of the interpreter: {"X": "dev"} is `-X dev`, {"OO": ""} is `-OO`.
        env: environment variables, there before the process imports anything. A number becomes its text; a value of
            None removes the variable.

    Example:
        >>> PythonProcess(env={"CUDA_VISIBLE_DEVICES": ""}).env
        {'CUDA_VISIBLE_DEVICES': ''}
    """

    args: Mapping[str, Any] = field(default_factory=dict)
    interpreter_args: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for field_name in ("args", "interpreter_args", "env"):
            value = getattr(self, field_name)
            if not isinstance(value, Mapping):
                raise LaunchError(f"PythonProcess({field_name}=...) is a dict, got {value!r}; leave it out for none")
        env = {name: str(value) if isinstance(value, int | float) else value for name, value in self.env.items()}
        object.__setattr__(self, "env", env)
        for name, value in env.items():
            if not isinstance(name, str) or not (value is None or isinstance(value, str)):
                raise LaunchError(f"PythonProcess(env=...) maps names to strings (or None), got {name!r}: {value!r}")
            if not name or "=" in name or "\0" in name + (value or ""):
                raise LaunchError(f"PythonProcess(env=...): the system knows no variable {name!r} = {value!r}")

    @staticmethod
    def of(value: object) -> PythonProcess:
        """`value` itself; or made of a mapping, or of another library's object, with the same fields.

        None, and whatever is empty, asks for nothing: Launchpad's programs write `[]` for some of their groups.

        Raises:
            LaunchError: it is none of these.
        """
        if isinstance(value, PythonProcess):
            return value
        if not value:
            return PythonProcess()
        names = ("args", "interpreter_args", "env")
        if isinstance(value, Mapping) and set(value) <= set(names):
            return PythonProcess(**value)
        if all(hasattr(value, name) for name in names):
            return PythonProcess(**{name: getattr(value, name) for name in names})
        raise LaunchError(
            "An entry of local_resources is a PythonProcess(args, interpreter_args, env), or a dict of these, "
            f"got {value!r}"
        )

    def arguments(self) -> list[str]:
        """`args` as they appear in `sys.argv`."""
        return [_argument(name, value) for name, value in self.args.items()]

    def interpreter_options(self) -> list[str]:
        """`interpreter_args` as they appear on the command line."""
        options: list[str] = []
        for name, value in self.interpreter_args.items():
            options += [f"-{name}", *([str(value)] if value not in ("", None, True) else [])]
        return options

    def configuration(self) -> tuple[tuple[str, ...], tuple[tuple[str, str | None], ...]]:
        """What two nodes must have in common to be forked from one interpreter."""
        return tuple(self.interpreter_options()), tuple(sorted(self.env.items()))


def _argument(name: str, value: Any) -> str:
    """One argument; a truth as absl's flags and argparse's switches take it."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={value}"
