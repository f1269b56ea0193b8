"""R2D2 in one process: the same run twice, and learning what only a memory can."""

import numpy as np
import pytest

from topology.agents.core.local import LocalRun
from topology.agents.r2d2.program import R2D2, R2D2Config

CONFIG = R2D2Config(
    environment="memory_chain:4",
    seed=3,
    num_actors=2,
    environments_per_actor=2,
    hidden_sizes=(16,),
    lstm_size=16,
    head_size=16,
    burn_in_length=0,
    trace_length=5,
    replay_period=5,
    n_step=3,
    learning_rate=3e-3,
    batch_size=16,
    min_replay_size=32,
    samples_per_insert=8.0,
    target_update_period=25,
    max_actor_steps=4_000,
)


def weights(run):
    variables = run.learner.get_variables(["policy"])
    return variables.version, variables.values[0]["params"]["lstm_recurrent"]


@pytest.mark.timeout(240)
def test_it_learns_what_only_a_memory_can_and_the_same_seed_gives_the_same_run_to_the_bit():
    runs = [LocalRun(R2D2(CONFIG)) for _ in range(2)]
    for _ in range(100):
        for run in runs:
            run.step()
    (version, first), (_, second) = (weights(run) for run in runs)
    assert version > 10
    np.testing.assert_array_equal(first, second)
    runs[1].close()
    while runs[0].counts["actor_steps"] < CONFIG.max_actor_steps:
        runs[0].step()
    assert runs[0].evaluate(30).mean_return == 1.0
    runs[0].close()
