"""The local IMPALA of dm-acme: its own test of it is skipped, since it hung on the original replay."""

from __future__ import annotations

from typing import Any

import acme
import launchpad as lp
import numpy as np
import sonnet as snt
from absl import app
from acme import specs
from acme.agents.tf import impala
from acme.testing import fakes
from acme.tf import networks


def main(_: Any) -> None:
    """Twenty episodes, learning along the way."""
    environment = fakes.DiscreteEnvironment(num_actions=5, num_observations=10, obs_dtype=np.float32, episode_length=10)
    spec = specs.make_environment_spec(environment)
    head = networks.PolicyValueHead(spec.actions.num_values)
    network = snt.DeepRNN([snt.Flatten(), snt.LSTM(20), snt.nets.MLP([50, 50]), head])
    agent = impala.IMPALA(environment_spec=spec, network=network, sequence_length=3, sequence_period=3, batch_size=6)
    acme.EnvironmentLoop(environment, agent).run(num_episodes=20)
    print("OK", lp.LaunchType.TEST_MULTI_THREADING.value, flush=True)


if __name__ == "__main__":
    app.run(main)
