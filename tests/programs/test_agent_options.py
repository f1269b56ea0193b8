"""Options of every agent, on DQN: inference servers, several environments, several devices, event files, going on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import topology as lp
from topology.agents.dqn.program import PRELOAD, DQNConfig, dqn

SMALL = {
    "hidden_sizes": (32,),
    "min_replay_size": 200,
    "batch_size": 32,
    "samples_per_insert": 8.0,
    "evaluation_period": 500,
    "evaluation_episodes": 5,
    "final_evaluation_episodes": 10,
}


def read(directory, node):
    lines = (directory / "metrics" / f"{node}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def check_served(directory, *, servers, actors, limit):
    """What a run with inference servers and two environments an actor leaves behind."""
    counts = json.loads((directory / "checkpoints" / "counts.json").read_text())
    assert limit <= counts["actor_steps"] <= limit + actors * 66
    assert counts["learner_steps"] > 100
    assert read(directory, "evaluator-0")[-1]["evaluator_final"] == 1
    rows = [read(directory, f"inference-{index}")[-1] for index in range(servers)]
    for row in rows:
        assert {"inferences_per_second", "requests_per_batch", "weights_age_s"} <= set(row)
        assert row["weights_version"] >= 0
    actor = read(directory, "actor-0")[-1]
    assert actor["weights_version"] >= 0
    assert actor["weights_age_s"] < 60
    assert actor["actor_steps"] % 2 == 0


@pytest.mark.timeout(180)
def test_served_actors_as_threads(tmp_path):
    config = DQNConfig(
        num_actors=3, environments_per_actor=2, inference_servers=2, max_actor_steps=1500, tensorboard=True, **SMALL
    )
    assert lp.launch(dqn(config), "local_mt", run_directory=tmp_path).wait(170)
    check_served(tmp_path, servers=2, actors=3, limit=1500)
    nodes = {path.name for path in (tmp_path / "tensorboard").iterdir()}
    assert {"learner-0", "evaluator-0", "counter-0", "actor-2", "inference-1"} <= nodes


@pytest.mark.timeout(180)
def test_served_actors_as_processes_with_a_learner_on_two_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    config = DQNConfig(
        num_actors=2, environments_per_actor=2, inference_servers=1, learner_devices=2, max_actor_steps=2000, **SMALL
    )
    run = lp.launch(dqn(config), lp.Processes(preload=PRELOAD), run_directory=tmp_path)
    assert run.wait(170)
    assert set(run.exit_codes.values()) == {0}
    check_served(tmp_path, servers=1, actors=2, limit=2000)


RUN = """
import ast, json, sys
from pathlib import Path
import topology as lp
from topology.agents.dqn.program import PRELOAD, DQNConfig, dqn

directory, settings = Path(sys.argv[1]), ast.literal_eval(sys.argv[2])


def replay_size():
    try:
        rows = (directory / "metrics" / "learner-0.jsonl").read_text().splitlines()
        return json.loads(rows[-1])["replay_size"]
    except FileNotFoundError:
        return 0


def saved():
    return max((int(path.name) for path in (directory / "checkpoints/replay/replay-0").glob("[0-9]*")), default=0)


if __name__ == "__main__":
    run = lp.launch(dqn(DQNConfig(**settings)), lp.Processes(preload=PRELOAD), run_directory=directory)
    full = None
    while not run.wait(0.1):
        if full is None and replay_size() >= 1000:
            full = saved()
        if full is not None and saved() >= full + 2:  # begun and ended since
            print("saved", flush=True)
            full = sys.maxsize
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_that_was_killed_goes_on_with_counts_weights_and_replay(tmp_path):
    directory = tmp_path / "run"
    settings = SMALL | {"num_actors": 2, "checkpoint_replay": True, "checkpoint_period_s": 0.5, "max_actor_steps": None}
    script = subprocess.Popen(
        [sys.executable, "-c", RUN, str(directory), repr(settings)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert any(line == "saved\n" for line in script.stdout), "it ended before it had saved"
    finally:
        for process in [*psutil.Process(script.pid).children(recursive=True), script]:
            process.send_signal(signal.SIGKILL)
        script.communicate(timeout=20)

    counts = json.loads((directory / "checkpoints" / "counts.json").read_text())
    states = directory / "checkpoints" / "learner"
    step = max(int(path.stem) for path in states.glob("*.npz"))
    earlier = len(read(directory, "learner-0"))
    assert step > 0
    limit = counts["actor_steps"] + 600
    config = DQNConfig(**(settings | {"max_actor_steps": limit}))
    assert lp.launch(dqn(config), lp.Processes(preload=PRELOAD), run_directory=directory).wait(120)

    rows = read(directory, "learner-0")[earlier:]
    assert rows[0]["replay_size"] >= 1000, "a table that began empty would have about 700 steps at most"
    steps = [row["learner_steps"] for row in rows]
    assert step <= steps[0]
    assert steps == sorted(steps)
    assert max(int(path.stem) for path in states.glob("*.npz")) >= steps[-1]
    after = json.loads((directory / "checkpoints" / "counts.json").read_text())
    assert limit <= after["actor_steps"] <= limit + 2 * 64
    assert after["learner_steps"] >= counts["learner_steps"]
    totals = [row["actor_steps"] for row in read(directory, "counter-0") if "actor_steps" in row]
    assert totals == sorted(totals)
