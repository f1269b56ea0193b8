"""The program of DQN, launched: it learns, ends by itself, leaves its numbers behind, and goes on where it ended."""

import json

import pytest

import topology as lp
from topology.agents.dqn.program import PRELOAD, DQNConfig, dqn

SMALL = {
    "num_actors": 2,
    "hidden_sizes": (32,),
    "min_replay_size": 200,
    "batch_size": 32,
    "samples_per_insert": 16.0,
    "evaluation_period": 500,
    "evaluation_episodes": 5,
    "final_evaluation_episodes": 10,
}


def read(directory, node):
    lines = (directory / "metrics" / f"{node}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def last(directory, node, key):
    return [row[key] for row in read(directory, node) if key in row][-1]


@pytest.mark.timeout(120)
def test_it_runs_as_threads_and_a_second_run_goes_on(tmp_path):
    for limit in (1000, 1500):
        run = lp.launch(dqn(DQNConfig(max_actor_steps=limit, **SMALL)), "local_mt", run_directory=tmp_path)
        assert run.wait(60)
        final = read(tmp_path, "evaluator-0")[-1]
        assert final["evaluator_final"] == 1
        assert final["evaluator_episodes"] == 10
        counts = json.loads((tmp_path / "checkpoints" / "counts.json").read_text())
        assert limit <= final["actor_steps"] <= counts["actor_steps"] <= limit + 2 * 64
        assert counts["evaluator_final_evaluations"] == 1
        assert last(tmp_path, "counter-0", "progress") == 1.0
    saved = sorted(int(path.stem) for path in (tmp_path / "checkpoints" / "learner").iterdir())
    assert len(saved) == 2
    assert saved[1] > saved[0] > 0


@pytest.mark.timeout(150)
def test_it_learns_catch_as_processes(tmp_path):
    config = DQNConfig(max_actor_steps=10_000, hidden_sizes=(64, 64), final_evaluation_episodes=50, seed=1)
    run = lp.launch(dqn(config), lp.Processes(preload=PRELOAD), run_directory=tmp_path)
    assert run.wait(120)
    assert set(run.exit_codes.values()) == {0}
    final = read(tmp_path, "evaluator-0")[-1]
    assert (final["evaluator_final"], final["evaluator_episodes"]) == (1, 50)
    assert final["evaluator_return"] >= 0.8
    assert final["learner_steps"] > 1000
    actor = read(tmp_path, "actor-1")[-1]
    assert {"episode_return", "episode_length", "actor_steps", "steps_per_second", "weights_age_s"} <= set(actor)
    assert {"loss", "learner_steps", "replay_size", "learner_steps_per_second"} <= set(read(tmp_path, "learner-0")[-1])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("environment", "episodes", "bar"),
    [("catch", 100, 0.95), ("gym:CartPole-v1", 20, 475.0)],
    ids=["catch", "cartpole"],
)
def test_the_bar_is_met_as_processes(tmp_path, environment, episodes, bar, seed):
    config = DQNConfig(environment=environment, seed=seed, final_evaluation_episodes=episodes)
    run = lp.launch(dqn(config), lp.Processes(preload=PRELOAD), run_directory=tmp_path, seed=seed)
    assert run.wait(800)
    final = read(tmp_path, "evaluator-0")[-1]
    assert (final["evaluator_final"], final["evaluator_episodes"]) == (1, episodes)
    assert final["evaluator_return"] >= bar
