"""A graph as a picture: one card for each group, callers left of what they call. Needs no other program."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from topology.graph_layout import Layout, lay_out
from topology.graph_values import Plain, short_text
from topology.graph_view import join_arguments

if TYPE_CHECKING:
    from topology.graph import ProgramGraph
    from topology.graph_nodes import GraphNode

__all__ = ["to_svg"]

_MARGIN, _HEADER = 28.0, 44.0
_PADDING, _TITLE, _LINE, _ROW = 12.0, 22.0, 16.0, 22.0
_MIN_WIDTH, _MAX_TEXT = 132.0, 44
_TITLE_CHARACTER, _CHARACTER = 8.2, 6.7  # widths in pixels at the font sizes below, a little generous
_ROW_GAP, _LOOP, _LABEL_CHARACTER = 26.0, 34.0, 6.2
# Fill and stroke by kind of node, in the order in which the program first has them.
_COLOURS = (("#e8f1fd", "#3b78c3"), ("#e9f6ec", "#3a8f55"), ("#fdf1e0", "#c4812a"), ("#f3ebfb", "#8157b5"),
            ("#fdeaec", "#bf4a5b"), ("#e5f5f6", "#2f8c96"), ("#f1f1f1", "#6d6d6d"))  # fmt: skip
_STYLE = """
text { font-family: -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 12px; fill: #24292f }
.program { font-size: 17px; font-weight: 600 }
.title { font-size: 14px; font-weight: 600 }
.code, .row { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 11px }
.quiet, .code { fill: #57606a }
.quiet { font-size: 12px; font-weight: 400 }
.label, .halo { font-size: 11px; fill: #57606a; text-anchor: middle }
.halo { fill: #fff; stroke: #fff; stroke-width: 5px; stroke-linejoin: round }
.line { fill: none; stroke: #6e7781; stroke-width: 1.3 }
"""


@final
@dataclass
class _Card:
    """One group: what is written on it, and where it is."""

    title: str
    kind: str
    lines: list[str]
    rows: dict[str, str]  # text by name of the node; empty when the group is drawn as one
    colour: tuple[str, str]
    x: float = 0.0
    y: float = 0.0

    @property
    def head(self) -> float:
        return _PADDING + _TITLE + _LINE * (len(self.lines) + bool(self.kind))

    @property
    def height(self) -> float:
        return self.head + _ROW * len(self.rows) + (_PADDING if self.rows else 6.0)

    @property
    def width(self) -> float:
        texts = [len(text) * _CHARACTER for text in (self.kind, *self.lines, *self.rows.values())]
        return max(_MIN_WIDTH, len(self.title) * _TITLE_CHARACTER + 20, *(width + 20 for width in texts)) + _PADDING

    def port(self, node: str | None) -> float:
        """The y at which lines of that node, or of the whole group, begin and end."""
        if node is None:
            return self.y + (self.head if self.rows else self.height) / 2
        return self.y + self.head + _ROW * (list(self.rows).index(node) + 0.5) + 2


@final
@dataclass(frozen=True)
class _Line:
    """A line between two cards; an end is a row of the card, or None for the whole card."""

    caller: int
    target: int
    caller_row: str | None
    target_row: str | None
    label: str = dataclasses.field(compare=False)


def to_svg(graph: ProgramGraph, max_nodes_per_group: int) -> str:
    """See `ProgramGraph.to_svg`."""
    cards = _cards(graph, max_nodes_per_group)
    lines = _lines(graph, cards)
    longest = max((len(line.label) for line in lines), default=0)
    layout = lay_out(
        [(card.width, card.height) for card in cards],
        [(line.caller, line.target) for line in lines],
        column_gap=max(70.0, longest * _LABEL_CHARACTER + 40),
        row_gap=_ROW_GAP,
    )
    for card, (x, y) in zip(cards, layout.positions, strict=True):
        card.x, card.y = x + _MARGIN, y + _MARGIN + _HEADER
    rights = [_loop_end(cards[line.caller], line) for line in lines if line.caller == line.target]
    title = _MARGIN + len(graph.name) * 10 + 160
    width = _MARGIN + max(layout.width + _MARGIN, title, *rights)
    return "\n".join(_document(graph, cards, lines, layout, width)) + "\n"


def _cards(graph: ProgramGraph, limit: int) -> list[_Card]:
    colours: dict[str, tuple[str, str]] = {}
    cards = []
    for group in graph.groups:
        nodes = graph.nodes(group)
        parts = [part for node in nodes for part in node.walk()]
        colour = colours.setdefault(nodes[0].kind, _COLOURS[len(colours) % len(_COLOURS)])
        title = group if len(nodes) == 1 else f"{group} × {len(nodes)}"
        if len(parts) == 1 or len(parts) > limit:
            cards.append(_Card(title, _kinds(nodes), _summary(nodes), {}, colour))
        else:
            lines, rows = _details(group, parts)
            cards.append(_Card(title, _kinds(parts), lines, rows, colour))
    return cards


def _kinds(nodes: Sequence[GraphNode]) -> str:
    return ", ".join(dict.fromkeys(node.kind for node in nodes))


def _summary(nodes: Sequence[GraphNode]) -> list[str]:
    """Lines for a group drawn as one: its constructors, and its settings with their ranges."""
    constructors = dict.fromkeys(node.constructor for node in nodes if node.constructor)
    settings = [_settings(node) for node in nodes]
    lines = [join_arguments(constructors)] if constructors else []
    lines += [_range(name, [each[name] for each in settings if name in each]) for name in _names(settings)]
    return [_cut(line) for line in lines]


def _details(group: str, nodes: Sequence[GraphNode]) -> tuple[list[str], dict[str, str]]:
    """Lines for what the nodes of a group have in common, and a row for each with what is its own."""
    settings = [_settings(node) for node in nodes]
    alike = len({node.constructor for node in nodes}) == 1
    common = [name for name in _names(settings) if alike and len({repr(each.get(name)) for each in settings}) == 1]
    lines = [nodes[0].constructor] if alike and nodes[0].constructor else []
    lines += [_range(name, [settings[0][name]]) for name in common]
    rows = {}
    for node, values in zip(nodes, settings, strict=True):
        own = [f"{name}={short_text(value, 16)}" for name, value in values.items() if name not in common]
        called = [] if alike else [node.constructor or node.kind]
        rows[node.name] = _cut("  ".join([node.name.removeprefix(f"{group}/"), *called, *own]))
    return [_cut(line) for line in lines], rows


def _settings(node: GraphNode) -> dict[str, Plain]:
    """The arguments that are a number, a flag or a short text: handles are lines, and objects have no room."""
    return {
        name: value
        for name, value in node.arguments.items()
        if isinstance(value, int | float) or (isinstance(value, str) and not value.startswith("<"))
    }


def _names(settings: Sequence[dict[str, Plain]]) -> list[str]:
    return list(dict.fromkeys(name for each in settings for name in each))


def _range(name: str, values: Sequence[Plain]) -> str:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    different = {repr(value): value for value in values}
    if len(different) == 1:
        return f"{name} {short_text(values[0], 24)}"
    if len(numbers) == len(values):
        return f"{name} {short_text(min(numbers))} … {short_text(max(numbers))}"
    return f"{name}: {len(different)} values"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def _lines(graph: ProgramGraph, cards: Sequence[_Card]) -> list[_Line]:
    """One line where all nodes of a group call the same; else one from each node's row."""
    card_of: dict[str, int] = {}
    for position, group in enumerate(graph.groups):
        card_of |= {part.name: position for node in graph.nodes(group) for part in node.walk()}
    targets: dict[tuple[int, int], dict[str, dict[str, None]]] = {}
    labels: dict[tuple[int, int], dict[str, None]] = {}
    for edge in graph.edges:
        pair = card_of[edge.caller], card_of[edge.target]
        targets.setdefault(pair, {}).setdefault(edge.caller, {})[edge.target] = None
        labels.setdefault(pair, {})[_without_index(edge.argument)] = None
    lines: dict[_Line, None] = {}
    for (caller, target), by_caller in targets.items():
        label = join_arguments(labels[caller, target], 2)
        for from_row, to_row in _ends(by_caller, cards[caller].rows, cards[target].rows):
            lines[_Line(caller, target, from_row, to_row, label)] = None
    return list(lines)


def _without_index(argument: str) -> str:
    """`sources[2]` as `sources[]`: a line stands for all of them."""
    return re.sub(r"\[\d+\]", "[]", argument)


def _ends(
    targets: dict[str, dict[str, None]], caller_rows: dict[str, str], target_rows: dict[str, str]
) -> Iterator[tuple[str | None, str | None]]:
    distinct = {tuple(sorted(names)) for names in targets.values()}
    together = len(distinct) == 1 and len(targets) == len(caller_rows)
    for caller, names in targets.items():
        start = None if together or not caller_rows else caller
        if not target_rows or len(names) == len(target_rows):
            yield start, None
        else:
            yield from ((start, name) for name in names)


def _document(
    graph: ProgramGraph, cards: Sequence[_Card], lines: Sequence[_Line], layout: Layout, width: float
) -> Iterator[str]:
    height = layout.height + 2 * _MARGIN + _HEADER
    title = html.escape(graph.name)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">'
    )
    yield f"<title>program {title}</title>\n<style>{_STYLE}</style>"
    yield (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0,0.5 L8,4 L0,7.5 z" fill="#6e7781"/></marker></defs>'
    )
    yield f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#ffffff"/>'
    counts = f'<tspan class="quiet" dx="12">{len(graph)} nodes, {len(graph.edges)} edges</tspan>'
    yield f'<text class="program" x="{_MARGIN:g}" y="36">{title}{counts}</text>'
    drawn = [(line, *_path(line, cards, layout)) for line in lines]
    yield from (f'<path class="line" marker-end="url(#arrow)" d="{path}"/>' for _, path, _ in drawn)
    for card in cards:
        yield from _draw_card(card)
    named: set[tuple[int, int]] = set()
    for line, _, (x, y) in drawn:
        if (line.caller, line.target) not in named:
            named.add((line.caller, line.target))
            for style in ("halo", "label"):  # the halo keeps the text readable on a line
                yield f'<text class="{style}" x="{x:.1f}" y="{y + 4:.1f}">{html.escape(line.label)}</text>'
    yield "</svg>"


def _draw_card(card: _Card) -> Iterator[str]:
    fill, stroke = card.colour
    yield (
        f'<rect x="{card.x:.1f}" y="{card.y:.1f}" width="{card.width:.1f}" height="{card.height:.1f}" rx="7" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="1.4"/>'
    )
    x, y = card.x + _PADDING, card.y + _PADDING + 9
    yield f'<text class="title" x="{x:.1f}" y="{y:.1f}">{html.escape(card.title)}</text>'
    y += _TITLE - 4
    yield f'<text x="{x:.1f}" y="{y:.1f}" style="fill:{stroke}">{html.escape(card.kind)}</text>'
    for line in card.lines:
        y += _LINE
        yield f'<text class="code" x="{x:.1f}" y="{y:.1f}">{html.escape(line)}</text>'
    for name, row in card.rows.items():
        middle = card.port(name)
        yield (
            f'<rect x="{card.x + 6:.1f}" y="{middle - 9:.1f}" width="{card.width - 12:.1f}" height="18" rx="4" '
            f'fill="#ffffff" stroke="{stroke}" stroke-opacity="0.35"/>'
        )
        yield f'<text class="row" x="{x:.1f}" y="{middle + 4:.1f}">{html.escape(row)}</text>'


def _path(line: _Line, cards: Sequence[_Card], layout: Layout) -> tuple[str, tuple[float, float]]:
    """The path of a line, and the middle of its label."""
    caller, target = cards[line.caller], cards[line.target]
    y1, y2 = caller.port(line.caller_row), target.port(line.target_row)
    if line.caller == line.target:
        return _loop(line, caller.x + caller.width, y1, y2)
    backward = (line.caller, line.target) in layout.reversed_lines
    x1, x2 = (caller.x, target.x + target.width) if backward else (caller.x + caller.width, target.x)
    points = [(x1, y1)]
    for left, right, y in layout.routes[line.caller, line.target]:
        ends = (right, left) if backward else (left, right)
        points += [(end + _MARGIN, y + _MARGIN + _HEADER) for end in ends]
    points.append((x2, y2))
    # On the first straight piece, where other lines are far; else half way.
    (xa, ya), (xb, yb) = points[1:3] if len(points) > 2 else points
    return _smooth(points), ((xa + xb) / 2, (ya + yb) / 2)


def _loop(line: _Line, x: float, y1: float, y2: float) -> tuple[str, tuple[float, float]]:
    """A line from a card to itself, right of it."""
    y1, y2 = (y1 - 8, y2 + 8) if y1 == y2 else (y1, y2)
    path = f"M{x:.1f},{y1:.1f} C{x + _LOOP:.1f},{y1:.1f} {x + _LOOP:.1f},{y2:.1f} {x:.1f},{y2:.1f}"
    return path, (x + 0.75 * _LOOP + 8 + len(line.label) * _LABEL_CHARACTER / 2, (y1 + y2) / 2)


def _loop_end(card: _Card, line: _Line) -> float:
    return card.x + card.width + _LOOP + len(line.label) * _LABEL_CHARACTER


def _smooth(points: Sequence[tuple[float, float]]) -> str:
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for i in range(1, len(points)):
        (x1, y1), (x2, y2) = points[i - 1], points[i]
        middle = (x1 + x2) / 2
        path += f" C{middle:.1f},{y1:.1f} {middle:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
    return path
