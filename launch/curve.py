"""The learning curve of a run: as points, as text for the terminal, as a PNG."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, final

from launch.metrics import EPISODES, Metrics, Series

__all__ = ["Curve", "draw_text", "find_curves", "recent_text", "short_number", "write_png"]

_ENDINGS = ("return", "reward", "score")
_STEPS = "actor_steps"
_MOST_POINTS = 4096
_PLACES = 256  # along the picture that can be told apart


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
        running: of an exploring actor's returns, the mean over about the last 100 episodes, at each point.
        remark: what `running` is, in words; "" for a measured curve, which is drawn as it is.
        recent: the newest of `running`.
    """

    name: str
    measured: bool
    x_name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    running: tuple[float, ...] = ()
    remark: str = ""
    recent: float = math.nan

    @property
    def title(self) -> str:
        """Its name, and what was done to the values."""
        return f"{self.name} ({self.remark})" if self.remark else self.name

    @property
    def is_line(self) -> bool:
        """Whether there is more to draw than one place."""
        return bool(self.x) and self.x[-1] > self.x[0]

    def drawn(self) -> Curve:
        """What is drawn: the running mean where there is one; of points at one place, their mean."""
        values = self.running or self.y
        width = (self.x[-1] - self.x[0]) / _PLACES if not self.measured and self.is_line else 0.0
        places: list[list[tuple[float, float]]] = []
        for point in zip(self.x, values, strict=True):
            if not places or point[0] - places[-1][0][0] > width:
                places.append([])
            places[-1].append(point)
        x, y = zip(
            *([math.fsum(part) / len(place) for part in zip(*place, strict=True)] for place in places), strict=True
        )
        return replace(self, x=x, y=y, running=())


def recent_text(series: Sequence[Series]) -> str:
    """What `Metrics.recent` of these is, in words."""
    counted = all(one.counts_episodes for one in series)
    return f"mean of {EPISODES} episodes" if counted else f"mean of last {EPISODES}"


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
    points: list[_Point] = []
    for number, node in enumerate(nodes):
        own = node.get(_STEPS) if measured or not shared else None
        xs = _xs(own, node[key], counter, start)
        whole = zip(xs, node[key].values, node[key].weights, strict=True)
        finite = [_Point(x, number, y, weight) for x, y, weight in whole if math.isfinite(x) and math.isfinite(y)]
        points += _thinned(finite, stride)
    points.sort(key=lambda point: (point.x, point.node))  # what was measured at one step stays in its order
    return Curve(
        name=f"{label} {key.replace('_', ' ')}" if label not in key else key.replace("_", " "),
        measured=measured,
        x_name="seconds" if counter is None else "actor steps",
        x=tuple(point.x for point in points),
        y=tuple(point.y for point in points),
        running=() if measured else tuple(_running(points, len(nodes))),
        remark="" if measured else recent_text([node[key] for node in nodes]),
        recent=metrics.recent(key, label),
    )


class _Point(NamedTuple):
    x: float
    node: int
    y: float
    episodes: float


def _thinned(points: Sequence[_Point], stride: int) -> Iterator[_Point]:
    """The means of every `stride` points of one node."""
    for begin in range(0, len(points), stride):
        part = points[begin : begin + stride]
        episodes = sum(point.episodes for point in part)
        yield part[-1]._replace(y=sum(point.y * point.episodes for point in part) / episodes, episodes=episodes)


def _running(points: Iterable[_Point], nodes: int) -> Iterator[float]:
    """`Metrics.recent` as it was at each point."""
    windows: list[deque[_Point]] = [deque() for _ in range(nodes)]
    held = [0.0] * nodes
    total = 0.0
    for point in points:
        window = windows[point.node]
        window.append(point)
        held[point.node] += point.episodes
        total += point.y * point.episodes
        while held[point.node] - window[0].episodes >= EPISODES / nodes:
            oldest = window.popleft()
            held[point.node] -= oldest.episodes
            total -= oldest.y * oldest.episodes
        yield total / sum(held)


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
        [f"{'':{margin}}  {curve.title}", *lines, f"{'':{margin}} └{'─' * width}", f"{'':{margin}}  {axis}"]
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
        line = curve.drawn()
        if curve.measured:
            axes.plot(line.x, line.y, label=curve.title, color="#1f6feb", linewidth=2.0, marker="o", markersize=3.5)
        else:
            axes.plot(line.x, line.y, label=curve.title, color="#9aa4b2", linewidth=1.2)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(curves[0].x_name)
    axes.set_ylabel(" / ".join(dict.fromkeys(curve.name.split()[-1] for curve in curves)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.grid(visible=True, color="#e5e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best", fontsize=9)
    figure.savefig(path, format="png")
