"""Ape-X as an execution plan: workers that explore differently, replay in nodes of its own, a learner in a thread.

python examples/flow_apex.py
"""

import topology as lp
from topology.agents.core.exploration import epsilon_ladder
from topology.agents.flow.program import DQNConfig, FlowDQN
from topology.nodes import flow
from topology.nodes.flow.node import PlanNode, ReplayActorNode, WorkerNode


class ApeX(FlowDQN):
    def exploration(self, index):  # each worker has its own, otherwise it is DQN
        return epsilon_ladder(self.config.num_actors)[index - 1]


def apex_plan(workers, config):
    learner = flow.make_learner_thread(workers.local_worker(), config)
    learner.start()
    given = []  # to the learner, in order: which replay node a batch came from, and where its rows are there

    def remember(pair):
        given.append((pair[0], pair[1].policy_batches["default_policy"]["batch_indexes"]))
        return pair[1]

    def update_priorities(output):
        source, indexes = given.pop(0)
        source.submit("update_priorities", {"default_policy": (indexes, output.info["default_policy"]["td_error"])})
        return output

    replay = workers.replay_actors
    store = flow.ParallelRollouts(workers, mode="async", num_async=2).for_each(flow.StoreToReplayBuffer(actors=replay))
    store = store.zip_with_source_actor().for_each(flow.UpdateWorkerWeights(learner, workers, 200))
    feed = flow.Replay(actors=replay).zip_with_source_actor().for_each(remember).for_each(flow.Enqueue(learner.inqueue))
    update = flow.Dequeue(learner.outqueue, check=learner.is_alive).for_each(update_priorities)
    update = update.for_each(flow.record_steps_trained).for_each(flow.UpdateTargetNetwork(workers, 8_000, True))
    merged = flow.Concurrently([store, feed, update], mode="async", output_indexes=[2])
    return flow.StandardMetricsReporting(merged, workers, config, by_steps_trained=True)


def report(limit, result):
    print(f"{result['timesteps_total']:6d} steps trained, mean return {result['episode_reward_mean']:.2f}", flush=True)
    return result["timesteps_total"] >= limit


def build(steps=200_000, workers=3):
    agent = ApeX(DQNConfig(environment="catch", num_actors=workers, max_actor_steps=None))
    plan = flow.Plan(apex_plan, {"timesteps_per_iteration": steps // 10, "learner_queue_size": 4})
    program = lp.Program("apex")
    handles = [program.add_node(WorkerNode(agent.worker, i), "worker") for i in range(1, workers + 1)]
    replay = [program.add_node(ReplayActorNode(learning_starts=500, replay_batch_size=64), "replay") for _ in range(2)]
    settings = {"replay_actors": replay, "is_done": lambda result: report(steps, result)}
    program.add_node(PlanNode(plan, lambda: agent.worker(0), handles, **settings), "plan")
    return program


if __name__ == "__main__":
    lp.launch(build(), lp.LaunchType.LOCAL_MULTI_PROCESSING).wait()
