"""What plays, what is made of that, what learns from it, and what is saved."""

from types import SimpleNamespace

import dm_env
import numpy as np
import pytest
from dm_env import specs

from topology.agents.core.policy import PolicyOutput
from topology.agents.scaleout.acting import Acting
from topology.agents.scaleout.config import ScaleOutDQNConfig, ScaleOutPPOConfig
from topology.agents.scaleout.dqn import DQN, transitions
from topology.agents.scaleout.normalising import RETURNS, Normaliser
from topology.agents.scaleout.playing import Played, Player, Step
from topology.agents.scaleout.ppo import PPO
from topology.agents.scaleout.ring import Ring
from topology.agents.scaleout.trainer import Reporter, Trainer
from topology.agents.scaleout.trees import flatten, unflatten
from topology.context import StopToken
from topology.environments import make_environment
from topology.environments.specs import make_environment_spec
from topology.errors import ProgramError, ProgramStopped
from topology.nodes.store.experience import Experience
from topology.nodes.store.policies import Policy
from topology.testing import ManualClock


class Corridor(dm_env.Environment):
    """Episodes of a given length; the reward is the number of the step, the observation counts all steps."""

    def __init__(self, length, *, cut=False):
        self.length, self.cut = length, cut
        self.at, self.resets = 0, 0

    def reset(self):
        self.at, self.resets = 0, self.resets + 1
        return dm_env.restart(np.array([0.0], np.float32))

    def step(self, action):
        self.at += 1
        observation = np.array([float(self.at)], np.float32)
        if self.at < self.length:
            return dm_env.transition(float(self.at), observation)
        end = dm_env.truncation if self.cut else dm_env.termination
        return end(float(self.at), observation)

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)


class Counting:
    """A policy of which there is a new number for every action."""

    number = 0

    def __call__(self, observations):
        self.number += 1
        self.shape = observations.shape
        return PolicyOutput(np.zeros(len(observations), np.int32), {"logits": np.zeros((len(observations), 2))})


def make_player(lengths, **options):
    act = Counting()
    environments = [Corridor(length) for length in lengths]
    return Player(environments, act, lambda: act.number, discount=0.5, **options), act, environments


def test_steps_are_shared_by_the_environments_and_episodes_go_on():
    player, _, environments = make_player([3, 5])
    played = player.play_steps(8)
    assert [len(steps) for steps in played.steps] == [4, 4]
    assert (played.num_steps, played.oldest) == (8, 1)
    assert [(episode.episode_return, episode.episode_length) for episode in played.episodes] == [(6.0, 3)]
    again = player.play_steps(2)
    assert again.oldest == 5
    assert [episode.episode_length for episode in again.episodes] == [5]
    assert [environment.resets for environment in environments] == [2, 1]
    assert [step.returns for step in played.steps[0]] == [1.0, 2.5, 4.25, 1.0]
    assert played.steps[0][3].observation == 0.0


@pytest.mark.parametrize("episodes", [1, 2, 5])
def test_episodes_are_whole_and_as_many_as_asked(episodes):
    player, act, _ = make_player([2, 4])
    player.play_steps(2)  # what is under way is given up
    played = player.play_episodes(episodes)
    assert len(played.episodes) == episodes
    assert played.num_steps == sum(episode.episode_length for episode in played.episodes)
    assert all(steps[-1].timestep.last() for steps in played.steps if steps)
    assert act.shape == (2, 1), "the policy is asked for another number of observations: it would compile again"


def test_results_alone_keep_no_steps_and_a_stop_ends_the_play():
    player, _, _ = make_player([2], keep_steps=False)
    assert player.play_episodes(3).num_steps == 0
    player, _, _ = make_player([2], should_stop=lambda: True)
    with pytest.raises(ProgramStopped):
        player.play_steps(1)


def steps_of(environment, count, action=1):
    steps, timestep = [], environment.reset()
    for _ in range(count):
        following = environment.step(action)
        extras = {"logits": np.array([0.25, 0.75], np.float32), "values": np.float32(len(steps))}
        steps.append(Step(timestep.observation, np.int32(action), following, 0.0, extras))
        timestep = environment.reset() if following.last() else following
    return steps


def test_transitions_end_with_the_episode_and_with_what_was_played():
    rows = transitions(steps_of(Corridor(3), 5), n_step=2, discount=0.5)
    rewards, factors, last = zip(*((row[2], row[3], float(row[4][0])) for row in rows), strict=True)
    assert rewards == (1 + 0.5 * 2, 2 + 0.5 * 3, 3.0, 1 + 0.5 * 2, 2.0)
    assert factors == (0.25, 0.0, 0.0, 0.25, 0.5)
    assert last == (2.0, 3.0, 3.0, 2.0, 2.0)
    cut = transitions(steps_of(Corridor(3, cut=True), 3), n_step=2, discount=0.5)
    assert [row[3] for row in cut] == [0.25, 0.25, 0.5]  # what is cut off keeps its value


@pytest.fixture(scope="module")
def spec():
    return make_environment_spec(make_environment("catch", seed=0))


def ppo_of(spec, **settings):
    return PPO(ScaleOutPPOConfig(environment="catch", hidden_sizes=(8,), **settings), spec)


def acting_of(algorithm):
    acting = Acting(algorithm.make_policy(3, None), algorithm.make_normaliser())
    arrays = algorithm.make_learner(5).policy_arrays()
    acting.load(Policy(0, arrays, {}))
    return acting


def play(algorithm, acting, steps, count=2):
    environments = [make_environment("catch", seed=seed) for seed in range(count)]
    return Player(environments, acting.act, lambda: acting.number, discount=0.9).play_steps(steps)


def experience(algorithm, acting, played, identity="0"):
    meta = {"steps": played.num_steps, "episodes": len(played.episodes)}
    return Experience(algorithm.make_columns(played, acting), meta, whole_episode=False, id=identity)


def test_advantages_do_not_reach_from_one_sequence_into_the_next(spec):
    algorithm = ppo_of(spec, normalise_rewards=True)
    acting = acting_of(algorithm)
    played = play(algorithm, acting, 40)
    together = algorithm.make_columns(played, acting)
    for name in ("advantages", "value_targets", "obs", RETURNS):
        apart = [algorithm.make_columns(Played([steps], [], 0), acting)[name] for steps in played.steps]
        np.testing.assert_allclose(together[name], np.concatenate(apart), rtol=1e-5)
    assert {len(column) for column in together.values()} == {40}


def test_a_learner_that_is_restored_goes_on_alike(spec):
    for algorithm in (
        ppo_of(spec, normalise_observations=True, normalise_rewards=True, minibatch_size=16),
        DQN(
            ScaleOutDQNConfig(
                environment="catch",
                hidden_sizes=(8,),
                min_replay_size=20,
                batch_size=8,
                updates_per_batch=2,
                samples_per_insert=2.0,
                target_update_period=16,
                normalise_observations=True,
            ),
            spec,
        ),
    ):
        acting = acting_of(algorithm)
        first, second = (experience(algorithm, acting, play(algorithm, acting, 40)) for _ in range(2))
        learner = algorithm.make_learner(7)
        learner.take([first])
        assert learner.learn() is not None
        state, arrays = learner.state_arrays(), learner.policy_arrays()
        other = algorithm.make_learner(7)
        other.restore(arrays, state)
        assert (other.steps, other.episodes, other.updates) == (40, learner.episodes, learner.updates)
        for one in (learner, other):
            one.take([second])
            while one.learn() is not None:
                pass
        assert learner.updates == other.updates
        for name, array in learner.policy_arrays().items():
            np.testing.assert_allclose(array, other.policy_arrays()[name], err_msg=name)


def test_dqn_learns_as_often_as_it_is_told_and_says_when_it_has_enough(spec):
    config = ScaleOutDQNConfig(
        environment="catch", hidden_sizes=(8,), min_replay_size=10, batch_size=8, updates_per_batch=2
    )
    algorithm = DQN(config, spec)
    acting = acting_of(algorithm)
    learner = algorithm.make_learner(0)
    assert learner.wants_more
    assert learner.learn() is None
    learner.take([experience(algorithm, acting, play(algorithm, acting, 20))])
    assert not learner.wants_more
    calls = 0
    while learner.learn() is not None:
        calls += 1
    assert calls == (20 - 10) * config.samples_per_insert // 16
    assert learner.wants_more


def test_workers_of_dqn_explore_differently_and_the_evaluator_not(spec):
    algorithm = DQN(ScaleOutDQNConfig(environment="catch", num_workers=2, environments_per_worker=2), spec)
    epsilons = [algorithm.make_policy(0, worker).exploration for worker in (0, 1)]
    assert len({float(epsilon) for pair in epsilons for epsilon in pair}) == 4
    assert algorithm.make_policy(0, None).exploration == 0.0


def test_statistics_travel_with_the_policy():
    trainer, worker = (Normaliser((2,), observations=True, rewards=True) for _ in range(2))
    rows = np.array([[0.0, 5.0], [2.0, 5.0]], np.float32)
    np.testing.assert_array_equal(worker(rows), rows)  # of nothing yet: as they are
    trainer.add(observations=rows, returns=np.array([1.0, 5.0]))
    worker.load(trainer.arrays())
    np.testing.assert_allclose(worker(rows), [[-1.0, 0.0], [1.0, 0.0]], atol=1e-4)
    assert worker.reward_factor == pytest.approx(0.5)
    assert worker(np.array([[1e9, 0.0]]))[0, 0] == 10.0
    worker.load({})
    assert worker.reward_factor == pytest.approx(1.0)
    plain = Normaliser((2,), observations=False, rewards=False)
    plain.add(observations=rows, returns=None)
    assert plain(rows) is rows
    assert (plain.arrays(), plain.reward_factor) == ({}, None)


def test_a_ring_keeps_the_latest_rows():
    ring = Ring(4)
    with pytest.raises(IndexError, match="nothing can be drawn"):
        ring.draw(1, np.random.default_rng(0))
    for start in (0, 3, 6):
        ring.add({"x": np.arange(start, start + 3), "y": np.ones((3, 2))})
    assert ring.columns()["x"].tolist() == [5, 6, 7, 8]
    assert len(ring) == 4
    drawn = ring.draw(100, np.random.default_rng(0))
    assert set(drawn["x"]) == {5, 6, 7, 8}
    assert drawn["y"].shape == (100, 2)
    ring.add({"x": np.arange(10), "y": np.ones((10, 2))})
    assert ring.columns()["x"].tolist() == [6, 7, 8, 9]
    with pytest.raises(ValueError, match="were expected"):
        ring.add({"z": np.arange(3)})


def test_a_policy_of_another_network_is_refused():
    arrays = flatten({"a": np.zeros((2, 3)), "b": {"c": np.ones(1)}}, "weights")
    assert sorted(arrays) == ["weights/a", "weights/b/c"]
    assert unflatten({"a": np.ones((2, 3)), "b": {"c": np.zeros(1)}}, arrays, "weights")["b"]["c"] == 1.0
    with pytest.raises(ProgramError, match=r"weights/a: \(2, 3\) there, \(4, 3\) here"):
        unflatten({"a": np.ones((4, 3)), "b": {"c": np.zeros(1)}}, arrays, "weights")
    with pytest.raises(ProgramError, match=r"weights/b/c: .* there, nothing here"):
        unflatten({"a": np.ones((2, 3))}, arrays, "weights")


def test_a_trainer_that_goes_on_counts_its_own_steps_alone_into_its_rates():
    rows, clock = [], ManualClock()
    learner = SimpleNamespace(steps=0, episodes=0, updates=0)
    saver = SimpleNamespace(number=7, begins_anew=False)
    training = SimpleNamespace(begin=lambda: setattr(learner, "steps", 1000), saver=saver, counts=dict)
    reporter = Reporter(SimpleNamespace(write=lambda **row: rows.append(row)), None, clock=clock)
    Trainer(
        training=training,
        learner=learner,
        rounds=None,
        reporter=reporter,
        max_steps=None,
        stops_program=False,
        report=lambda text: None,
        stop=StopToken(),
    )
    learner.steps = 1010
    clock.advance(10.0)
    reporter.write(training, learner)
    assert (rows[0]["actor_steps"], rows[0]["steps_per_second"]) == (1010, 1.0)
