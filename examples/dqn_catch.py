"""Trains DQN on Catch, with four actors, a learner, an evaluator and replay as processes. Ends by itself.

    python examples/dqn_catch.py

The same from the command line: `topology launch dqn --set max_actor_steps=10000`.
"""

import topology as lp
from topology.agents.dqn.program import PRELOAD, DQNConfig, dqn


def main() -> None:
    config = DQNConfig(environment="catch", num_actors=4, max_actor_steps=10_000)
    program = dqn(config)
    print(program.graph())
    run = lp.launch(program, lp.Processes(preload=PRELOAD))
    run.wait()
    print("the nodes' logs, metrics and checkpoints are in", run.run_directory)


if __name__ == "__main__":
    main()
