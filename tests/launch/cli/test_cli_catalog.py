"""Finding agents."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import pytest

from launch.catalog import Listed, find_agent, list_agents
from topology.errors import ProgramError


def test_listing_reads_descriptions_and_imports_nothing(agents: Path) -> None:
    listed = {agent.name: agent for agent in list_agents()}
    assert listed["toy"] == Listed(
        name="toy", target="toy_agents.agent:toy", package="toy-agents", description="Counts to a number."
    )
    assert listed["sick"].description == "Cannot be imported."
    assert "toy_agents" not in sys.modules


@pytest.mark.parametrize("name", ["toy", "toy_agents.agent:toy"])
def test_an_agent_is_found_by_entry_point_and_by_module(agents: Path, name: str) -> None:
    agent = find_agent(name)
    assert agent.description == "Counts to a number."
    graph = agent.build({"num_actors": "3"}).graph()
    assert [node.name for node in graph.nodes()] == ["counter/0", "actor/0", "actor/1", "actor/2"]


def test_a_function_with_parameters_is_an_agent_too(agents: Path) -> None:
    assert find_agent("toy_agents.agent:plain").build({"name": "other"}).name == "other"


def test_a_file_is_run_and_its_functions_travel_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    path = tmp_path / "launch.py"  # called like a package that is imported already
    path.write_text(
        "import topology as lp\n"
        "def work(): return 1\n"
        "def make():\n"
        "    program = lp.Program('file')\n"
        "    program.add_node(lp.PyNode(work), label='worker')\n"
        "    return program\n"
    )
    agent = find_agent(f"{path}:make")
    try:
        assert agent.build({}).name == "file"
        assert b"work" in cloudpickle.dumps(agent.module.work)
        assert agent.module.__name__ == "launch_file"
    finally:
        cloudpickle.unregister_pickle_by_value(agent.module)
        del sys.modules[agent.module.__name__]


def test_a_file_that_fails_leaves_no_module_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    path = tmp_path / "half_done.py"
    path.write_text("x = 1\nraise OSError('no disk')\n")
    with pytest.raises(ProgramError, match=rf"cannot be imported: OSError: no disk \({path}, line 2\)"):
        find_agent(f"{path}:make")
    assert "half_done" not in sys.modules


def test_what_an_agent_module_offers_to_the_launcher(agents: Path) -> None:
    agent = find_agent("toy")
    assert agent.preload == ()
    assert agent.local_resources({}) is None
    agent.module.PRELOAD = ("json",)
    agent.module.local_resources = lambda config: {"actor": config.num_actors}
    assert agent.preload == ("json",)
    assert agent.local_resources({"num_actors": "7"}) == {"actor": 7}


def resources_of(name: str, function: object, texts: dict[str, str]) -> object:
    agent = find_agent(name)
    agent.module.local_resources = function
    return agent.local_resources(texts)


@pytest.mark.parametrize(
    ("name", "function", "expected"),
    [
        ("toy", lambda: {"actor": 0}, {"actor": 0}),
        ("toy", lambda config, extra=1: {"actor": config.num_actors}, {"actor": 5}),
        ("toy_agents.agent:plain", lambda num_actors: {"actor": num_actors}, {"actor": 5}),
        ("toy_agents.agent:plain", lambda name: {"actor": name}, {"actor": "plain"}),  # its default
        ("toy_agents.agent:plain", lambda **settings: settings, {"num_actors": 5, "name": "plain"}),
        ("toy_agents.agent:plain", lambda: None, None),
    ],
)
def test_local_resources_gets_what_it_has_parameters_for(
    agents: Path, name: str, function: object, expected: object
) -> None:
    assert resources_of(name, function, {"num_actors": "5"}) == expected


def for_a_config(config):  # type: ignore[no-untyped-def]
    return {}


def for_two(config, other):  # type: ignore[no-untyped-def]
    return {}


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        (
            "toy_agents.agent:plain",
            for_a_config,
            "for_a_config(config) can be given the settings num_actors, name: missing a required argument: 'config'",
        ),
        ("toy", for_two, "for_two(config, other) can be given the Config of the agent: missing"),
        ("toy", lambda: 3, "local_resources of agent 'toy' returned 3, not a dict from the labels of groups"),
        ("toy", lambda: {}["key"], "agent 'toy' raised KeyError: 'key'"),
    ],
)
def test_local_resources_that_does_not_fit_is_said(agents: Path, name: str, function: object, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        resources_of(name, function, {})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("tyo", ["unknown agent 'tyo' (did you mean 'toy'?)", "The agents are: ", "sick, toy", "module:function"]),
        (
            "sick",
            ["'toy_agents.sick' cannot be imported", "No module named 'no_such_module_anywhere'", "sick.py, line 1"],
        ),
        ("no_such_module:f", ["'no_such_module' cannot be imported: ModuleNotFoundError"]),
        ("toy_agents.agent:toi", ["toy_agents.agent has no function 'toi' (did you mean 'toy'?)"]),
        ("toy_agents.agent:AGENT.x", ["has no function"]),
        ("no_such_file.py:f", ["there is no file 'no_such_file.py'"]),
        ("file.py", ["say which function builds the program, file.py:FUNCTION"]),
        ("toy_agents.agent:__doc__", ["not a function that returns a Program"]),
    ],
)
def test_what_cannot_be_found_is_said(agents: Path, name: str, parts: list[str]) -> None:
    with pytest.raises(ProgramError) as caught:
        find_agent(name)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "texts", "message"),
    [
        ("toy", {"environment": "doom"}, "agent 'toy': unknown environment 'doom': there is catch"),
        ("toy_agents.agent:nothing", {}, "agent 'toy_agents.agent:nothing' returned 3, not a topology Program"),
        ("toy_agents.agent:broken", {}, "agent 'toy_agents.agent:broken' raised KeyError: 'key' ("),
        ("toy_agents.agent:plain", {"actors": "1"}, "unknown setting 'actors' (did you mean 'num_actors'?)"),
    ],
)
def test_what_an_agent_refuses_is_one_message(agents: Path, name: str, texts: dict[str, str], message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        find_agent(name).build(texts)
    assert str(caught.value).startswith(message)
