"""The examples of plans: short, and they run."""

import importlib.util
from pathlib import Path

import pytest

import topology as lp

EXAMPLES = Path(__file__).parents[3] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["flow_a3c", "flow_apex", "flow_two_trainers"])
def test_they_are_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "steps"), [("flow_a3c", 640), ("flow_apex", 1_280)])
def test_programs_run_as_threads(tmp_path, name, steps):
    program = load(name).build(steps=steps)
    assert lp.launch(program, "local_mt", run_directory=tmp_path).wait(100)


def test_ape_x_has_an_epsilon_for_each_worker_and_replay_in_nodes_of_its_own():
    module = load("flow_apex")
    graph = module.build().graph()
    assert graph.targets_of("plan") == ("worker/0", "worker/1", "worker/2", "replay/0", "replay/1")
    agent = module.ApeX(module.DQNConfig(environment="catch", num_actors=3))
    assert [agent.exploration(index) for index in (1, 2, 3)] == pytest.approx([0.00066, 0.0162, 0.4], rel=0.01)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_trainers_both_learn(capsys):
    result = load("flow_two_trainers").main(steps=5_000)
    assert result["timesteps_total"] >= 4_000
    assert set(result["info"]["learner"]) <= {"ppo", "dqn"}
    assert result["info"]["num_steps_trained"] > 1_024
    assert result["info"]["num_target_updates"] >= 5
    assert len(capsys.readouterr().out.splitlines()) == 10
