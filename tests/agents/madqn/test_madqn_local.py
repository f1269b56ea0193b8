"""MADQN in one process: the same run twice, and a game that only a team can win."""

import jax
import numpy as np
import pytest

from topology.agents.core.local import LocalRun, run_local
from topology.agents.madqn.program import MADQN, MADQNConfig

SMALL = {
    "hidden_sizes": (16,),
    "mixing_size": 8,
    "num_actors": 1,
    "min_replay_size": 50,
    "target_update_period": 50,
    "learning_rate": 5e-3,
    "final_learning_rate": 5e-3,
    "epsilon_min": 1.0,
    "evaluation_period": 10_000,
    "final_evaluation_episodes": 5,
}


def test_the_same_seed_gives_the_same_run_to_the_bit():
    def weights(seed):
        config = MADQNConfig(**SMALL, environment="switch_riddle", recurrent=True, memory_size=8, seed=seed)
        run = LocalRun(MADQN(config))
        for _ in range(500):
            run.step()
        variables = run.learner.get_variables(["policy"])
        run.close()
        assert variables.version >= 8
        return jax.tree.leaves(variables.values[0])

    for one, two in zip(weights(1), weights(1), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(("mixing", "expected"), [("vdn", 7.0), ("qmix", 8.0)])
def test_the_two_step_game_with_partners_that_act_at_random(mixing, expected):
    """The result of the QMIX paper: a sum of values cannot say that 8 is there for the taking."""
    config = MADQNConfig(**SMALL, environment="two_step", mixing=mixing, max_actor_steps=2_000)
    assert run_local(MADQN(config)).evaluations[-1][1].mean_return == expected
