"""Agents whose nodes are killed: what is started again goes on, and nobody else dies of it."""

import json
import os
import signal

import pytest

import topology as lp
from topology.agents.dqn.program import PRELOAD, DQNConfig, dqn, restarts
from topology.clock import Deadline

SMALL = {
    "num_actors": 2,
    "hidden_sizes": (32,),
    "min_replay_size": 200,
    "batch_size": 32,
    "samples_per_insert": 4.0,
    "max_restarts": 1,
    "max_actor_steps": 100_000_000,
    "checkpoint_period_s": 0.5,
    "evaluation_episodes": 2,
}
PATIENCE_S = 120.0

pytestmark = pytest.mark.slow


def counts(directory):
    path = directory / "checkpoints" / "counts.json"
    return json.loads(path.read_text()) if path.exists() else {}


def wait(run, what, happened):
    deadline = Deadline(PATIENCE_S)
    while not happened():
        assert not run.wait(0.1), f"the program ended before {what}"
        assert not deadline.expired, f"after {PATIENCE_S} s not yet {what}: {run.report()}"


def wait_for_progress(run, directory, what):
    before = counts(directory)

    def progressed():
        now = counts(directory)
        return all(now.get(name, 0) > before.get(name, 0) + 300 for name in ("actor_steps", "learner_steps"))

    wait(run, what, progressed)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("servers", [0, 1], ids=["actors with weights", "served actors"])
def test_every_node_may_be_killed_and_only_that_one_is_started_again(tmp_path, servers):
    config = DQNConfig(inference_servers=servers, **SMALL)
    run = lp.launch(dqn(config), lp.Processes(preload=PRELOAD), run_directory=tmp_path, restarts=restarts(config))
    with run:
        killed = []
        for worker in run.report().workers:
            wait_for_progress(run, tmp_path, f"progress before {worker.name} was killed")
            os.kill(run.report()[worker.name].pid, signal.SIGKILL)
            killed.append(worker.name)
            wait(run, f"{worker.name} runs again", lambda name=worker.name: run.report()[name].restarts == 1)
            assert [w.name for w in run.report().workers if w.restarts] == killed
        wait_for_progress(run, tmp_path, "progress at the end")
    assert run.report().state == "stopped"
    assert [w.restarts for w in run.report().workers] == [1] * len(killed)
