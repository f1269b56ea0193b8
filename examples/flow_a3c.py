"""A3C as an execution plan: workers compute gradients of what they play; who computed them gets the new weights.

python examples/flow_a3c.py
"""

import functools

import topology as lp
from topology.agents.flow.plans import a3c_plan
from topology.agents.flow.program import A2CConfig, FlowA2C
from topology.nodes.flow import Plan
from topology.nodes.flow.node import PlanNode, WorkerNode


def report(result: dict) -> None:
    print(f"{result['timesteps_total']:6d} steps, mean return {result['episode_reward_mean']:.2f}", flush=True)


def enough(limit: int, result: dict) -> bool:
    return result["timesteps_total"] >= limit


def build(steps: int = 40_000, workers: int = 2) -> lp.Program:
    """The graph: workers, and the plan, which applies the gradients one by one."""
    # Policies and samplers are those of A2C; only the plan is another one.
    agent = FlowA2C(A2CConfig(environment="catch", max_actor_steps=steps, num_actors=workers))
    plan = Plan(a3c_plan, {"timesteps_per_iteration": steps // 10})
    program = lp.Program("a3c")
    with program.group("worker"):
        handles = [program.add_node(WorkerNode(agent.worker, index)) for index in range(1, workers + 1)]
    with program.group("plan"):
        local = functools.partial(agent.worker, 0)
        program.add_node(PlanNode(plan, local, handles, report=report, is_done=functools.partial(enough, steps)))
    return program


if __name__ == "__main__":
    lp.launch(build(), lp.LaunchType.LOCAL_MULTI_PROCESSING).wait()
