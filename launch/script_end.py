"""The end of a script, before Python ends: from 3.12 on Python starts no thread any more once it has begun to end.

Python has no hook for that moment. `sys.monitoring` tells when the script's own code returns, and when one of the
functions that it is in calls `sys.exit`, as absl's `app.run` does; nothing else of the program is watched. Where a
script ends otherwise, by `raise SystemExit` say, `launch.at_exit` is all there is.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

__all__ = ["call_at_end"]

_TOOLS = (3, 4)  # the numbers that Python leaves to whoever comes first
_STARTERS = frozenset({"runpy"})  # run the module of `python -m`

_function: Callable[[], object] | None = None
_tool: int | None = None


def call_at_end(function: Callable[[], object]) -> None:
    """Calls `function` in the main thread when the script ends, at least once; it may block.

    Does nothing before Python 3.12, at a prompt and in notebooks, and where other tools have taken all there is.
    """
    global _function
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None or _is_interactive():
        return
    frames = _frames_of_main_thread()
    if not frames or not _reserve(monitoring):
        return
    _function = function
    events = monitoring.events
    for frame in frames:
        monitoring.set_local_events(_tool, frame.f_code, events.CALL)
    monitoring.set_local_events(_tool, frames[-1].f_code, events.CALL | events.PY_RETURN)


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.inspect) or hasattr(builtins, "__IPYTHON__")


def _frames_of_main_thread() -> list[FrameType]:
    """Where the script is: innermost first, its module last. None of ours; empty where there is no script."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - documented, in spite of its name
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    while frames and _module_of(frames[-1]) in _STARTERS:
        frames.pop()
    if not frames or frames[-1].f_code.co_name != "<module>":
        return []
    return [frame for frame in frames if _module_of(frame).partition(".")[0] not in {"launch", "topology"}]


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _reserve(monitoring: Any) -> bool:
    global _tool
    if _tool is not None:
        return True
    free = [tool for tool in _TOOLS if monitoring.get_tool(tool) is None]
    if not free:
        return False
    _tool = free[0]
    monitoring.use_tool_id(_tool, "rl-topology")
    monitoring.register_callback(_tool, monitoring.events.PY_RETURN, _returned)
    monitoring.register_callback(_tool, monitoring.events.CALL, _called)
    return True


def _returned(code: CodeType, offset: int, value: object) -> None:
    del code, offset, value
    _call()


def _called(code: CodeType, offset: int, function: object, argument: object) -> Any:
    del code, offset, argument
    if function is not sys.exit:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]  # of Python 3.12
        return monitoring.DISABLE  # this place costs nothing any more
    _call()
    return None


def _call() -> None:
    if _function is not None and threading.current_thread() is threading.main_thread():
        _function()
