"""Every agent's learner on two devices: the numbers of one."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CODE = """
import sys
import jax, numpy as np
from topology.agents.core.local import LocalRun
from topology.agents.dmpo.program import DMPO, DMPOConfig
from topology.agents.dqn.program import DQN, DQNConfig
from topology.agents.impala.program import IMPALA, IMPALAConfig
from topology.agents.madqn.program import MADQN, MADQNConfig
from topology.agents.r2d2.program import R2D2, R2D2Config

SMALL = {"num_actors": 1, "hidden_sizes": (8,), "batch_size": 4, "updates_per_call": 2, "max_actor_steps": 1000}
REPLAY = SMALL | {"min_replay_size": 16, "samples_per_insert": 1.0}
AGENTS = {
    "dmpo": lambda **more: DMPO(DMPOConfig(num_samples=2, **REPLAY, **more)),
    "dqn": lambda **more: DQN(DQNConfig(num_quantiles=4, dueling=True, **REPLAY, **more)),
    "impala": lambda **more: IMPALA(IMPALAConfig(lstm_size=4, sequence_length=4, **SMALL, **more)),
    "madqn": lambda **more: MADQN(MADQNConfig(mixing="qmix", recurrent=True, **REPLAY, **more)),
    "r2d2": lambda **more: R2D2(R2D2Config(lstm_size=4, head_size=4, **REPLAY, **more)),
}


def state_after_two_calls(devices):
    run = LocalRun(AGENTS[sys.argv[1]](learner_devices=devices))
    try:
        while run.learner.steps < 4:
            run.step()
        for leaf in jax.tree.leaves(run.learner.state):
            assert len(leaf.sharding.device_set) == (devices or 1)
        return jax.tree.map(np.asarray, run.learner.state)
    finally:
        run.close()


assert jax.device_count() == 2
one, two = state_after_two_calls(None), state_after_two_calls(2)
for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-5)
print("same", int(one.steps))
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["dmpo", "dqn", "impala", "madqn", "r2d2"])
def test_two_devices_learn_what_one_learns(name):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, name], check=False, env=environment, timeout=580, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["same", "4"]
