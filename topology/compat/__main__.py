"""`python -m topology.compat SCRIPT [args]`, `python -m topology.compat -m MODULE [args]`.

Becomes `python SCRIPT [args]` with the modules provided: the script finds `__main__`, `sys.argv`, `sys.path` and the
process as it would without us.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from topology.compat.finder import install

__all__ = ["main"]

_USAGE = """\
usage: python -m topology.compat [--shadow] SCRIPT [arguments of the script]
       python -m topology.compat [--shadow] -m MODULE [arguments of the module]

Runs a program written for launchpad, courier and reverb on rl-topology. --shadow: also where the real ones are
installed."""


def main(arguments: Sequence[str]) -> int:
    """Replaces this process by the program; returns only when the command line is wrong."""
    arguments = list(arguments)
    shadow = arguments[:1] == ["--shadow"]
    if shadow:
        del arguments[0]
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(_USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    fault = _fault(arguments)
    if fault:
        print(f"topology.compat: {fault}\n{_USAGE}", file=sys.stderr)  # noqa: T201
        return 2
    install(shadow=shadow)
    return _become(arguments)


def _become(arguments: Sequence[str]) -> NoReturn:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *flags, *arguments])


def _fault(arguments: Sequence[str]) -> str:
    if sys.flags.ignore_environment:
        return "the interpreter ignores its environment (-E or -I), through which the modules reach the program"
    if arguments[0] == "-m":
        return "" if len(arguments) > 1 else "-m needs the name of a module"
    if arguments[0].startswith("-"):
        return f"unknown option {arguments[0]}"
    return "" if os.path.exists(arguments[0]) else f"there is no file {arguments[0]!r}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
