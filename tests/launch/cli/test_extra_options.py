"""Settings of an agent as options of the command."""

import json

import pytest
from typer.testing import CliRunner

from launch.catalog import find_agent
from launch.cli import app
from launch.extra_options import parse_options
from topology.errors import ProgramError

SETTINGS = ["num_workers", "data_store", "fast"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], {}),
        (["--num-workers", "4"], {"num_workers": "4"}),
        (["--num_workers=4"], {"num_workers": "4"}),
        (["--data-store", "s3://b/p=1"], {"data_store": "s3://b/p=1"}),
        (["--data-store=s3://b/p=1"], {"data_store": "s3://b/p=1"}),
        (["--data-store="], {"data_store": ""}),
        (["--num-workers", "-3"], {"num_workers": "-3"}),
        (["--fast", "--num-workers", "4"], {"fast": "true", "num_workers": "4"}),
        (["--num-workers", "3", "--num-workers", "4"], {"num_workers": "4"}),
    ],
)
def test_options_are_settings(arguments, texts):
    assert parse_options(arguments, SETTINGS, ["--seed"]) == texts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-worker", "4"], r"no such option: --num-worker \(did you mean 'num-workers'\?\)"),
        (["--sed", "4"], r"no such option: --sed \(did you mean 'seed'\?\)"),
        (["4"], "unexpected argument '4'"),
        (["--num-workers", "4", "5"], "unexpected argument '5'"),
        (["-x"], "unexpected argument '-x'"),
        (["--"], "unexpected argument '--'"),
    ],
)
def test_what_nobody_knows_is_refused(arguments, message):
    with pytest.raises(ProgramError, match=message):
        parse_options(arguments, SETTINGS, ["--seed"])


def test_graph_and_launch_take_them(agents, runs):
    def call(*arguments):
        return CliRunner().invoke(app, list(arguments))

    shown = call("graph", "toy", "--format", "json", "--num-actors", "1", "--steps", "7", "--hidden=8,8")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["name"] == "toy"
    assert '"steps": 7' in shown.stdout
    refused = call("launch", "toy", "--steps", "many")
    assert refused.exit_code == 2
    assert "setting steps: expected int, got 'many'" in refused.output


def test_restarts_are_what_the_module_says(agents):
    agent = find_agent("toy")
    assert agent.restarts({}) is None
    agent.module.restarts = lambda config: {"actor": config.num_actors}
    assert agent.restarts({"num_actors": "7"}) == {"actor": 7}
    agent.module.restarts = lambda: 3
    with pytest.raises(ProgramError, match="restarts of agent 'toy' returned 3"):
        agent.restarts({})
