"""The program of DMPO, launched: it ends by itself, leaves its numbers behind, goes on, and learns."""

import json

import pytest

import topology as lp
from topology.agents.dmpo.program import PRELOAD, DMPOConfig, dmpo

SMALL = {
    "environment": "gym:Pendulum-v1",
    "num_actors": 2,
    "hidden_sizes": (16,),
    "num_samples": 4,
    "min_replay_size": 100,
    "batch_size": 16,
    "samples_per_insert": 4.0,
    "evaluation_period": 400,
    "evaluation_episodes": 1,
    "final_evaluation_episodes": 2,
}


def read(directory, node):
    lines = (directory / "metrics" / f"{node}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(400)
def test_it_runs_as_threads_and_a_second_run_goes_on_behind_a_cacher(tmp_path):
    for limit, num_caches in ((600, 0), (1500, 1)):
        config = DMPOConfig(max_actor_steps=limit, num_caches=num_caches, **SMALL)
        run = lp.launch(dmpo(config), "local_mt", run_directory=tmp_path)
        assert run.wait(190)
        final = read(tmp_path, "evaluator-0")[-1]
        assert (final["evaluator_final"], final["evaluator_episodes"]) == (1, 2)
        counts = json.loads((tmp_path / "checkpoints" / "counts.json").read_text())
        assert limit <= final["actor_steps"] <= counts["actor_steps"] <= limit + 2 * 64
    saved = sorted(int(path.stem) for path in (tmp_path / "checkpoints" / "learner").iterdir())
    assert len(saved) == 2
    assert saved[1] > saved[0] > 0


def test_the_learner_is_stepped_from_outside():
    """The way programs of this kind are tested: the learner's node is built, but does not run by itself."""
    program = dmpo(DMPOConfig(max_actor_steps=None, **SMALL))
    (learner,) = program.groups["learner"]
    learner.disable_run()
    with lp.launch(program, "test_mt"), learner.create_handle().dereference() as client:
        for _ in range(3):
            client.step()
        variables = client.get_variables(["critic", "policy"])
        assert variables.version == 3 * DMPOConfig().updates_per_call
        assert len(variables.values) == 2


def reached(config, directory, timeout_s):
    """The mean return of the final evaluation, run as processes."""
    run = lp.launch(dmpo(config), lp.Processes(preload=PRELOAD), run_directory=directory, seed=config.seed)
    assert run.wait(timeout_s)
    assert set(run.exit_codes.values()) == {0}
    final = read(directory, "evaluator-0")[-1]
    assert (final["evaluator_final"], final["evaluator_episodes"]) == (1, 100)
    return final["evaluator_return"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pendulum_is_learned(tmp_path, seed):
    assert reached(DMPOConfig(seed=seed), tmp_path, 800) > -200


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_cartpole_of_dm_control_is_swung_up(tmp_path, seed):
    pytest.importorskip("dm_control")
    config = DMPOConfig(
        environment="dm_control:cartpole-swingup",
        min_return=0.0,
        max_return=100.0,
        n_step=5,
        final_learning_rate=1e-5,
        max_actor_steps=200_000,
        evaluation_period=20_000,
        evaluation_episodes=2,
        seed=seed,
    )
    assert reached(config, tmp_path, 3500) >= 700
