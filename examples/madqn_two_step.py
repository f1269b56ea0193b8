"""Trains two agents on the two-step game, each by itself and then as a team (QMIX), as processes. Ends by itself.

    python examples/madqn_two_step.py

Partners that act at random make the safe choice look best to each agent alone, and it pays 7; a team finds the 8. From
the command line: `topology launch madqn --environment two_step --set mixing=qmix`.
"""

import json

import topology as lp
from topology.agents.madqn.program import PRELOAD, MADQNConfig, madqn


def train(mixing: str) -> float:
    """The mean return of the final evaluation."""
    config = MADQNConfig(
        environment="two_step", mixing=mixing, epsilon_min=1.0, max_actor_steps=6_000, final_evaluation_episodes=10
    )
    run = lp.launch(madqn(config), lp.Processes(preload=PRELOAD))
    run.wait()
    rows = (run.run_directory / "metrics" / "evaluator-0.jsonl").read_text().splitlines()
    return json.loads(rows[-1])["evaluator_return"]


def main() -> None:
    for mixing in ("none", "qmix"):
        print(f"mixing={mixing}: mean return {train(mixing):.2f}")


if __name__ == "__main__":
    main()
