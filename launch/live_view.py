"""One view of a run while it runs: a picture that is redrawn on a terminal, a line every few seconds elsewhere.

The view knows no agent: it shows the numbers that many programs have (steps, returns, replay size) at the top, and
under them the latest of everything else by group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launch.curve import draw_text, find_curves, recent_text, short_number
from launch.run_directory import file_name
from launch.watch import RunWatch
from topology.clock import SYSTEM_CLOCK, Clock

__all__ = ["Figure", "PlainView", "RichView", "View", "duration", "follow", "headline", "make_view", "progress_line"]

_COLORS = {
    "running": "green", "starting": "yellow", "stopping": "yellow", "finished": "green", "stopped": "cyan",
    "failed": "bold red", "lost": "bold red",
}  # fmt: skip
_AT_THE_TOP = frozenset(
    {"progress", "actor_steps", "learner_steps", "evaluator_return", "episode_return", "replay_size"}
)
_INTERNAL = ("_age_s", "_version", "_final", "_episodes", "_evaluations")
_GAPS = (4, 3, 2)  # columns between the numbers at the top, the best first
_GROUP_GAP = 3
_BAD = ("failed", "lost", "killed")
_PLAIN_PERIOD_S = 5.0
_RICH_PERIOD_S = 0.5


@final
@dataclass(frozen=True)
class Figure:
    """A number at the top of the view: its name, the value as text, and a remark such as its rate."""

    name: str
    value: str
    remark: str = ""


class View(Protocol):
    """Shows a run.

    Attributes:
        period_s: seconds between two pictures.
        has_warnings: whether the last warnings from the logs are in the picture.
    """

    period_s: float
    has_warnings: bool

    def show(self, watch: RunWatch) -> None:
        """Shows the state of now."""

    def write(self, line: str) -> None:
        """Writes a line that stays."""

    def close(self) -> None:
        """Takes the view off the screen; lines stay. The second call does nothing."""


def duration(seconds: float) -> str:
    """Seconds as people say them: 0:41, 12:05, 1:02:03; a dash when unknown."""
    if not math.isfinite(seconds):
        return "–"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def headline(watch: RunWatch) -> list[Figure]:
    """The numbers that matter most, of those that this program has."""
    return [*_counters(watch), *_returns(watch), *_sizes(watch)]


def _counters(watch: RunWatch) -> Iterator[Figure]:
    metrics = watch.metrics
    own = [key for key in metrics.keys("counter") if key.endswith("_steps")]
    for key in dict.fromkeys([*own, "actor_steps", "learner_steps"]):
        series = metrics.counter(key)
        if series is not None:
            rate = series.rate(watch.started)
            remark = f"{short_number(_rounded(rate))}/s" if math.isfinite(rate) and not watch.ended else ""
            yield Figure(key.replace("_", " "), f"{series.latest:,.0f}", remark)


def _rounded(rate: float) -> float:
    return float(round(rate)) if abs(rate) >= 10 else round(rate, 1)


def _returns(watch: RunWatch) -> Iterator[Figure]:
    metrics = watch.metrics
    for series in metrics.find("evaluator_return")[:1]:
        yield Figure("evaluator return", short_number(series.latest), f"best {short_number(max(series.values))}")
    recent = metrics.recent("episode_return")
    if math.isfinite(recent):
        yield Figure("episode return", short_number(recent), recent_text(metrics.find("episode_return")))


def _sizes(watch: RunWatch) -> Iterator[Figure]:
    if watch.ended:  # the last that was reported is not that of the end
        return
    for series in watch.metrics.find("replay_size")[:1]:
        if series.latest_time < watch.started:
            continue
        yield Figure("replay size", f"{series.latest:,.0f}")


def progress_line(watch: RunWatch) -> str:
    """Everything of the view that fits one line, without control characters."""
    parts = [f"{duration(watch.elapsed_s):>7} {watch.state['state']}"]
    if math.isfinite(watch.progress):
        parts[0] += f" {watch.progress:.0%}"
    if math.isfinite(watch.left_s):
        parts.append(f"left {duration(watch.left_s)}")
    parts += [
        f"{figure.name} {figure.value}"
        + (f" ({figure.remark})" if figure.remark and not figure.remark.startswith("best") else "")
        for figure in headline(watch)
    ]
    if nodes := node_text(watch):
        parts.append(f"nodes {nodes}")
    if watch.problems:
        parts.append(f"warnings {watch.problems}")
    return " | ".join(parts)


def node_text(watch: RunWatch, label: str | None = None) -> str:
    """How the nodes (of a group) are, in a few words; "" when nothing is known of them."""
    states = watch.node_states(label)
    total = sum(states.values())
    bad = [f"{states[state]} {state}" for state in _BAD if states[state]]
    if not total:
        return ""
    if watch.ended and not states["running"]:
        well = total - sum(states[state] for state in _BAD)
        return (
            ", ".join([*bad, f"{well} ended"]) if bad else f"all {total} ended" if label is None else f"{total} ended"
        )
    if bad:
        return ", ".join([f"{states['running']}/{total} running", *bad])
    if states["running"] == total or (states["running"] and not watch.ended):
        return f"{states['running']}/{total}"
    return ", ".join(f"{count} {state}" for state, count in states.items())


def render(watch: RunWatch, *, width: int = 100, height: int = 40) -> RenderableType:
    """The picture of a run, for a terminal of this size."""
    parts: list[RenderableType] = [_title(watch, width), _progress(watch, width), Text(), _figures(watch, width)]
    parts += [Text(), _groups(watch, width)]
    used = 8 + len(watch.labels) + len(watch.warnings)
    curves = [curve for curve in find_curves(watch.metrics) if curve.is_line]
    if curves and height - used >= 12:
        rows = min(8, height - used - 6)
        text = draw_text(curves[0].drawn(), width=min(72, width - 12), height=rows)
        parts += [Text(), Text(text, style="cyan", no_wrap=True)]
    if watch.warnings:
        parts += [Text(), *(_warning(node, line) for node, line in watch.warnings)]
    return Group(*parts)


def _title(watch: RunWatch, width: int) -> RenderableType:
    state = str(watch.state["state"])
    name, run_id = str(watch.state.get("program", "")), watch.directory.run_id
    for detail in (f"{watch.state.get('launch_type') or ''}  {run_id}", run_id, ""):
        title = Text.assemble((name, "bold"), (f"  {detail}", "dim"))
        if title.cell_len + len(state) + 3 <= width:
            break
    row = Table.grid(expand=True)
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_column(justify="right", no_wrap=True)
    row.add_row(title, Text(f"● {state}", style=_COLORS.get(state, "")))
    return row


def _progress(watch: RunWatch, width: int) -> RenderableType:
    times = Text(f"{duration(watch.elapsed_s)} elapsed", style="bold")
    if not math.isfinite(watch.progress):
        return times
    times = Text(f"{watch.progress:4.0%}  {duration(watch.elapsed_s)} elapsed", style="bold")
    left = f"  ~{duration(watch.left_s)} left"
    if math.isfinite(watch.left_s) and times.cell_len + len(left) <= width:
        times.append(left, style="dim")
    bar = width - max(38, times.cell_len) - 2  # of the same width while the times get longer
    if bar < 10:
        return times
    row = Table.grid(padding=(0, 2))
    row.add_row(ProgressBar(total=1.0, completed=watch.progress, width=bar), times)
    return row


def _figures(watch: RunWatch, width: int) -> RenderableType:
    figures = headline(watch)
    if not figures:
        return Text("no metrics yet", style="dim")
    widths = [max(map(len, (figure.name, figure.value, figure.remark))) for figure in figures]
    # As many as fit, and as far apart as fits: a number that is cut is another number.
    count = max(1, sum(sum(widths[:i]) + _GAPS[-1] * (i - 1) <= width for i in range(1, len(figures) + 1)))
    gap = next((gap for gap in _GAPS if sum(widths[:count]) + gap * (count - 1) <= width), _GAPS[-1])
    table = Table.grid(padding=(0, gap, 0, 0), pad_edge=False)
    for _ in figures[:count]:
        table.add_column(no_wrap=True)
    table.add_row(*(Text(figure.name, style="dim") for figure in figures[:count]))
    table.add_row(*(Text(figure.value, style="bold") for figure in figures[:count]))
    table.add_row(*(Text(figure.remark, style="dim") for figure in figures[:count]))
    return table


def _groups(watch: RunWatch, width: int) -> RenderableType:
    states = {label: node_text(watch, label) for label in watch.labels}
    used = max(map(len, ["group", *watch.labels])) + max(map(len, ["nodes", *states.values()])) + 2 * _GROUP_GAP
    heading = next((text for text in ("latest, mean over the group", "latest") if len(text) <= width - used), "")
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GROUP_GAP, 0, 0), width=width)
    table.add_column("group", no_wrap=True)
    table.add_column("nodes", no_wrap=True)
    table.add_column(heading, overflow="ellipsis", no_wrap=True, ratio=1)
    for label, text in states.items():
        style = "red" if any(bad in text for bad in _BAD) else ""
        table.add_row(Text(label), Text(text, style=style), _latest(watch, file_name(label), width - used))
    return table


def _latest(watch: RunWatch, label: str, width: int) -> Text:
    """As many of the latest numbers as fit, those of the machinery last."""
    text = Text(no_wrap=True, overflow="ellipsis")
    keys = [key for key in watch.metrics.keys(label) if key not in _AT_THE_TOP]
    for key in sorted(keys, key=lambda key: key.endswith(_INTERNAL)):
        value = short_number(watch.metrics.latest(key, label))
        gap = "   " if text else ""
        if text.cell_len + len(f"{gap}{key} {value}") > width:
            continue
        text.append(f"{gap}{key} ", style="dim")
        text.append(value)
    return text


def _warning(node: str, line: str) -> Text:
    text = Text(f"{node} | ", style="yellow", no_wrap=True, overflow="ellipsis")
    text.append(line, style="default")
    return text


@final
class RichView:
    """Redraws one picture in place."""

    period_s = _RICH_PERIOD_S
    has_warnings = True

    def __init__(self, console: Console) -> None:
        self._console = console
        # Drawn by `show`, not by a timer: nothing to draw between two polls. What else this process prints goes above.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, watch: RunWatch) -> None:
        size = self._console.size
        picture = render(watch, width=size.width, height=size.height - 2)
        hint = "Ctrl-C stops the run; twice, at once"
        place = f"  ·  {watch.directory.path}"
        text = hint + place if len(hint + place) <= size.width else hint  # the summary says the place whole
        footer = Text(f"\n{text}", style="dim", no_wrap=True, overflow="ellipsis")
        self._live.update(Group(picture, footer), refresh=True)

    def write(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


@final
class PlainView:
    """Writes a line every few seconds, for pipes, files and CI."""

    period_s = _PLAIN_PERIOD_S
    has_warnings = False

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def show(self, watch: RunWatch) -> None:
        self._write(progress_line(watch))

    def write(self, line: str) -> None:
        self._write(line)

    def close(self) -> None:
        pass


def make_view(console: Console, *, live: bool | None = None) -> View:
    """The view that suits the console; `live` overrides."""
    if console.is_terminal if live is None else live:
        return RichView(console)
    return PlainView(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))


def follow(
    watch: RunWatch,
    view: View,
    wait: Callable[[float], bool],
    *,
    output: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Shows the run until it ends, and once more then.

    Args:
        watch: the run.
        view: where to show it.
        wait: blocks until the run has ended, at most so many seconds; returns whether it has.
        output: shows what the nodes of a program print that measures nothing; of another one, where the picture has no
            place for them, the warnings.
        clock: for the time between two pictures.
    """
    next_at = clock.monotonic()
    while not wait(max(0.0, next_at - clock.monotonic())):
        _show(watch, view, output=output)
        next_at = max(next_at + view.period_s, clock.monotonic())
    _show(watch, view, output=output)


def _show(watch: RunWatch, view: View, *, output: bool) -> None:
    watch.poll()
    if output:
        for node, line in watch.take_output():
            view.write(f"[{node}] {line}")
        for node, line in watch.take_warnings() if not view.has_warnings else ():
            view.write(f"[{node}] {line}")
    for line in watch.take_restarts():
        view.write(line)
    view.show(watch)
