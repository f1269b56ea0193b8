"""Trains DMPO to swing a pendulum up and hold it there. Ends by itself.

    python examples/dmpo_pendulum.py [actor steps]

The same from the command line: `topology launch dmpo`.
"""

import sys

import topology as lp
from topology.agents.dmpo.program import PRELOAD, DMPOConfig, dmpo


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    # Returns of the pendulum lie between -1000 and 0: that is what the critic is told to tell apart.
    config = DMPOConfig(environment="gym:Pendulum-v1", min_return=-1_000.0, max_return=0.0, max_actor_steps=steps)
    program = dmpo(config)
    print(program.graph())
    run = lp.launch(program, lp.Processes(preload=PRELOAD))
    run.wait()
    print("the nodes' logs, metrics and checkpoints are in", run.run_directory)


if __name__ == "__main__":
    main()
