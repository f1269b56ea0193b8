"""The program of IMPALA, launched: it learns, reports its policy lag, ends by itself, and goes on where it ended."""

import json

import pytest

import topology as lp
from topology.agents.impala.program import PRELOAD, IMPALAConfig, impala

SMALL = {
    "num_actors": 2,
    "environments_per_actor": 1,
    "hidden_sizes": (16,),
    "batch_size": 4,
    "sequence_length": 6,
    "max_queue_size": 4,
    "evaluation_period": 1_000,
    "evaluation_episodes": 5,
    "final_evaluation_episodes": 10,
}


def read(directory, node):
    lines = (directory / "metrics" / f"{node}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("lstm_size", [None, 8], ids=["feed-forward", "recurrent"])
def test_it_runs_as_threads_and_a_second_run_goes_on(tmp_path, lstm_size):
    for limit in (1000, 1500):
        config = IMPALAConfig(max_actor_steps=limit, lstm_size=lstm_size, **SMALL)
        run = lp.launch(impala(config), "local_mt", run_directory=tmp_path)
        assert run.wait(60)
        final = read(tmp_path, "evaluator-0")[-1]
        assert (final["evaluator_final"], final["evaluator_episodes"]) == (1, 10)
        counts = json.loads((tmp_path / "checkpoints" / "counts.json").read_text())
        assert limit <= final["actor_steps"] <= counts["actor_steps"] <= limit + 2 * 64
    saved = sorted(int(path.stem) for path in (tmp_path / "checkpoints" / "learner").iterdir())
    assert len(saved) == 2
    assert saved[1] > saved[0] > 0
    # Each batch has the rows of 20 steps or last observations, and each step is learned from once: the actors wait for
    # the learner, which is never further behind than what may wait or be on its way.
    behind = SMALL["max_queue_size"] + 2 * config.max_in_flight + 3 * config.batch_size
    assert saved[1] * 20 <= counts["actor_steps"] * 10 / 9 + 1
    assert saved[1] * 20 >= limit - 2 * behind * 5


def final_return(directory, episodes):
    final = read(directory, "evaluator-0")[-1]
    assert (final["evaluator_final"], final["evaluator_episodes"]) == (1, episodes)
    return final["evaluator_return"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("environment", "episodes", "bar"),
    [("catch", 100, 0.95), ("gym:CartPole-v1", 20, 450.0)],
    ids=["catch", "cartpole"],
)
def test_the_bar_is_met_as_processes(tmp_path, environment, episodes, bar, seed):
    config = IMPALAConfig(environment=environment, seed=seed, final_evaluation_episodes=episodes)
    run = lp.launch(impala(config), lp.Processes(preload=PRELOAD), run_directory=tmp_path, seed=seed)
    assert run.wait(800)
    assert set(run.exit_codes.values()) == {0}
    assert final_return(tmp_path, episodes) >= bar
    rows = [row for row in read(tmp_path, "learner-0") if "policy_lag_mean" in row]
    # Actors cannot act with weights of the update they are learned in, and the queue bounds how old these get.
    assert all(0 < row["policy_lag_mean"] <= row["policy_lag_max"] for row in rows)
    actor = read(tmp_path, "actor-1")[-1]
    assert {"episode_return", "actor_steps", "steps_per_second", "weights_version", "weights_age_s"} <= set(actor)
