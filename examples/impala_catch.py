"""Trains IMPALA on Catch: actors fill a queue, the learner empties it and corrects for the weights they acted with.

    python examples/impala_catch.py

Two actors, a learner, an evaluator and a queue, as processes. Ends by itself, and says how old the weights were.
"""

import json

import topology as lp
from topology.agents.impala.program import PRELOAD, IMPALAConfig, impala


def main() -> None:
    program = impala(IMPALAConfig(environment="catch", num_actors=2, max_actor_steps=100_000))
    print(program.graph())
    run = lp.launch(program, lp.Processes(preload=PRELOAD))
    run.wait()
    lines = (run.run_directory / "metrics" / "learner-0.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "policy_lag_mean" in row]
    mean = sum(row["policy_lag_mean"] for row in rows) / len(rows)
    print(f"policy lag: {mean:.1f} updates on average, {max(row['policy_lag_max'] for row in rows)} at most")
    print("the nodes' logs, metrics and checkpoints are in", run.run_directory)


if __name__ == "__main__":
    main()
