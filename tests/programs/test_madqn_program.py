"""The program of MADQN, launched: it learns, ends by itself, goes on where it ended, and plays PettingZoo's games."""

import json

import numpy as np
import pytest

import topology as lp
from topology.agents.madqn.program import PRELOAD, MADQNConfig, madqn


def read(directory, node):
    lines = (directory / "metrics" / f"{node}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def last(directory, node, key):
    return [row[key] for row in read(directory, node) if key in row][-1]


def launch(config, directory, *, timeout_s, seed=0):
    run = lp.launch(madqn(config), lp.Processes(preload=PRELOAD), run_directory=directory, seed=seed)
    assert run.wait(timeout_s)
    assert set(run.exit_codes.values()) == {0}
    final = read(directory, "evaluator-0")[-1]
    assert final["evaluator_final"] == 1
    return final


@pytest.mark.timeout(420)
def test_it_runs_as_threads_and_a_second_run_goes_on_with_its_epsilon(tmp_path):
    settings = {
        "hidden_sizes": (16,),
        "min_replay_size": 50,
        "evaluation_period": 200,
        "evaluation_episodes": 2,
        "final_evaluation_episodes": 5,
        "epsilon_decay": 2e-3,
    }
    for limit in (1000, 1600):
        second = limit // 1600  # by inference servers, and with two environments for each executor
        config = MADQNConfig(
            **settings,
            num_caches=second,
            inference_servers=second,
            environments_per_actor=1 + second,
            max_actor_steps=limit,
        )
        run = lp.launch(madqn(config), "local_mt", run_directory=tmp_path)
        assert run.wait(200)
        final = read(tmp_path, "evaluator-0")[-1]
        assert (final["evaluator_final"], final["evaluator_episodes"]) == (1, 5)
        counts = json.loads((tmp_path / "checkpoints" / "counts.json").read_text())
        assert limit <= final["actor_steps"] <= counts["actor_steps"] <= limit + 2 * 65
        assert last(tmp_path, "counter-0", "progress") == 1.0
    states = sorted((tmp_path / "checkpoints" / "learner").iterdir(), key=lambda path: int(path.stem))
    assert len(states) == 2
    steps = [int(path.stem) for path in states]
    assert steps[1] > steps[0] > 0
    epsilons = [float(np.load(path)["epsilon"]) for path in states]
    assert epsilons == pytest.approx([max(0.05, 1 - 2e-3 * step) for step in steps], abs=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("mixing", "bar"), [("none", 7.0), ("qmix", 8.0)])
def test_the_bar_of_the_two_step_game(tmp_path, mixing, bar, seed):
    explores = {"epsilon_min": 1.0} if mixing == "qmix" else {}
    config = MADQNConfig(environment="two_step", mixing=mixing, seed=seed, max_actor_steps=10_000, **explores)
    assert launch(config, tmp_path, timeout_s=800, seed=seed)["evaluator_return"] >= bar


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_bar_of_the_switch_riddle(tmp_path, seed):
    config = MADQNConfig(
        environment="switch_riddle",
        recurrent=True,
        sequence_length=7,
        replay_period=6,
        discount=1.0,
        epsilon_decay=2e-3,
        epsilon_min=0.02,
        target_update_period=50,
        seed=seed,
        max_actor_steps=16_000,
    )
    assert launch(config, tmp_path, timeout_s=800, seed=seed)["evaluator_return"] >= 0.9


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_game_of_pettingzoo_is_played_better_than_at_random(tmp_path, seed):
    """Random play returns -26.5 +- 0.4 (standard error, 300 episodes), as the mean of the three agents."""
    pytest.importorskip("mpe2")
    config = MADQNConfig(
        environment="pettingzoo:mpe.simple_spread_v3",
        mixing="vdn",
        n_step=3,
        discount=0.95,
        samples_per_insert=16.0,
        target_update_period=200,
        seed=seed,
        max_actor_steps=25_000,
        evaluation_period=5_000,
        final_evaluation_episodes=50,
    )
    assert launch(config, tmp_path, timeout_s=1100, seed=seed)["evaluator_return"] >= -23.0
