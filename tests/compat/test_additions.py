"""Classes of ours are as they were when the modules of others are provided no more."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import topology as lp
from topology.compat import additions, install, is_installed, provided, uninstall

MODULES = ("launchpad", "courier", "reverb", "launchpad.nodes.python.node", "reverb.pybind")
OURS = ("launch.run", "topology.nodes.courier", "topology.nodes.replay", "topology.nodes.replay.info")


@pytest.fixture(autouse=True)
def _provided_to_nobody() -> None:
    assert not is_installed(), "another test has left them"
    for name in OURS:
        importlib.import_module(name)


def _classes() -> Iterator[type]:
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in {"topology", "launch"} and not name.startswith("topology.compat"):
            yield from (value for value in vars(module).values() if isinstance(value, type))


def _members() -> dict[tuple[type, str], Any]:
    ours = {kind for kind in _classes() if kind.__module__.split(".")[0] in {"topology", "launch"}}
    return {(kind, name): value for kind in ours for name, value in vars(kind).items()}


def _changed(before: dict[tuple[type, str], Any], after: dict[tuple[type, str], Any]) -> set[str]:
    """Names of members that came, went or are others, of the classes that there were before."""
    kinds = {kind for kind, _ in before}
    names = before.keys() | {place for place in after if place[0] in kinds}
    return {
        f"{kind.__name__}.{name}"
        for kind, name in names
        if before.get((kind, name), additions) is not after.get((kind, name), additions)
        and (name != "__abstractmethods__" or before[kind, name] != after[kind, name])
    }


def test_our_classes_are_as_they_were() -> None:
    before = _members()
    for _ in range(2):  # the second time the modules are there already
        with provided():
            for name in MODULES:
                importlib.import_module(name)
            inside = _changed(before, _members())
            assert {"Client.__init__", "Server.BindHandler", "Node.describe", "PyNode.__class_getitem__"} <= inside
            assert {"Config.HasField", "ReverbHandle.dereference", "Run.join", "Address.bind"} <= inside
            install()  # once more changes nothing
            assert _changed(before, _members()) == inside
        assert _changed(before, _members()) == set()


def test_what_a_class_remembers_of_its_members_is_found_anew() -> None:
    class OnlyRuns(lp.Node[None]):
        def create_handle(self) -> None:
            return None

    class OnlyDereferences(lp.Handle[int]):
        def dereference(self) -> int:
            return 1

    kinds: tuple[Any, ...] = (OnlyRuns, OnlyDereferences)
    node = lp.PyClassNode(OnlyDereferences)
    for _ in range(2):
        for kind in kinds:
            with pytest.raises(TypeError, match="abstract"):
                kind()
        assert not isinstance(node, lp.PyNode)
        with provided():
            importlib.import_module("launchpad")
            assert [type(kind()) for kind in kinds] == [*kinds]
            assert isinstance(node, lp.PyNode)


def test_a_source_is_added_only_while_the_modules_are_provided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additions, "_sources", [])

    class Kind:
        own = 1

    def source() -> None:
        additions.add(Kind, own=2, other=3)

    additions.with_additions(source)
    additions.with_additions(source)
    assert (Kind.own, hasattr(Kind, "other")) == (1, False)
    for _ in range(2):
        install()
        assert (Kind.own, getattr(Kind, "other", None)) == (2, 3)
        uninstall()
        assert (Kind.own, hasattr(Kind, "other")) == (1, False)
    with provided():
        late: list[int] = []
        additions.with_additions(lambda: late.append(1))
        assert late == [1]
