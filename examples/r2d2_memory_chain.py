"""R2D2 on a memory chain: a bit is shown once, and asked for ten steps later. Ends by itself.

    python examples/r2d2_memory_chain.py

Without a memory the mean return is 0, whatever is learned: `topology launch dqn -e memory_chain:10` shows it.
"""

import topology as lp
from topology.agents.r2d2.program import PRELOAD, R2D2Config, r2d2


def main() -> None:
    config = R2D2Config(
        environment="memory_chain:10",
        num_actors=2,
        max_actor_steps=6_000,
        evaluation_period=1_000,
    )
    program = r2d2(config)
    print(program.graph())
    run = lp.launch(program, lp.Processes(preload=PRELOAD))
    run.wait()
    print("the nodes' logs, metrics and checkpoints are in", run.run_directory)


if __name__ == "__main__":
    main()
