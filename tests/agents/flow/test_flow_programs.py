"""The programs of PPO, A2C, IMPALA and DQN as plans: their graphs, quick runs, and what they learn."""

import contextlib
import dataclasses
import json
import subprocess
import sys

import psutil
import pytest

import topology as lp
from topology.agents.flow.config import A2CConfig, DQNConfig, IMPALAConfig, PPOConfig
from topology.agents.flow.program import PRELOAD, FlowIMPALA, flow_a2c, flow_dqn, flow_impala, flow_ppo, restarts
from topology.clock import SYSTEM_CLOCK, Deadline

SMALL = {
    "environment": "catch",
    "hidden_sizes": (8,),
    "environments_per_actor": 2,
    "fragment_length": 10,
    "max_actor_steps": 400,
    "final_evaluation_episodes": 4,
    "report_period_s": 0.0,
}
QUICK = {
    "ppo": (flow_ppo, PPOConfig(**SMALL, train_batch_size=40, minibatch_size=20)),
    "a2c with microbatches": (flow_a2c, A2CConfig(**SMALL, train_batch_size=80, microbatch_size=40)),
    "impala with an aggregator": (flow_impala, IMPALAConfig(**SMALL, train_batch_size=40, num_aggregators=1)),
    "impala": (flow_impala, IMPALAConfig(**SMALL, train_batch_size=40)),
    "impala with both": (flow_impala, IMPALAConfig(**SMALL, train_batch_size=40, num_aggregators=1, lstm_size=4)),
    "impala with a memory": (flow_impala, IMPALAConfig(**SMALL, train_batch_size=40, lstm_size=4)),
    "impala in SYNC": (flow_impala, IMPALAConfig(**SMALL, train_batch_size=40, lstm_size=4, synchronization="sync")),
    "dqn": (flow_dqn, DQNConfig(**SMALL, min_replay_size=100, batch_size=16, updates_per_batch=4)),
    "dqn, alone": (
        flow_dqn,
        DQNConfig(**SMALL | {"report_period_s": 3_600.0}, num_actors=0, min_replay_size=100, batch_size=16),
    ),
}
CHAIN = {
    "environment": "memory_chain:5",
    "hidden_sizes": (32,),
    "reward_scale": 1.0,
    "entropy_cost": 0.01,
    "max_actor_steps": 60_000,
    "final_evaluation_episodes": 400,
}
LEARNING = {
    "ppo": (flow_ppo, PPOConfig),
    "a2c": (flow_a2c, A2CConfig),
    "impala": (flow_impala, IMPALAConfig),
    "dqn": (flow_dqn, DQNConfig),
}


def rows_of(directory):
    lines = (directory / "metrics" / "learner-0.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", QUICK)
def test_quick_runs_as_threads(tmp_path, name):
    build, config = QUICK[name]
    assert lp.launch(build(config), "test_mt", run_directory=tmp_path).wait(100)
    *rows, last = rows_of(tmp_path)
    assert (last["evaluator_final"], last["evaluator_episodes"]) == (1, 4)
    assert -1 <= last["evaluator_return"] <= 1
    assert last["actor_steps"] >= 400
    if config.report_period_s:
        assert last["actor_steps"] < 440  # at once, not at the next report
    assert last["learner_steps"] >= 2
    assert {"loss", "cur_lr", "episode_return", "progress", "healthy_workers"} <= set(rows[-1]) | {"loss"}
    assert rows[-1]["progress"] == 1.0
    assert rows[-1]["cur_lr"] < config.learning_rate or rows[-1]["learner_steps"] < 3  # it follows the steps


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name",
    [
        "dqn",
        pytest.param("ppo", marks=pytest.mark.slow),
        pytest.param("a2c with microbatches", marks=pytest.mark.slow),
        pytest.param("impala with an aggregator", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_where_an_earlier_one_ended(tmp_path, name):
    build, config = QUICK[name]
    config = dataclasses.replace(config, checkpoint_replay=True)
    assert lp.launch(build(config), "test_mt", run_directory=tmp_path).wait(100)
    first = rows_of(tmp_path)
    longer = build(dataclasses.replace(config, max_actor_steps=800))
    assert lp.launch(longer, "test_mt", run_directory=tmp_path).wait(100)
    second = rows_of(tmp_path)[len(first) :]
    for count in ("actor_steps", "learner_steps", "steps_trained"):
        totals = [row[count] for row in (*first[:-1], *second[:-1])]
        assert totals == sorted(totals), count  # also over the break
    assert first[-1]["actor_steps"] <= second[0]["actor_steps"] <= first[-1]["actor_steps"] + 80
    assert second[-1]["actor_steps"] >= 800
    if name == "dqn":  # to the update, in the middle of the turn in which it learns from replay
        assert second[0]["learner_steps"] == first[-1]["learner_steps"] + 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_of_which_everything_was_killed_goes_on(tmp_path):
    settings = ["hidden_sizes=16", "max_actor_steps=60000", "checkpoint_period_s=0.5", "final_evaluation_episodes=2"]
    command = [
        sys.executable,
        "-m",
        "launch.cli",
        "launch",
        "flow-ppo",
        "-e",
        "catch",
        "--run-directory",
        tmp_path / "run",
    ]
    command += [option for setting in settings for option in ("--set", setting)]
    states = tmp_path / "run" / "checkpoints" / "plan" / "learner-0"
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = Deadline(100)
    while not list(states.glob("00*")):
        assert launcher.poll() is None
        assert not deadline.expired
        SYSTEM_CLOCK.sleep(0.05)  # files tell nobody that they are there
    doomed = [*psutil.Process(launcher.pid).children(recursive=True), psutil.Process(launcher.pid)]
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    launcher.wait(20)
    psutil.wait_procs(doomed, timeout=20)
    before = rows_of(tmp_path / "run")
    subprocess.run([*command, "--resume"], check=True, timeout=150, stdout=subprocess.DEVNULL)
    after = rows_of(tmp_path / "run")[len(before) :]
    assert after[0]["learner_steps"] > 0
    assert after[0]["actor_steps"] > 1_024  # more than a first round
    assert after[-1]["evaluator_final"] == 1
    assert after[-1]["actor_steps"] >= 60_000


def test_how_often_nodes_may_be_started_again():
    assert restarts(PPOConfig()) == {}
    assert restarts(PPOConfig(max_restarts=2)) == {"actor": 2, "learner": 2}
    assert restarts(DQNConfig(max_restarts=2, num_actors=0)) == {"learner": 2}
    some = restarts(IMPALAConfig(max_restarts=2, num_aggregators=1, leave_out=True))
    assert some["learner"] == 2
    assert min(some["actor"], some["aggregator"]) > 100  # the plan leaves them out; their launcher must not mind
    left_out = IMPALAConfig(num_aggregators=1, leave_out=True)
    assert set(restarts(left_out)) <= set(flow_impala(left_out).groups)


@pytest.mark.timeout(120)
def test_a_quick_run_as_processes_on_two_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    config = PPOConfig(**SMALL, train_batch_size=40, minibatch_size=20, num_passes=2, devices=2)
    assert lp.launch(flow_ppo(config), lp.Processes(preload=PRELOAD), run_directory=tmp_path).wait(100)
    assert rows_of(tmp_path)[-1]["evaluator_final"] == 1


def test_the_graph_of_a_program_and_its_plan():
    agent = FlowIMPALA(IMPALAConfig(**SMALL, num_actors=4, num_aggregators=2))
    program = agent.build("flow-impala")
    plain = program.graph()
    assert plain.groups == ("actor", "aggregator", "learner")
    assert plain.targets_of("learner") == (*(f"actor/{i}" for i in range(4)), "aggregator/0", "aggregator/1")
    drawn = agent.make_plan().graph(program)
    operators = [node.constructor for node in drawn.node("learner/0").inner]
    assert operators[:5] == ["gather_async", "record_steps_sampled", "BoundStaleness", "flatten", "Enqueue"]
    assert "LearnerThread" in operators
    assert drawn.arguments_of("learner/0", "aggregator/0")[:1] == ("aggregators[0]",)


def outcome_of(program, directory, seed):
    """The last row of its metrics, after a run as processes."""
    assert lp.launch(program, lp.Processes(preload=PRELOAD), run_directory=directory, seed=seed).wait(550)
    return rows_of(directory)[-1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", LEARNING)
def test_cartpole_is_learned(tmp_path, name, seed):
    build, config = LEARNING[name]
    last = outcome_of(build(config(seed=seed)), tmp_path, seed)
    assert last["evaluator_episodes"] == 20
    assert last["evaluator_return"] >= 450


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("lstm_size", "seed"), [(32, 0), (32, 1), (32, 2), (None, 0)])
def test_what_was_seen_before_is_remembered_with_a_memory_only(tmp_path, lstm_size, seed):
    """A bit that was shown five steps before it is asked for: without a memory the mean return is 0."""
    last = outcome_of(flow_impala(IMPALAConfig(**CHAIN, lstm_size=lstm_size, seed=seed)), tmp_path, seed)
    assert last["evaluator_episodes"] == 400
    assert last["evaluator_return"] >= 0.9 if lstm_size else abs(last["evaluator_return"]) < 0.3
