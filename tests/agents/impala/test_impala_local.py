"""IMPALA in one process: the same run twice, and learning."""

import numpy as np

from topology.agents.core.local import LocalRun, run_local
from topology.agents.impala.program import IMPALA, IMPALAConfig

SMALL = IMPALAConfig(
    num_actors=2, environments_per_actor=1, hidden_sizes=(16,), batch_size=2, sequence_length=6, max_actor_steps=2_000
)


def test_the_same_seed_gives_the_same_run_to_the_bit():
    def weights(seed):
        run = LocalRun(IMPALA(IMPALAConfig(**{**vars(SMALL), "seed": seed, "lstm_size": 4})))
        for _ in range(100):
            run.step()
        variables = run.learner.get_variables(["policy"])
        run.close()
        assert variables.version == 22  # 110 rows of each actor, last observations included, 5 rows a sequence
        return variables.values[0]["params"]["torso"]["Dense_0"]["kernel"]

    first, second, other = weights(1), weights(1), weights(2)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_it_learns_catch():
    config = IMPALAConfig(
        num_actors=1,
        environments_per_actor=8,
        hidden_sizes=(64,),
        batch_size=4,
        sequence_length=11,
        reward_scale=1.0,
        learning_rate=5e-3,
        max_actor_steps=12_000,
        evaluation_period=12_000,
        final_evaluation_episodes=50,
    )
    assert run_local(IMPALA(config)).evaluations[-1][1].mean_return >= 0.5  # at random -0.6
