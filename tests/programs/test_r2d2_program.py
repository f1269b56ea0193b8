"""The program of R2D2, launched: it learns what a memory is needed for, ends by itself, and goes on where it ended."""

import json

import pytest

import topology as lp
from topology.agents.dqn import program as dqn
from topology.agents.r2d2 import program as r2d2


def final_row(directory):
    """The last evaluation, which is that of the end."""
    row = json.loads((directory / "metrics" / "evaluator-0.jsonl").read_text().splitlines()[-1])
    assert row["evaluator_final"] == 1
    return row


@pytest.mark.timeout(440)
def test_it_runs_as_threads_and_a_second_run_goes_on(tmp_path):
    small = {
        "environment": "memory_chain:3",
        "num_actors": 2,
        "hidden_sizes": (16,),
        "lstm_size": 16,
        "head_size": 16,
        "burn_in_length": 1,
        "trace_length": 4,
        "replay_period": 2,
        "min_replay_size": 50,
        "samples_per_insert": 8.0,
        "final_evaluation_episodes": 10,
    }
    # Long enough for the table to hold its actors until the learner, once compiled, has learned.
    for limit in (1_600, 4_000):
        config = r2d2.R2D2Config(max_actor_steps=limit, **small)
        run = lp.launch(r2d2.r2d2(config), "local_mt", run_directory=tmp_path)
        assert run.wait(200)
        final = final_row(tmp_path)
        assert final["evaluator_episodes"] == 10
        counts = json.loads((tmp_path / "checkpoints" / "counts.json").read_text())
        assert limit <= final["actor_steps"] <= counts["actor_steps"] <= limit + 2 * 64
        assert counts["evaluator_final_evaluations"] == 1
        assert counts["learner_steps"] > 0
        assert not [name for name in counts if name.startswith("learner_learner")]
    saved = sorted(int(path.stem) for path in (tmp_path / "checkpoints" / "learner").iterdir())
    assert len(saved) == 2
    assert saved[1] > saved[0] > 0


def run_as_processes(program, preload, directory, seed):
    run = lp.launch(program, lp.Processes(preload=preload), run_directory=directory, seed=seed)
    assert run.wait(1100)
    assert set(run.exit_codes.values()) == {0}
    return final_row(directory)["evaluator_return"]


CHAIN = {"environment": "memory_chain:10", "num_actors": 2, "max_actor_steps": 6_000, "final_evaluation_episodes": 400}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_remembers_for_ten_steps(tmp_path, seed):
    config = r2d2.R2D2Config(seed=seed, **CHAIN)
    assert run_as_processes(r2d2.r2d2(config), r2d2.PRELOAD, tmp_path, seed) >= 0.9


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_a_memory_there_is_nothing_to_learn(tmp_path, seed):
    config = dqn.DQNConfig(seed=seed, **CHAIN)
    assert abs(run_as_processes(dqn.dqn(config), dqn.PRELOAD, tmp_path, seed)) < 0.2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_balances_a_pole_whose_velocity_it_does_not_see(tmp_path, seed):
    config = r2d2.R2D2Config(
        environment="cartpole_hidden",
        seed=seed,
        trace_length=24,
        replay_period=12,
        samples_per_insert=64.0,
        learning_rate=5e-4,
        final_learning_rate=1e-5,
        max_actor_steps=80_000,
        final_evaluation_episodes=20,
    )
    assert run_as_processes(r2d2.r2d2(config), r2d2.PRELOAD, tmp_path, seed) >= 400
