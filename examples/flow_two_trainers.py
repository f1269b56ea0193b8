"""PPO and DQN learn side by side: two policies in one environment, each with the plan of its own kind.

python examples/flow_two_trainers.py
"""

from topology.agents.core.seeding import derive_seed
from topology.agents.flow.actor_critic import make_actor_critic
from topology.agents.flow.config import DQNConfig, PPOConfig
from topology.agents.flow.plans import update_priorities
from topology.agents.flow.q_learning import make_q_policy
from topology.agents.flow.sampler import FragmentSampler, TransitionSampler
from topology.agents.flow.side_by_side import SideBySide
from topology.environments import make_environment
from topology.environments.specs import make_environment_spec
from topology.nodes import flow

PPO, DQN = PPOConfig(max_actor_steps=40_000), DQNConfig(max_actor_steps=40_000)


def two_trainers_plan(workers, config):
    for_ppo, for_dqn = flow.ParallelRollouts(workers, mode="bulk_sync").duplicate(2)
    buffer = flow.LocalReplayBuffer(learning_starts=1_000, capacity=20_000, replay_batch_size=256, seed=0)
    store = for_dqn.for_each(flow.SelectExperiences(["dqn"])).for_each(flow.StoreToReplayBuffer(local_buffer=buffer))
    train = flow.Replay(local_buffer=buffer).for_each(flow.TrainOneStep(workers, ["dqn"], sgd_minibatch_size=64))
    train = train.for_each(update_priorities(buffer)).for_each(flow.UpdateTargetNetwork(workers, 500, policies=["dqn"]))
    dqn = flow.Concurrently([store, train], mode="round_robin", output_indexes=[1], round_robin_weights=[1, 8])
    ppo = for_ppo.for_each(flow.SelectExperiences(["ppo"])).combine(flow.ConcatBatches(1_024))
    ppo = ppo.for_each(flow.StandardizeFields(["advantages"]))
    ppo = ppo.for_each(flow.TrainOneStep(workers, ["ppo"], num_sgd_iter=6, sgd_minibatch_size=256))
    merged = flow.Concurrently([ppo, dqn], mode="async", output_indexes=[1])
    return flow.StandardMetricsReporting(merged, workers, config)


def make_worker(index):
    spec = make_environment_spec(make_environment("catch", seed=0))
    ppo, dqn = make_actor_critic(PPO, spec, seed=1), make_q_policy(DQN, spec, seed=2)

    def environments(use):
        return [make_environment("catch", seed=derive_seed(index, use, i)) for i in range(8)]

    both = SideBySide(
        ppo=FragmentSampler(ppo, lambda: environments(0), 16, discount=0.99, trace_decay=0.95),
        dqn=TransitionSampler(dqn, lambda: environments(1), 16, n_step=3, discount=0.99),
    )
    return flow.RolloutWorker({"ppo": ppo, "dqn": dqn}, both, worker_index=index)


def main(steps=40_000):
    workers = flow.WorkerSet(make_worker(0), [make_worker(1), make_worker(2)])
    with flow.Plan(two_trainers_plan, {"timesteps_per_iteration": steps // 10}).build(workers) as plan:
        for _, result in zip(range(10), plan, strict=False):
            print(f"{result['timesteps_total']:6d} steps, mean return {result['episode_reward_mean']:.2f}")
    return result


if __name__ == "__main__":
    main()
