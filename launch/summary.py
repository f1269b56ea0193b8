"""What is said of a run when it has ended, or when somebody asks: numbers, learning curve, where everything is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.curve import Curve, draw_text, find_curves, short_number, write_png
from launch.live_view import duration, headline, node_text
from launch.run_directory import file_name
from launch.watch import RunWatch, clean, restart_text

__all__ = ["as_json", "print_summary", "save_curve"]

CURVE_NAME = "curve.png"


def save_curve(watch: RunWatch, about: Sequence[str] = ()) -> Path | None:
    """Writes the learning curve into the run directory; None when the run measured no returns.

    Args:
        watch: the run.
        about: what its title says beside the program, e.g. the environment; the run's name when nothing is known.

    Raises:
        OSError: the file cannot be written.
    """
    curves = find_curves(watch.metrics)
    if not curves:
        return None
    path = watch.directory.path / CURVE_NAME
    write_png(
        curves, path, title=" · ".join([str(watch.state.get("program", "")), *(about or [watch.directory.run_id])])
    )
    return path


def print_summary(watch: RunWatch, console: Console, *, about: Sequence[str] = ()) -> None:
    """Prints how the run went. Draws the PNG of the curve first; one that cannot be written is said, not raised."""
    try:
        png = save_curve(watch, about)
        curve_place = str(png) if png else ""
    except OSError as error:
        curve_place = f"not written: {error.strerror or error}"
    console.print()
    console.print(_table([("run", watch.directory.run_id), ("state", _ending(watch)), *_numbers(watch)]))
    curves = find_curves(watch.metrics)
    if curves and curves[0].is_line:
        width = max(20, min(72, console.width - 14))
        console.print()
        console.print(Text(draw_text(curves[0].drawn(), width=width), no_wrap=True))
    metrics_place = str(watch.directory.metrics) if watch.metrics.groups else ""
    places = [("curve", curve_place), ("logs", str(watch.directory.logs)), ("metrics", metrics_place)]
    console.print()
    for name, place in places:
        if place:  # whole, however narrow the terminal: people copy it
            console.print(f"[dim]{name:<18}[/dim]", end="")
            console.print(place, markup=False, soft_wrap=True)


def _table(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=16)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _ending(watch: RunWatch) -> str:
    verb = "after" if watch.ended else "for"
    return f"{watch.state['state']} {verb} {duration(watch.elapsed_s)}"


def _numbers(watch: RunWatch) -> list[tuple[str, str]]:
    rows = []
    for key in ("actor_steps", "learner_steps", "actor_episodes"):
        series = watch.metrics.counter(key)
        if series is not None:
            made = series.growth(watch.started)
            rate = f"  ({short_number(made / watch.elapsed_s)}/s)" if watch.elapsed_s > 0 else ""
            rows.append((key.replace("_", " "), f"{series.latest:,.0f}{rate}"))
    rows += [(curve.name, _extremes(curve)) for curve in find_curves(watch.metrics)]
    if states := node_text(watch):
        rows.append(("nodes", states))
    rows += [("started again", f"{name} {restart_text(count)}: {clean(why)}") for name, count, why in watch.restarts]
    if watch.problems:
        rows.append(("warnings", f"{watch.problems} in the logs"))
    return rows


def _extremes(curve: Curve) -> str:
    if not curve.measured:
        return f"{short_number(curve.recent)}  ({curve.remark})"
    best = max(range(len(curve.y)), key=curve.y.__getitem__)
    where = f"{short_number(curve.x[best])} {curve.x_name}"
    return f"{short_number(curve.y[-1])}  (best {short_number(curve.y[best])} at {where})"


def as_json(watch: RunWatch) -> dict[str, Any]:
    """The state of a run as plain data, for `topology status --json`."""
    metrics = watch.metrics
    latest = {
        label: {key: _number(metrics.latest(key, file_name(label))) for key in metrics.keys(file_name(label))}
        for label in watch.labels
    }
    return {
        **watch.state,
        "path": str(watch.directory.path),
        "elapsed_s": round(watch.elapsed_s, 3),
        "left_s": _number(watch.left_s),
        "progress": _number(watch.progress),
        "headline": {figure.name: figure.value for figure in headline(watch)},
        "metrics": latest,
        "warnings": [{"node": node, "line": line} for node, line in watch.warnings],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
