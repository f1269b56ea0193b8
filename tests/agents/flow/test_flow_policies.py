"""What the policies of the plans learn by, against values worked out by hand; samplers; schedules."""

import functools

import jax
import numpy as np
import pytest

from topology.agents.core.exploration import epsilon_ladder
from topology.agents.flow.actor_critic import add_advantages, make_actor_critic
from topology.agents.flow.config import A2CConfig, DQNConfig, IMPALAConfig, PPOConfig
from topology.agents.flow.policy import Schedule
from topology.agents.flow.program import FlowDQN
from topology.agents.flow.q_learning import make_q_policy
from topology.agents.flow.runner import play
from topology.agents.flow.sampler import FragmentSampler, TransitionSampler
from topology.context import StopToken
from topology.environments import make_environment
from topology.environments.specs import make_environment_spec
from topology.errors import ProgramError
from topology.nodes.flow import RolloutWorker, SampleBatch, WorkerSet
from topology.nodes.flow.checkpoints import StateFiles
from topology.nodes.flow.sgd import learn

SMALL = {"hidden_sizes": (8,), "environments_per_actor": 2, "fragment_length": 12, "environment": "catch"}


@functools.cache
def spec():
    return make_environment_spec(make_environment("catch", seed=0))


def environments(count=2):
    return [make_environment("catch", seed=i) for i in range(count)]


def sampler_of(policy, trace_decay=0.9, length=12):
    return FragmentSampler(policy, environments, length, discount=0.99, trace_decay=trace_decay)


@pytest.fixture(scope="module")
def ppo():
    return make_actor_critic(PPOConfig(**SMALL), spec(), seed=0)


@pytest.fixture(scope="module")
def impala():
    return make_actor_critic(IMPALAConfig(**SMALL, discount=0.99, trace_decay=1.0), spec(), seed=0)


@pytest.fixture(scope="module")
def dqn():
    return make_q_policy(DQNConfig(**SMALL), spec(), seed=0, exploration=1.0)


def equal(a, b, tolerance=1e-5):
    return all(np.allclose(x, y, atol=tolerance) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


# --- advantages -----------------------------------------------------------------------------------------------------


def test_advantages_by_hand():
    none = np.zeros((1, 3), bool)
    arguments = {
        "rewards": np.array([[1.0, 2.0, 3.0]], np.float32),
        "values": np.array([[0.5, 1.0, 1.5]], np.float32),
        "next_values": np.array([[1.0, 1.5, 2.0]], np.float32),
        "discount": 0.5,
        "trace_decay": 0.5,
    }
    # errors: 1 + .5 - .5, 2 + .75 - 1, 3 + 1 - 1.5; later ones count a quarter
    advantages, targets = add_advantages(**arguments, terminateds=none, truncateds=none)
    assert advantages[0] == pytest.approx([1.0 + 0.25 * (1.75 + 0.25 * 2.5), 1.75 + 0.25 * 2.5, 2.5])
    assert targets == pytest.approx(advantages + arguments["values"])
    middle = np.array([[False, True, False]])
    ended, _ = add_advantages(**arguments, terminateds=middle, truncateds=none)
    assert ended[0] == pytest.approx([1.0 + 0.25 * 1.0, 1.0, 2.5])  # nothing after it, and its value is 0
    cut, _ = add_advantages(**arguments, terminateds=none, truncateds=middle)
    assert cut[0] == pytest.approx([1.0 + 0.25 * 1.75, 1.75, 2.5])  # nothing after it, but its value counts


def test_on_policy_v_trace_gives_the_n_step_returns(impala):
    batch = sampler_of(impala, trace_decay=None).sample()
    algorithm, state = impala._algorithm, impala._state
    values = algorithm._apply(state.params, batch["obs"])[1]
    next_values = np.asarray(algorithm._apply(state.params, batch["new_obs"])[1])
    _, targets = algorithm._vtrace(batch, values, next_values, np.ones(batch.count, np.float32))

    def by_fragment(column):
        return np.asarray(column).reshape(2, 12)

    _, expected = add_advantages(
        rewards=by_fragment(batch["rewards"]),
        values=by_fragment(values),
        next_values=by_fragment(next_values),
        terminateds=by_fragment(batch["terminateds"]),
        truncateds=by_fragment(batch["truncateds"]),
        discount=0.99,
        trace_decay=1.0,
    )
    assert by_fragment(targets) == pytest.approx(expected, abs=1e-4)


def test_nothing_reaches_over_the_end_of_an_episode(impala):
    """What happens after an episode was cut off, in the same fragment, changes no target before."""
    batch = SampleBatch({name: column.copy() for name, column in sampler_of(impala, None).sample().items()})
    batch["terminateds"][:], batch["truncateds"][:] = False, False
    batch["truncateds"][5] = True
    ones = np.ones(batch.count, np.float32)

    def targets():
        _, values, next_values = impala._algorithm._outputs(impala._state.params, batch)
        return np.asarray(impala._algorithm._vtrace(batch, values, next_values, ones)[1])

    before = targets()
    batch["rewards"][6:12] += 100.0
    after = targets()
    assert (after[:6] == before[:6]).all()
    assert (after[6:12] > before[6:12] + 50).all()


# --- memory ---------------------------------------------------------------------------------------------------------


def new_recurrent(seed):
    config = IMPALAConfig(**SMALL | {"environment": "memory_chain:4"}, lstm_size=5, learning_rate=1e-2)
    environment = make_environment("memory_chain:4", seed=0)
    return make_actor_critic(config, make_environment_spec(environment), seed=seed)


@pytest.fixture(scope="module")
def recurrent():
    return new_recurrent(0)


def memory_sampler(policy):
    def make():
        return [make_environment("memory_chain:4", seed=i) for i in range(2)]

    return FragmentSampler(policy, make, 12, discount=0.99, trace_decay=None)


def test_a_memory_is_learned_as_it_was_played(recurrent):
    """Through the ends of episodes and of fragments: the learner comes to what the actor came to, step by step."""
    sampler = memory_sampler(recurrent)
    ends = 0
    for _ in range(3):
        batch = sampler.sample()
        assert batch["state_in"].shape == (24, 2, 5)
        logits, values, next_values = recurrent._algorithm._outputs(recurrent._state.params, batch)
        assert np.asarray(logits) == pytest.approx(batch["action_dist_inputs"], abs=1e-5)
        ended = batch["terminateds"] | batch["truncateds"]
        inside = ~ended
        inside[[11, 23]] = False
        rows = np.flatnonzero(inside)
        assert np.asarray(next_values)[rows] == pytest.approx(np.asarray(values)[rows + 1], abs=1e-5)
        begins = np.flatnonzero(ended[:-1] & (np.arange(23) != 11)) + 1
        assert not batch["state_in"][begins].any()  # an episode begins with nothing remembered
        ends += ended.sum()
    assert batch["state_in"][[0, 12]].any()  # a fragment goes on with what the one before left
    assert ends > 3


def test_a_memory_learns_and_travels(recurrent, tmp_path):
    batch = memory_sampler(recurrent).sample()
    state = recurrent.get_state()
    files, other = StateFiles(tmp_path), new_recurrent(1)
    files.save(state)
    other.set_state(files.newest())
    other.learn_on_batch(batch)
    told = recurrent.learn_on_batch(batch)["learner_stats"]
    assert told["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert told["kl"] == pytest.approx(0.0, abs=1e-5)
    before, after = (leaves["leaves"] for leaves in (state, recurrent.get_state()))
    assert all((before[name] != after[name]).any() for name in before if name.startswith("params") and "memory" in name)
    assert equal(other.get_state()["leaves"], after, 0.0)  # the same update of the same state
    recurrent.set_state(state)


def test_memory_is_part_of_an_evaluation(recurrent):
    environments = [make_environment("memory_chain:4", seed=i) for i in range(4)]
    assert play(recurrent, environments, StopToken()) is not None


def test_fragments_are_not_torn_apart(impala, recurrent):
    for policy, batch in ((impala, sampler_of(impala, None).sample()), (recurrent, memory_sampler(recurrent).sample())):
        with pytest.raises(ValueError, match="fragments of 12 rows in their order"):
            policy.learn_in_passes(batch, num_passes=2, minibatch_size=12, num_devices=1, seed=0)


# --- learning -------------------------------------------------------------------------------------------------------


def test_gradients_applied_are_the_update(ppo):
    batch = sampler_of(ppo).sample()
    state = ppo.get_state()
    gradients, info = ppo.compute_gradients(batch)
    assert equal(ppo.get_state()["leaves"], state["leaves"])  # nothing has changed
    ppo.apply_gradients(gradients)
    applied = ppo.get_state()
    ppo.set_state(state)
    told = ppo.learn_on_batch(batch)["learner_stats"]
    assert equal(ppo.get_state()["leaves"], applied["leaves"])
    assert not equal(ppo.get_state()["leaves"], state["leaves"])
    assert told["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert told["kl"] == pytest.approx(0.0, abs=1e-5)
    assert info["learner_stats"]["entropy"] == pytest.approx(told["entropy"])
    ppo.set_state(state)


def test_passes_over_minibatches_learn(ppo):
    batch = sampler_of(ppo).sample()
    state = ppo.get_state()
    workers = WorkerSet(RolloutWorker(ppo))
    random = np.random.default_rng(0)
    settings = {"policies": None, "num_devices": 1, "random": random}
    info = learn(workers.local_worker(), batch, num_passes=3, minibatch_size=8, **settings)
    assert abs(info["default_policy"]["learner_stats"]["kl"]) > 0
    assert not equal(ppo.get_state()["leaves"], state["leaves"])
    assert workers.local_worker().weights_version == 1
    ppo.set_state(state)


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_a_state_on_disk_is_the_whole_policy(request, tmp_path, kind):
    """The same actions, the same next update, and the same draws of random numbers."""
    policy = request.getfixturevalue(kind)
    config, make = (PPOConfig, make_actor_critic) if kind == "ppo" else (DQNConfig, make_q_policy)
    batch = (
        sampler_of(policy).sample()
        if kind == "ppo"
        else TransitionSampler(policy, environments, 12, n_step=3, discount=0.9).sample()
    )
    policy.learn_on_batch(batch)
    other = make(config(**SMALL), spec(), seed=0, **({"exploration": 1.0} if kind == "dqn" else {}))
    files = StateFiles(tmp_path)
    files.save(policy.get_state())
    other.set_state(files.newest())
    assert equal(other.get_state()["leaves"], policy.get_state()["leaves"], 0.0)
    observations = np.stack([environment.reset().observation for environment in environments(4)])
    for greedy in (False, True):
        mine, its = (each.act(observations, greedy=greedy).action for each in (policy, other))
        assert mine.tolist() == its.tolist()
    for each in (policy, other):
        each.learn_on_batch(batch)
    assert equal(other.get_state()["leaves"], policy.get_state()["leaves"], 0.0)
    wrong = make(config(**SMALL | {"hidden_sizes": (9,)}), spec(), seed=0)
    with pytest.raises(ProgramError, match="does not fit this program"):
        wrong.set_state(files.newest())


def test_weights_make_the_policy(ppo):
    other = make_actor_critic(PPOConfig(**SMALL), spec(), seed=1)
    observations = np.stack([environment.reset().observation for environment in environments(4)])
    assert not equal(other.act(observations).extras, ppo.act(observations).extras)
    other.set_weights(ppo.get_weights())
    assert equal(other.act(observations).extras, ppo.act(observations).extras)
    assert (other.act(observations, greedy=True).action == ppo.act(observations, greedy=True).action).all()


def test_a_loss_that_is_no_number_is_an_error(ppo):
    batch = sampler_of(ppo).sample()
    state = ppo.get_state()
    broken = SampleBatch(batch, advantages=np.full(batch.count, np.nan, np.float32))
    with pytest.raises(FloatingPointError, match="learning_rate"):
        ppo.learn_on_batch(broken)
    ppo.set_state(state)


def test_schedules_follow_the_steps_of_the_run():
    config = A2CConfig(**SMALL, learning_rate=1.0, final_learning_rate=0.5, entropy_cost=0.1, max_actor_steps=100)
    policy = make_actor_critic(config, spec(), seed=0)
    assert policy.settings == {"learning_rate": 1.0, "entropy_cost": 0.1}
    RolloutWorker(policy).set_global_vars({"timestep": 50})
    assert policy.settings == pytest.approx({"learning_rate": 0.75, "entropy_cost": 0.05})
    policy.on_global_vars_update({"timestep": 1000})
    assert policy.settings == pytest.approx({"learning_rate": 0.5, "entropy_cost": 0.0})
    assert Schedule(3.0, 1.0, None).at(10**9) == 3.0


def test_target_networks_and_errors_of_each_row(dqn):
    sampler = TransitionSampler(dqn, environments, 12, n_step=3, discount=0.9)
    batch = sampler.sample()
    state = dqn.get_state()
    one = dqn.learn_on_batch(batch)["td_error"]
    assert one.shape == (batch.count,)
    dqn.set_state(state)
    size = batch.count // 2
    parts = dqn.learn_in_passes(batch, num_passes=1, minibatch_size=size, num_devices=1, seed=0)["td_error"]
    assert parts.shape == (batch.count,)
    # The first minibatch saw the weights that `one` saw; whatever the order, its rows have the same errors.
    assert np.isclose(parts, one, atol=1e-5).sum() >= size
    assert not equal(dqn._state.params, dqn._state.target)
    dqn.update_target()
    assert equal(dqn._state.params, dqn._state.target)


def test_how_much_a_policy_explores(dqn):
    observations = np.stack([environments(1)[0].reset().observation] * 200)
    assert len(set(dqn.act(observations).action.tolist())) == 3  # epsilon is 1
    assert len(set(dqn.act(observations, greedy=True).action.tolist())) == 1
    half = make_q_policy(DQNConfig(**SMALL), spec(), seed=0, exploration=np.repeat([0.0, 1.0], 100))
    actions = half.act(observations).action.tolist()
    assert len(set(actions[:100])) == 1
    assert len(set(actions[100:])) == 3


def test_workers_share_the_ladder_of_epsilons():
    config = DQNConfig(**SMALL | {"environments_per_actor": 4}, num_actors=3)
    agent = FlowDQN(config)
    ladders = [agent.exploration(index) for index in (1, 2, 3)]
    assert sorted(np.concatenate(ladders)) == pytest.approx(list(epsilon_ladder(12)))
    assert max(map(min, ladders)) < 0.01  # each has those that hardly explore,
    assert min(map(max, ladders)) > 0.1  # and those that do
    assert list(epsilon_ladder(3)) == pytest.approx([0.00066, 0.0162, 0.4], rel=0.01)


# --- samplers -------------------------------------------------------------------------------------------------------


def test_fragments_go_on_where_the_last_one_ended(ppo):
    sampler = sampler_of(ppo, trace_decay=None, length=6)
    first, second = sampler.sample(), sampler.sample()
    for batch in (first, second):
        assert batch.count == 12
        inside = ~(batch["terminateds"] | batch["truncateds"])
        inside[[5, 11]] = False  # the last of each environment
        rows = np.flatnonzero(inside)
        assert (batch["new_obs"][rows] == batch["obs"][rows + 1]).all()
    assert (first["new_obs"][5] == second["obs"][0]).all()
    episodes = sampler.drain_episodes()
    assert episodes[0].length == 9
    assert abs(episodes[0].episode_return) == 1
    assert sampler.drain_episodes() == []


def test_transitions_span_several_steps(dqn):
    sampler = TransitionSampler(dqn, environments, 20, n_step=3, discount=0.9)
    batch = sampler.sample()
    ends = batch["discounts"] == 0
    assert batch["discounts"][~ends] == pytest.approx(0.9**3)
    sizes = np.sort(np.abs(batch["rewards"][ends])).reshape(3, 4)  # of the last 3 steps of each episode
    assert sizes == pytest.approx(np.array([[0.81], [0.9], [1.0]]).repeat(4, axis=1))
    assert ends.sum() == 3 * 4  # 2 episodes in each of 2 environments


def test_rewards_are_scaled_and_returns_are_not(ppo):
    sampler = FragmentSampler(ppo, environments, 9, discount=0.99, trace_decay=None, reward_scale=0.1)
    batch = sampler.sample()
    assert batch["rewards"].dtype == np.float32
    assert sorted(np.abs(batch["rewards"]))[-2:] == pytest.approx([0.1, 0.1])
    assert [abs(episode.episode_return) for episode in sampler.drain_episodes()] == [1.0, 1.0]


def test_a_sampler_recovers(ppo):
    made = []

    def make():
        made.append(environments(1))
        return made[-1]

    sampler = FragmentSampler(ppo, make, 4, discount=0.99, trace_decay=None)
    sampler.sample()
    sampler.recover()
    assert len(made) == 2
    assert sampler.sample().count == 4


class Breaking:
    """An environment that raises once, at one of its steps."""

    def __init__(self, environment, at):
        self._environment, self._left = environment, at

    def __getattr__(self, name):
        return getattr(self._environment, name)

    def step(self, action):
        self._left -= 1
        if not self._left:
            raise OSError("the simulator crashed")
        return self._environment.step(action)


@pytest.mark.parametrize("which", [0, 1])
def test_a_fragment_that_an_error_broke_off_leaves_nothing(impala, which):
    """Those after it have as many rows of each environment as ever, in their order."""

    def make():
        made = environments()
        made[which] = Breaking(made[which], at=4)
        return made

    sampler = FragmentSampler(impala, make, 6, discount=0.99, trace_decay=None)
    with pytest.raises(OSError, match="simulator"):
        sampler.sample()
    for _ in range(2):
        batch = sampler.sample()
        assert batch.count == 12
        goes_on = np.flatnonzero(~(batch["terminateds"] | batch["truncateds"]))
        inside = goes_on[goes_on % 6 != 5]
        assert (batch["new_obs"][inside] == batch["obs"][inside + 1]).all()


def test_playing_ends_with_each_environments_first_episode(ppo):
    mean = play(ppo, environments(4), StopToken())
    assert -1 <= mean <= 1
    stopped = StopToken()
    stopped.set()
    assert play(ppo, environments(1), stopped) is None


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (PPOConfig, {"minibatch_size": 0}),
        (PPOConfig, {"minibatch_size": 9, "devices": 2}),
        (PPOConfig, {"clip_ratio": 0.0}),
        (A2CConfig, {"microbatch_size": 10_000}),
        (A2CConfig, {"learning_rate": 0.0}),
        (PPOConfig, {"devices": 0}),
        (IMPALAConfig, {"num_aggregators": 3}),
        (IMPALAConfig, {"lstm_size": 0}),
        (IMPALAConfig, {"hidden_sizes": (0,)}),
        (DQNConfig, {"min_replay_size": 10**9}),
        (DQNConfig, {"priority_exponent": 1.5}),
        (DQNConfig, {"constant_rate_part": 1.0}),
        (DQNConfig, {"num_actors": -1}),
    ],
)
def test_settings_that_cannot_work(config, wrong):
    name = next(iter(wrong))
    with pytest.raises(ProgramError, match=name):
        config(**wrong)
