"""Where boxes and lines go: a layered drawing from left to right, callers left of what they call.

Pure geometry, after Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures"
(1981): reverse the lines that close a cycle, put boxes in columns by longest path, give each line that spans several
columns a bend in every column it crosses, order the columns to save crossings, then place each box as near the mean of
its neighbours as the order allows. Lengths are in pixels. The same input gives the same drawing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

__all__ = ["Layout", "lay_out"]

_SWEEPS = 12
_BEND_HEIGHT = 12.0
_STRAIGHTNESS = 8.0  # a line looks bad when it wiggles: bends pull at each other harder than at boxes


@final
@dataclass(frozen=True)
class Layout:
    """A drawing.

    Attributes:
        positions: left and top of every box.
        routes: for every line between different boxes, by (from, to): left x, right x and y of each bend, in the order
            from the one to the other.
        reversed_lines: the lines that run from right to left because they close a cycle.
        width: of the whole drawing.
        height: of the whole drawing.
    """

    positions: tuple[tuple[float, float], ...]
    routes: dict[tuple[int, int], tuple[tuple[float, float, float], ...]]
    reversed_lines: frozenset[tuple[int, int]]
    width: float
    height: float


@dataclass
class _Cell:
    """A box, or the bend of a line in a column."""

    box: int | None
    height: float
    y: float = 0.0


def lay_out(
    sizes: Sequence[tuple[float, float]], lines: Sequence[tuple[int, int]], *, column_gap: float, row_gap: float
) -> Layout:
    """A drawing of boxes of the given (width, height) and the lines (from, to) between them."""
    lines = list(dict.fromkeys(line for line in lines if line[0] != line[1]))
    backward = _closing_lines(len(sizes), lines)
    forward = [(line[1], line[0]) if line in backward else line for line in lines]
    ranks = _ranks(len(sizes), forward)
    columns, chains, neighbours = _columns(sizes, ranks, forward)
    _order(columns, neighbours)
    _place(columns, neighbours, row_gap)
    positions, bends, width, height = _measure(sizes, columns, neighbours[0], column_gap)
    routes: dict[tuple[int, int], tuple[tuple[float, float, float], ...]] = {}
    for line, chain in zip(lines, chains, strict=True):
        route = [bends[cell] for cell in chain[1:-1]]
        routes[line] = tuple(reversed(route)) if line in backward else tuple(route)
    return Layout(tuple(positions), routes, frozenset(backward), width, height)


def _closing_lines(count: int, lines: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """The lines that lead back to a box on the way of a depth-first walk; without them there is no cycle."""
    following: list[list[int]] = [[] for _ in range(count)]
    for start, end in lines:
        following[start].append(end)
    state = [0] * count  # 0: not seen, 1: on the way, 2: done
    closing: set[tuple[int, int]] = set()
    for root in range(count - 1, -1, -1):  # programs declare what is called first: start from the callers
        stack = [(root, iter(following[root]))] if state[root] == 0 else []
        state[root] = state[root] or 1
        while stack:
            box, rest = stack[-1]
            step = next(rest, None)
            if step is None:
                state[box] = 2
                stack.pop()
            elif state[step] == 1:
                closing.add((box, step))
            elif state[step] == 0:
                state[step] = 1
                stack.append((step, iter(following[step])))
    return closing


def _ranks(count: int, lines: Sequence[tuple[int, int]]) -> list[int]:
    """The column of each box, by the longest way to a box that calls nothing: those end up at the right."""
    ranks = [0] * count
    for _ in range(count):
        before = list(ranks)
        for start, end in lines:
            ranks[start] = max(ranks[start], ranks[end] + 1)
        if ranks == before:
            break
    last = max(ranks, default=0)
    return [last - rank for rank in ranks]


_Columns = list[list[int]]  # cells by column, top to bottom
_Neighbours = tuple[list[_Cell], list[list[int]], list[list[int]]]  # cells; for each, those left and right of it


def _columns(
    sizes: Sequence[tuple[float, float]], ranks: Sequence[int], lines: Sequence[tuple[int, int]]
) -> tuple[_Columns, list[list[int]], _Neighbours]:
    cells = [_Cell(box, height) for box, (_, height) in enumerate(sizes)]
    columns: _Columns = [[] for _ in range(max(ranks, default=-1) + 1)]
    for box, rank in enumerate(ranks):
        columns[rank].append(box)
    chains: list[list[int]] = []
    for start, end in lines:
        bends = range(ranks[start] + 1, ranks[end])
        chain = [start, *range(len(cells), len(cells) + len(bends)), end]
        for rank, cell in zip(bends, chain[1:-1], strict=True):
            cells.append(_Cell(None, _BEND_HEIGHT))
            columns[rank].append(cell)
        chains.append(chain)
    left: list[list[int]] = [[] for _ in cells]
    right: list[list[int]] = [[] for _ in cells]
    for chain in chains:
        for here, there in itertools.pairwise(chain):
            right[here].append(there)
            left[there].append(here)
    return columns, chains, (cells, left, right)


def _order(columns: _Columns, neighbours: _Neighbours) -> None:
    """Sorts the columns in place so that few lines cross: each cell towards the mean place of its neighbours."""
    _, left, right = neighbours
    best = [list(column) for column in columns]
    fewest = _crossings(columns, right)
    for sweep in range(_SWEEPS):
        to_right = sweep % 2 == 0
        for rank in range(len(columns)) if to_right else range(len(columns) - 1, -1, -1):
            fixed = rank - 1 if to_right else rank + 1
            if 0 <= fixed < len(columns):
                place = {cell: i for i, cell in enumerate(columns[fixed])}
                near = left if to_right else right
                here = {cell: i for i, cell in enumerate(columns[rank])}
                means = {cell: _mean([place[other] for other in near[cell]], here[cell]) for cell in here}
                columns[rank].sort(key=means.__getitem__)
        crossings = _crossings(columns, right)
        if crossings < fewest:
            fewest, best = crossings, [list(column) for column in columns]
    columns[:] = best


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _crossings(columns: _Columns, right: list[list[int]]) -> int:
    total = 0
    for column, following in itertools.pairwise(columns):
        place = {cell: i for i, cell in enumerate(following)}
        ends = [sorted(place[other] for other in right[cell]) for cell in column]
        flat = [end for cell_ends in ends for end in cell_ends]
        total += sum(earlier > later for i, later in enumerate(flat) for earlier in flat[:i])
    return total


def _place(columns: _Columns, neighbours: _Neighbours, row_gap: float) -> None:
    """Sets the y of every cell's middle: sweeps to and fro, each column as near its wishes as the order allows."""
    cells, left, right = neighbours
    for column in columns:
        top = -sum(cells[cell].height + row_gap for cell in column) / 2
        for cell in column:
            cells[cell].y = top + cells[cell].height / 2
            top += cells[cell].height + row_gap
    for sweep in range(2 * _SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            wishes, weights = [], []
            for cell in column:
                near = [*left[cell], *right[cell]]
                pulls = [_pull(cells[cell], cells[other]) for other in near]
                total = sum(pulls)
                wish = sum(pull * cells[other].y for pull, other in zip(pulls, near, strict=True))
                wishes.append(wish / total if near else cells[cell].y)
                weights.append(total or 1.0)
            for cell, y in zip(column, _spread([cells[c] for c in column], wishes, weights, row_gap), strict=True):
                cells[cell].y = y


def _pull(one: _Cell, other: _Cell) -> float:
    return _STRAIGHTNESS if one.box is None and other.box is None else 1.0


def _spread(cells: Sequence[_Cell], wishes: Sequence[float], weights: Sequence[float], row_gap: float) -> list[float]:
    """The y nearest to the wishes (weighted least squares) that keep order and gaps: pool adjacent violators."""
    offsets = [0.0]
    for above, below in itertools.pairwise(cells):
        offsets.append(offsets[-1] + (above.height + below.height) / 2 + row_gap)
    pools: list[tuple[float, float, int]] = []  # value, weight, number of cells
    for wish, offset, weight in zip(wishes, offsets, weights, strict=True):
        value, size = wish - offset, 1
        while pools and pools[-1][0] > value:
            other, other_weight, other_size = pools.pop()
            value = (value * weight + other * other_weight) / (weight + other_weight)
            weight, size = weight + other_weight, size + other_size  # noqa: PLW2901 - the pool grows
        pools.append((value, weight, size))
    values = [value for value, _, size in pools for _ in range(size)]
    return [value + offset for value, offset in zip(values, offsets, strict=True)]


def _measure(
    sizes: Sequence[tuple[float, float]], columns: _Columns, cells: Sequence[_Cell], column_gap: float
) -> tuple[list[tuple[float, float]], dict[int, tuple[float, float, float]], float, float]:
    """Left and top of each box; left, right and y of each bend, by its cell; width and height of it all."""
    tops = [cell.y - cell.height / 2 for cell in cells]
    top = min(tops, default=0.0)
    positions = [(0.0, 0.0)] * len(sizes)
    bends: dict[int, tuple[float, float, float]] = {}
    x = 0.0
    for column in columns:
        boxes = [cell for cell in column if cell < len(sizes)]
        width = max((sizes[box][0] for box in boxes), default=0.0)
        for cell in column:
            if cell < len(sizes):
                positions[cell] = (x + (width - sizes[cell][0]) / 2, tops[cell] - top)
            else:
                bends[cell] = (x, x + width, cells[cell].y - top)
        x += width + column_gap
    height = max((cell.y + cell.height / 2 for cell in cells), default=0.0) - top
    return positions, bends, max(x - column_gap, 0.0), height
