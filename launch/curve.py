"""The learning curve of a run: as points, as text for the terminal, as a PNG."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from launch.metrics import Metrics, Series

__all__ = ["RECENT", "Curve", "draw_text", "find_curves", "short_number", "write_png"]

RECENT = "mean of last 100"
"""`Metrics.mean` in words: the mean over nodes of the mean of the last values of each, at most 100."""

_ENDINGS = ("return", "reward", "score")
_STEPS = "actor_steps"
_MOST_POINTS = 4096


@final
@dataclass(frozen=True, kw_only=True)
class Curve:
    """A measure of learning over the run.

    Attributes:
        name: `label key`, e.g. `evaluator evaluator_return`.
        measured: comes from an evaluator; other curves are the noisy returns of exploring actors.
        x_name: what x counts: "actor steps", or "seconds" for a program that counts no steps.
        x: where each point lies, ascending.
        y: the values.
        nodes: how many nodes it comes from.
        recent: the `RECENT`.
    """

    name: str
    measured: bool
    x_name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    nodes: int = 1
    recent: float = math.nan

    @property
    def window(self) -> int:
        """Over how many points to draw the mean: an evaluator measured each with care; exploring actors take turns."""
        return 1 if self.measured else self.nodes * max(2, len(self.y) // self.nodes // 25)

    @property
    def is_line(self) -> bool:
        """Whether there is more to draw than one place."""
        return bool(self.x) and self.x[-1] > self.x[0]

    def smoothed(self, window: int | None = None) -> Curve:
        """A running mean over the last `window` points; None for the curve's own window."""
        window = window or self.window
        sums = [0.0, *itertools.accumulate(self.y)]
        starts = [max(0, end - window) for end in range(1, len(sums))]
        means = tuple((sums[end] - sums[start]) / (end - start) for end, start in enumerate(starts, 1))
        return replace(self, y=means)


def find_curves(metrics: Metrics) -> list[Curve]:
    """A curve for every group and every key that ends in `return`, `reward` or `score`; those of evaluators first."""
    found = [
        _make_curve(metrics, label, key)
        for label in metrics.groups
        for key in metrics.keys(label)
        if key.endswith(_ENDINGS)
    ]
    return sorted((curve for curve in found if curve.x), key=lambda curve: not curve.measured)


def _make_curve(metrics: Metrics, label: str, key: str) -> Curve:
    measured = "eval" in f"{label} {key}"
    shared = metrics.find(_STEPS, "counter")
    # An evaluator says which step of the program it measured; the steps that an actor reports are its own.
    counter = shared[0] if shared else metrics.counter(_STEPS)
    start = (metrics.span() or (0.0, 0.0))[0]
    nodes = [node for node in metrics.groups[label].values() if key in node]
    stride = 1 + sum(len(node[key].values) for node in nodes) // _MOST_POINTS
    points: list[tuple[float, float]] = []
    for node in nodes:
        own = node.get(_STEPS) if measured or not shared else None
        points += zip(_xs(own, node[key], counter, start)[::stride], node[key].values[::stride], strict=True)
    points = sorted(point for point in points if all(map(math.isfinite, point)))
    return Curve(
        name=f"{label} {key.replace('_', ' ')}" if label not in key else key.replace("_", " "),
        measured=measured,
        x_name="seconds" if counter is None else "actor steps",
        x=tuple(x for x, _ in points),
        y=tuple(y for _, y in points),
        nodes=len(nodes),
        recent=metrics.mean(key, label),
    )


def _xs(own: Series | None, series: Series, counter: Series | None, start: float) -> Sequence[float]:
    if own is not None and own.times == series.times:
        return own.values
    if counter is not None:
        return [_interpolate(time, counter) for time in series.times]
    return [time - start for time in series.times]


def _interpolate(time: float, series: Series) -> float:
    after = bisect.bisect_left(series.times, time)
    if after == 0:
        return series.values[0]
    if after == len(series.times):
        return series.values[-1]
    t0, t1 = series.times[after - 1], series.times[after]
    weight = (time - t0) / (t1 - t0) if t1 > t0 else 1.0
    return series.values[after - 1] * (1 - weight) + series.values[after] * weight


def short_number(value: float) -> str:
    """A number in a few characters: 0.95, 12.3, 1,234, 1.2M, 3e-05."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    size = abs(value)
    if size >= 1e12 or (value and size < 1e-3):
        return f"{value:.1e}".replace("e-0", "e-").replace("e+", "e")
    for unit, suffix in ((1e9, "G"), (1e6, "M")):
        if size >= unit:
            return f"{value / unit:.3g}{suffix}"
    if value == int(value) or size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.3g}"


# Bits of the 2 x 4 dots in a braille character, by row and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def draw_text(curve: Curve, *, width: int = 64, height: int = 10) -> str:
    """The curve in braille dots with its axes, `width` x `height` characters without the axes."""
    low, high = _limits(curve.y)
    rows = _columns(curve, 2 * width)
    canvas = [[0] * width for _ in range(height)]
    previous: int | None = None
    for column, value in rows:
        row = round((high - value) / (high - low) * (4 * height - 1))
        for dot in _stroke(previous, row):
            canvas[dot // 4][column // 2] |= _DOTS[dot % 4][column % 2]
        previous = row
    ticks = dict(zip((0, height // 2, height - 1), _ticks(low, high), strict=True))
    margin = max(map(len, ticks.values()))
    lines = [
        f"{ticks.get(i, ''):>{margin}} {'┤' if i in ticks else '│'}" + "".join(chr(0x2800 + dots) for dots in row)
        for i, row in enumerate(canvas)
    ]
    left, right = short_number(curve.x[0]), short_number(curve.x[-1])
    axis = f"{left}{curve.x_name:^{max(1, width - len(left) - len(right))}}{right}"
    return "\n".join(
        [f"{'':{margin}}  {curve.name}", *lines, f"{'':{margin}} └{'─' * width}", f"{'':{margin}}  {axis}"]
    )


def _ticks(low: float, high: float) -> tuple[str, str, str]:
    """Texts for the top, the middle and the bottom: as many digits as tell them apart."""
    values = (high, (low + high) / 2, low)
    decimals = max(0, 2 - math.floor(math.log10(high - low)))
    if decimals > 6 or max(map(abs, values)) >= 1e6:
        return tuple(map(short_number, values))  # type: ignore[return-value]  # three go in
    return tuple(f"{value:,.{min(decimals, 2)}f}" for value in values)  # type: ignore[return-value]


def _stroke(previous: int | None, row: int) -> range:
    """The dots of one column that join it to the column before."""
    if previous is None or previous == row:
        return range(row, row + 1)
    return range(previous + 1, row + 1) if row > previous else range(row, previous)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _columns(curve: Curve, count: int) -> list[tuple[int, float]]:
    """Means of the points by column of dots; gaps between points are filled by straight lines."""
    first, last = _limits(curve.x) if len(curve.x) > 1 else (curve.x[0], curve.x[0] + 1)
    bins: dict[int, list[float]] = {}
    for x, y in zip(curve.x, curve.y, strict=True):
        bins.setdefault(round((x - first) / (last - first) * (count - 1)), []).append(y)
    known = [(column, sum(values) / len(values)) for column, values in sorted(bins.items())]
    filled = known[:1]
    for (c0, y0), (c1, y1) in itertools.pairwise(known):
        filled += [(c, y0 + (y1 - y0) * (c - c0) / (c1 - c0)) for c in range(c0 + 1, c1 + 1)]
    return filled


def write_png(curves: Sequence[Curve], path: Path, *, title: str) -> None:
    """Draws the curves into one PNG. Needs at least one. Raises OSError when the file cannot be written."""
    # Figure without pyplot: no display, no global state, and half the import time.
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for curve in reversed(curves):  # the measured ones come first and are drawn on top
        if curve.measured:
            axes.plot(curve.x, curve.y, label=curve.name, color="#1f6feb", linewidth=2.0, marker="o", markersize=3.5)
        else:
            name = f"{curve.name} (mean of {curve.window})"
            axes.plot(curve.x, curve.smoothed().y, label=name, color="#9aa4b2", linewidth=1.2)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(curves[0].x_name)
    axes.set_ylabel(curves[0].name)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.grid(visible=True, color="#e5e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best", fontsize=9)
    figure.savefig(path, format="png")
