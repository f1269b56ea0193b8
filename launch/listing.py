"""What `topology list` and `topology status` print: agents, their settings, runs."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from launch.catalog import GROUP, find_agent, list_agents
from launch.live_view import duration, render
from launch.run_directory import ELSEWHERE, RunDirectory, default_base, list_runs
from launch.settings import REQUIRED, Setting
from launch.summary import as_json as run_as_json
from launch.text_values import describe_type
from launch.watch import RunWatch, read_state
from topology.clock import SYSTEM_CLOCK, Clock
from topology.errors import LaunchError

__all__ = ["print_agents", "print_runs", "print_settings", "print_status"]


_GAP = 3  # columns between two of a table
_WIDE = 110  # columns from which the words on a setting fit beside it


def _dump(console: Console, value: object) -> None:
    console.print(json.dumps(value, indent=2, default=str), markup=False, highlight=False, soft_wrap=True)


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
    for header in headers:
        table.add_column(header, overflow="fold")
    table.columns[0].no_wrap = True
    return table


def print_agents(console: Console, *, as_json: bool = False) -> None:
    """Every agent that is installed, with its one line."""
    agents = list_agents()
    if as_json:
        _dump(console, [asdict(agent) for agent in agents])
        return
    if not agents:
        console.print(f"No installed package offers an agent (entry point group {GROUP!r}).", markup=False)
        return
    table = _table("agent", "what it is", "package")
    for agent in agents:
        table.add_row(Text(agent.name, style="bold"), Text(agent.description), Text(agent.package, style="dim"))
    console.print(table)
    console.print("\ntopology list AGENT shows its settings", style="dim", markup=False)


def print_settings(name: str, console: Console, *, as_json: bool = False) -> None:
    """What can be set on one agent, with types and defaults."""
    agent = find_agent(name)
    fields = agent.settings.fields
    if as_json:
        settings = [{"name": f.name, "type": describe_type(f.annotation), "default": _text(f)} for f in fields]
        _dump(console, {"name": agent.name, "description": agent.description, "settings": settings})
        return
    console.print(Text.assemble((agent.name, "bold"), f"  {agent.description}"))
    wide = console.width >= _WIDE
    table = _table("setting", "type", "default", *([""] if wide else []))
    for field in fields:
        row = [Text(field.name), Text(describe_type(field.annotation), style="cyan"), Text(_text(field))]
        table.add_row(*row, *([Text(field.doc, style="dim")] if wide else []))
    console.print()
    console.print(table if fields else "It has no settings.")
    if not wide:
        for field in (field for field in fields if field.doc):
            console.print(Text(f"\n{field.name}", style="bold"))
            console.print(Padding(Text(field.doc, style="dim"), (0, 0, 0, 4)))


def _text(setting: Setting) -> str:
    default: Any = setting.default
    if default is REQUIRED:
        return "(required)"
    if isinstance(default, enum.Enum):
        return str(default.value)
    if isinstance(default, tuple | list) and all(isinstance(part, int | float | str) for part in default):
        return ",".join(map(str, default))
    return str(default)


def print_runs(console: Console, *, as_json: bool = False, clock: Clock = SYSTEM_CLOCK) -> None:
    """Every run in the base directory, the newest first."""
    states = [(directory, state) for directory in list_runs() if (state := _state(directory)) is not None]
    if as_json:
        _dump(console, [{**state, "path": str(directory.path)} for directory, state in states])
        return
    if not states:
        console.print(f"There are no runs in {default_base()}. {ELSEWHERE}", markup=False, soft_wrap=True)
        return
    rows = [("run", "state", "started", "took", "nodes"), *(_row(*run, clock) for run in states)]
    widths = [max(map(len, column)) + _GAP for column in zip(*rows, strict=True)]
    # Whole columns, as many as fit: what is cut, or folded, is read wrongly.
    count = max(2, sum(sum(widths[:i]) - _GAP <= console.width for i in range(1, len(widths) + 1)))
    table = _table(*rows[0][:count])
    for row in rows[1:]:
        style = "red" if row[1] in ("failed", "lost") else ""
        table.add_row(row[0], Text(row[1], style=style), *row[2:count])
    console.print(table)


def _row(directory: RunDirectory, state: dict[str, Any], clock: Clock) -> tuple[str, ...]:
    started = float(state.get("started") or 0.0)
    ended = state.get("ended") or (clock.time() if state["state"] in _GOING else None)
    return (
        directory.run_id,
        str(state["state"]),
        datetime.fromtimestamp(started).strftime("%Y-%m-%d %H:%M"),
        duration(float("nan") if ended is None else ended - started),
        str(len(state.get("nodes", ()))),
    )


_GOING = ("starting", "running", "stopping")


def _state(directory: RunDirectory) -> dict[str, Any] | None:
    try:
        return read_state(directory)
    except LaunchError:
        return None  # removed while we looked, or not ours: a list shows what there is


def print_status(directory: RunDirectory, console: Console, *, as_json: bool = False) -> None:
    """One run as it is now."""
    watch = RunWatch(directory)
    watch.poll()
    if as_json:
        _dump(console, run_as_json(watch))
        return
    console.print(render(watch, width=console.width))
    console.print()
    if watch.state.get("error"):
        console.print(f"error: {watch.state['error']}", markup=False, soft_wrap=True)
    console.print(f"directory: {directory.path}", markup=False, soft_wrap=True)
