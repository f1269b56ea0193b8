"""Trees, Mermaid, Graphviz, networkx, and the picture with its layout."""

from __future__ import annotations

import builtins
import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

import topology as lp
from topology.graph_layout import lay_out

SVG = "{http://www.w3.org/2000/svg}"


class Builder:
    def learner(self, replay):
        pass

    def actor(self, source, epsilon):
        pass


@pytest.fixture
def build(service):
    def build(actors, cachers=2):
        program = lp.Program("agent")
        replay = program.add_node(service(list), "replay")
        learner = program.add_node(service(Builder().learner, replay), "learner")
        with program.group("cacher"):
            sources = [program.add_node(service(dict, source=learner)) for _ in range(cachers)]
        with program.group("actor"):
            for i in range(actors):
                program.add_node(service(Builder().actor, sources[i % cachers], epsilon=i / 8))
        return program.graph()

    return build


TREE = """\
program agent: 6 nodes in 4 groups, 5 edges
├── replay
│   └── replay/0  ServiceNode  list()
├── learner
│   └── learner/0  ServiceNode  Builder.learner(replay=<replay/0>)
├── cacher × 2
│   ├── cacher/0  ServiceNode  dict(source=<learner/0>)
│   └── cacher/1  ServiceNode  dict(source=<learner/0>)
└── actor × 2
    ├── actor/0  ServiceNode  Builder.actor(source=<cacher/0>, epsilon=0)
    └── actor/1  ServiceNode  Builder.actor(source=<cacher/1>, epsilon=0.125)"""


def test_a_tree(build):
    assert str(build(actors=2)) == TREE
    assert repr(build(actors=2)) == "<ProgramGraph 'agent': 6 nodes, 5 edges>"


def test_a_tree_of_a_large_group_shows_its_ends(build):
    lines = str(build(actors=1000)).splitlines()
    assert [line.split()[1] for line in lines[-8:]] == [*(f"actor/{i}" for i in range(6)), "...", "actor/999"]
    assert "... 993 more ..." in lines[-2]
    assert len(build(actors=1000).to_text(max_nodes_per_group=None).splitlines()) == 1009
    assert "more" not in str(build(actors=8))


def test_a_tree_shows_the_parts_of_a_colocation(service):
    program = lp.Program("p")
    program.add_node(lp.MultiThreadingColocation([service(list), lp.PyNode(print)]), "box")
    assert str(program.graph()).splitlines()[1:] == [
        "└── box",
        "    └── box/0  MultiThreadingColocation",
        "        ├── box/0/0  ServiceNode  list()",
        "        └── box/0/1  PyNode  print()",
    ]


def test_an_empty_graph_has_every_form():
    graph = lp.Program("nothing").graph()
    assert str(graph) == "program nothing: 0 nodes in 0 groups, 0 edges"
    assert graph.to_mermaid() == "flowchart LR\n"
    assert graph.to_dot().startswith('digraph "nothing" {')
    assert ET.fromstring(graph.to_svg()).tag == f"{SVG}svg"


def test_mermaid(build):
    text = build(actors=1, cachers=1).to_mermaid()
    assert text.splitlines() == [
        "flowchart LR",
        '  n0["replay/0<br/>ServiceNode<br/>list"]',
        '  n1["learner/0<br/>ServiceNode<br/>Builder.learner"]',
        '  n2["cacher/0<br/>ServiceNode<br/>dict"]',
        '  n3["actor/0<br/>ServiceNode<br/>Builder.actor"]',
        '  n1 -->|"replay"| n0',
        '  n2 -->|"source"| n1',
        '  n3 -->|"source"| n2',
    ]


def test_mermaid_of_groups(build):
    text = build(actors=64).to_mermaid()
    assert '  subgraph g2["cacher"]\n    n2["cacher/0' in text
    assert 'n4["actor × 64<br/>ServiceNode<br/>Builder.actor"]' in text
    assert text.count("-->") == 1 + 2 + 2
    assert build(actors=64).to_mermaid(max_nodes_per_group=None).count("-->") == 1 + 2 + 64


def test_names_that_are_syntax_elsewhere_are_quoted(service):
    program = lp.Program('a "b" <c> & #d\\')
    handle = program.add_node(service(list), 'x "y" <z> #w\\')
    program.add_node(lp.PyNode(lambda **_: None, **{'odd "key" <&>': handle}), "caller")
    graph = program.graph()
    assert 'n0["x #quot;y#quot; #lt;z#gt; #35;w\\/0<br/>' in graph.to_mermaid()
    assert '[label="x \\"y\\" <z> #w\\\\/0\\nServiceNode\\nlist"]' in graph.to_dot()
    texts = [element.text for element in ET.fromstring(graph.to_svg()).iter(f"{SVG}text")]
    assert 'x "y" <z> #w\\' in texts
    assert 'odd "key" <&>' in texts


def test_dot(build):
    text = build(actors=2).to_dot()
    assert 'subgraph cluster_3 {\n    label="actor";\n    n4 [label="actor/0\\nServiceNode\\nBuilder.actor"];' in text
    assert '  n5 -> n3 [label="source"];' in text
    assert text.count("{") == text.count("}") == 3


def test_a_line_between_boxes_names_a_few_arguments(service):
    program = lp.Program("p")
    handle = program.add_node(service(), "a")
    program.add_node(lp.PyNode(print, *[handle] * 5), "b")
    assert '-->|"args[0], args[1], args[2], 2 more"|' in program.graph().to_mermaid()


def test_networkx(build):
    graph = build(actors=4)
    networkx = pytest.importorskip("networkx")
    result = graph.to_networkx()
    assert set(result.nodes) == {node.name for node in graph.nodes()}
    assert result.nodes["actor/3"]["arguments"] == {"source": "<cacher/1>", "epsilon": 0.375}
    assert [(*edge, key) for *edge, key in result.edges(keys=True)] == [
        (edge.caller, edge.target, edge.argument) for edge in graph.edges
    ]
    assert networkx.has_path(result, "actor/3", "replay/0")
    assert not networkx.has_path(result, "replay/0", "actor/3")


def test_networkx_holds_the_parts_of_a_colocation(service):
    program = lp.Program("p")
    part = service()
    program.add_node(lp.MultiThreadingColocation([part]), "box")
    program.add_node(lp.PyNode(print, part.create_handle()), "a")
    result = program.graph().to_networkx()
    assert set(result.nodes) == {"box/0", "box/0/0", "a/0"}
    assert list(result.edges()) == [("a/0", "box/0/0")]


def test_without_networkx_the_error_names_the_extra(build, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "networkx":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'rl-topology\[networkx\]'"):
        build(1).to_networkx()


def texts_of(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_a_picture_shows_rows_where_nodes_differ(build):
    texts = texts_of(build(actors=4).to_svg())
    assert "agent8 nodes, 7 edges" in texts
    assert "actor × 4" in texts
    assert "3  epsilon=0.375" in texts
    assert texts.count("source") == 2 * 2  # with its halo: actor -> cacher, cacher -> learner


def test_a_picture_draws_single_lines_only_where_nodes_call_different_ones(build):
    drawn = ET.fromstring(build(actors=4).to_svg())
    lines = [path for path in drawn.iter(f"{SVG}path") if path.get("class") == "line"]
    assert len(lines) == 1 + 1 + 4  # learner -> replay, cacher -> learner, and the round robin


def test_a_picture_of_a_large_group_is_one_card_with_ranges(build):
    texts = texts_of(build(actors=64).to_svg())
    assert "actor × 64" in texts
    assert "epsilon 0 … 7.875" in texts
    assert not any(text.startswith("0  epsilon") for text in texts)


def test_a_picture_of_cycles_and_self_edges(service):
    first, second = service(list), service(list)
    first.configure([second.create_handle(), first.create_handle()])
    second.configure([first.create_handle()])
    svg = lp.make_program(first, second).graph().to_svg()
    assert svg.count('class="line"') == 3


def test_everything_is_inside_the_picture(build, service):
    node = service(list)
    node.configure([node.create_handle()])
    for graph in (build(4), build(64, 8), lp.make_program(node).graph(), lp.Program("x" * 90).graph()):
        root = ET.fromstring(graph.to_svg())
        width, height = float(root.get("width")), float(root.get("height"))
        for path in root.iter(f"{SVG}path"):
            if path.get("class") == "line":
                numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))]
                assert all(0 <= x <= width for x in numbers[::2])
                assert all(0 <= y <= height for y in numbers[1::2])
        for text in root.iter(f"{SVG}text"):
            assert 0 <= float(text.get("x")) <= width
            assert 0 <= float(text.get("y")) <= height


SIZES = st.lists(st.tuples(st.integers(20, 200), st.integers(20, 200)), min_size=1, max_size=9)


@st.composite
def drawings(draw):
    sizes = draw(SIZES)
    ends = st.integers(0, len(sizes) - 1)
    return sizes, draw(st.lists(st.tuples(ends, ends), max_size=20))


@given(drawings())
def test_boxes_do_not_overlap_and_lines_run_to_the_right(drawing):
    sizes, lines = drawing
    layout = lay_out(sizes, lines, column_gap=50, row_gap=10)
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(layout.positions, sizes, strict=True)]
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] + 9.9 <= other[1] or other[3] + 9.9 <= one[1]
        assert apart, (one, other)
    for left, top, right, bottom in boxes:
        assert left >= 0
        assert top >= -1e-6
        assert right <= layout.width + 1e-6
        assert bottom <= layout.height + 1e-6
    for start, end in set(lines):
        if start != end:
            rightmost, leftmost = (end, start) if (start, end) in layout.reversed_lines else (start, end)
            assert boxes[rightmost][2] <= boxes[leftmost][0]
            bends = layout.routes[start, end]
            assert all(left <= right for left, right, _ in bends)


@given(drawings())
def test_the_same_input_gives_the_same_drawing(drawing):
    sizes, lines = drawing
    assert lay_out(sizes, lines, column_gap=50, row_gap=10) == lay_out(sizes, lines, column_gap=50, row_gap=10)


def test_bends_avoid_the_boxes_of_their_column():
    sizes = [(100, 50)] * 4
    layout = lay_out(sizes, [(0, 1), (1, 2), (2, 3), (0, 3)], column_gap=50, row_gap=10)
    [(left1, _, y1), (left2, _, y2)] = layout.routes[0, 3]
    assert (left1, left2) == (150, 300)
    for box, y in ((1, y1), (2, y2)):
        top = layout.positions[box][1]
        assert not top - 10 <= y <= top + 50 + 10


def test_a_chain_is_drawn_straight():
    layout = lay_out([(100, 50)] * 5, [(i, i + 1) for i in range(4)], column_gap=50, row_gap=10)
    assert [x for x, _ in layout.positions] == [0, 150, 300, 450, 600]
    assert {y for _, y in layout.positions} == {0}
    assert not layout.reversed_lines


def test_no_line_crosses_where_none_needs_to():
    """Two chains, declared so that the naive order crosses them."""
    layout = lay_out([(50, 20)] * 4, [(0, 3), (1, 2)], column_gap=50, row_gap=10)
    y = [top for _, top in layout.positions]
    assert (y[0] < y[1]) == (y[3] < y[2])
