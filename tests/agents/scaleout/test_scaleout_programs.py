"""Whole programs, small, in threads: they end, say how it went, and go on when they are resumed."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import topology as lp
from topology.agents.scaleout.config import ScaleOutDQNConfig, ScaleOutPPOConfig, Synchronization
from topology.agents.scaleout.program import ScaleOutAgent, ScaleOutAgentConfig, ppo, scaleout, scaleout_dqn
from topology.agents.scaleout.stores import open_memory, open_policies, run_name
from topology.environments.catch import Catch
from topology.errors import ProgramError
from topology.nodes.store.policies import open_data_store

DEADLINE_S = 120.0

SMALL = {
    "environment": "catch",
    "environments_per_worker": 4,
    "hidden_sizes": (8,),
    "evaluation_episodes": 4,
    "final_evaluation_episodes": 8,
    "evaluation_period_s": 0.2,
}
SMALL_PPO = {**SMALL, "num_steps": 64, "share_steps": 16, "minibatch_size": 32, "num_passes": 1, "max_steps": 640}
SMALL_DQN = {
    **SMALL,
    "share_steps": 16,
    "min_replay_size": 64,
    "batch_size": 16,
    "updates_per_batch": 2,
    "samples_per_insert": 2.0,
    "max_steps": 1600,
    "checkpoint_save_secs": 0.2,
}


def run(program, directory: Path):
    run = lp.launch(program, "test_mt", run_directory=directory, serialize_py_nodes=False)
    assert run.wait(DEADLINE_S), "it did not end"


def rows(directory: Path, node: str):
    return [json.loads(line) for line in (directory / "metrics" / f"{node}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("memory", ["local", "replay", "local:"])
def test_ppo_in_sync_makes_a_policy_of_every_round(tmp_path, memory):
    run(ppo(ScaleOutPPOConfig(**SMALL_PPO, memory_backend=memory)), tmp_path)
    last = rows(tmp_path, "trainer-0")[-1]
    assert (last["actor_steps"], last["policy"], last["progress"]) == (640, 10, 1.0)
    assert last["learner_steps"] == 20
    with open_data_store(str(tmp_path / "policies")) as store:
        policy = store.load()
        assert policy.number == 10
        assert policy.meta["steps"] == 640
        assert "640 of 640" in store.finished()
    final = rows(tmp_path, "evaluator-0")[-1]
    assert (final["evaluator_final"], final["policy"], final["evaluator_episodes"]) == (1, 10, 8)
    played = [rows(tmp_path, f"worker-{index}")[-1]["actor_steps"] for index in (0, 1)]
    assert sum(played) >= 640
    assert all(steps % 16 == 0 for steps in played)


def test_a_run_that_ended_is_gone_on_with(tmp_path):
    run(ppo(ScaleOutPPOConfig(**SMALL_PPO)), tmp_path)
    run(ppo(ScaleOutPPOConfig(**SMALL_PPO | {"max_steps": 960})), tmp_path)
    assert rows(tmp_path, "trainer-0")[-1]["policy"] == 15
    assert rows(tmp_path, "trainer-0")[-1]["actor_steps"] == 960


def test_rounds_of_episodes_and_statistics_that_all_share(tmp_path):
    settings = SMALL_PPO | {
        "num_episodes": 12,
        "share_episodes": 5,
        "normalise_observations": True,
        "normalise_rewards": True,
        "max_steps": 500,
    }
    run(ppo(ScaleOutPPOConfig(**settings)), tmp_path)
    with open_data_store(str(tmp_path / "policies")) as store:
        policy = store.load()
    steps = policy.meta["steps"]
    assert policy.meta["episodes"] == 12 * policy.number
    assert steps == 9 * policy.meta["episodes"]  # an episode of catch has 9 steps: all are whole
    assert policy.arrays["statistics/observations/count"] == steps
    assert policy.arrays["statistics/returns/count"] == steps


def test_dqn_in_async_measures_staleness(tmp_path):
    config = ScaleOutDQNConfig(**SMALL_DQN, max_staleness=50, normalise_observations=True, normalise_rewards=True)
    run(scaleout_dqn(config), tmp_path)
    found = rows(tmp_path, "trainer-0")
    assert found[-1]["actor_steps"] >= 1600
    assert found[-1]["learner_steps"] > 0
    assert any("staleness_policies" in row and "staleness_s_max" in row for row in found)
    assert all(row["dropped_stale"] == 0 for row in found)


def test_dqn_in_sync(tmp_path):
    settings = SMALL_DQN | {"checkpoint_save_secs": None, "num_steps": 32, "max_steps": 320}
    run(scaleout_dqn(ScaleOutDQNConfig(**settings, synchronization=Synchronization.SYNC)), tmp_path)
    assert rows(tmp_path, "trainer-0")[-1]["policy"] == 10


@pytest.mark.parametrize("synchronization", ["sync", "async"])
def test_impala_learns_over_stores_either_way(tmp_path, synchronization):
    small = ("batch_size=4", "hidden_sizes=8", "sequence_length=6")
    rounds = {"num_episodes": 6} if synchronization == "sync" else {"checkpoint_save_secs": 0.1}
    config = ScaleOutAgentConfig(
        agent="impala",
        agent_settings=small,
        synchronization=synchronization,
        max_steps=432,
        evaluation_episodes=2,
        final_evaluation_episodes=4,
        **rounds,
    )
    run(scaleout(config), tmp_path)
    found = rows(tmp_path, "trainer-0")
    assert found[-1]["actor_steps"] >= 432
    assert found[-1]["learner_steps"] >= 8, "also when much of it came at once"
    if synchronization == "sync":
        assert (found[-1]["policy"], found[-1]["actor_steps"]) == (8, 432)  # an episode of catch has 9 steps
        assert found[-1]["dropped_other_policy"] == 0
    assert rows(tmp_path, "evaluator-0")[-1]["evaluator_final"] == 1


def test_the_run_ends_when_the_target_is_reached(tmp_path):
    run(ppo(ScaleOutPPOConfig(**SMALL_PPO | {"target_return": -1.0, "max_steps": None})), tmp_path)
    final = [row for row in rows(tmp_path, "evaluator-0") if row["evaluator_final"]]
    assert len(final) == 1
    with open_data_store(str(tmp_path / "policies")) as store:
        assert f"policy {final[0]['policy']} " in store.finished()


def test_without_an_evaluator_the_trainer_ends_the_run(tmp_path):
    run(ppo(ScaleOutPPOConfig(**SMALL_PPO | {"evaluation_episodes": 0, "max_steps": 128})), tmp_path)
    assert rows(tmp_path, "trainer-0")[-1]["actor_steps"] == 128


def test_policies_of_another_run_are_not_gone_on_with_unless_asked(tmp_path):
    settings = SMALL_PPO | {"data_store": str(tmp_path / "shared"), "max_steps": 128}
    run(ppo(ScaleOutPPOConfig(**settings)), tmp_path / "a")
    with pytest.raises(Exception, match="holds policy 2 of the run"):
        run(ppo(ScaleOutPPOConfig(**settings)), tmp_path / "b")
    run(ppo(ScaleOutPPOConfig(**settings | {"take_over": True, "max_steps": 192})), tmp_path / "c")
    assert rows(tmp_path / "c", "trainer-0")[-1]["policy"] == 3


def test_every_node_plays_with_seeds_of_its_own(tmp_path):
    seeds = []

    def environment(*, seed=None):
        seeds.append(seed)
        return Catch(seed=seed)

    config = ScaleOutPPOConfig(**SMALL_PPO | {"max_steps": 64, "num_workers": 3})
    agent = ScaleOutAgent(config, "topology.agents.scaleout.ppo:PPO", environment)
    run(agent.build("ppo"), tmp_path)
    nodes = [seed for seed in seeds if seed]  # 0 was for the specs
    assert len(nodes) == len(set(nodes)) == 3 * 4 + 4


def test_addresses_come_from_the_environment_and_wrong_ones_are_explained(monkeypatch, context):
    monkeypatch.setenv("REDIS_URL", "nowhere://host")
    config = ScaleOutPPOConfig(memory_backend="redis", data_store="redis")
    with pytest.raises(ValueError, match="nowhere"):
        open_memory(config, context, None)
    with pytest.raises(ValueError, match="nowhere"):
        open_policies(config, context)
    processes = replace(context, launch_type="local_mp")
    with pytest.raises(ProgramError, match="choose local"):
        open_memory(ScaleOutPPOConfig(memory_backend="local:"), processes, None)
    with pytest.raises(ProgramError, match="keeps no run directory"):
        open_policies(ScaleOutPPOConfig(), replace(context, run_directory=None))


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis", True),
        ("rediss://:secret@far:1/2", True),
        ("redis://far:1?name=shared", False),
        ("s3://bucket/prefix", False),
        ("/srv/policies", False),
    ],
)
def test_runs_that_share_a_redis_server_do_not_share_policies_unless_told_to(monkeypatch, context, url, named):
    opened = []
    monkeypatch.setattr("topology.agents.scaleout.stores.open_data_store", lambda *args, **more: opened.append(more))
    open_policies(ScaleOutPPOConfig(data_store=url), context)
    given = {"keep": 5, "patience_s": 120.0}
    assert opened == [given | {"name": run_name(context)} if named else given]


def test_a_run_has_one_name_on_every_machine_and_when_it_is_gone_on_with(context, tmp_path):
    here = replace(context, run_directory=tmp_path / "run")
    with ThreadPoolExecutor(8) as nodes:
        names = set(nodes.map(run_name, [here] * 8))
    assert len(names) == 1
    (tmp_path / "run").rename(tmp_path / "as it is mounted elsewhere")
    there = replace(context, label="trainer", index=0, run_directory=tmp_path / "as it is mounted elsewhere")
    assert {run_name(there)} == names
    other = replace(context, run_directory=tmp_path / "elsewhere" / "my {run}")
    assert {run_name(other)} != names
    assert run_name(other).startswith("my--run--")
