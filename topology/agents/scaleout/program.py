"""Agents scaled out, as programs: a trainer, rollout workers, an evaluator, and where experience waits.

    import topology as lp
    from topology.agents.scaleout.program import ScaleOutPPOConfig, ppo
    lp.launch(ppo(ScaleOutPPOConfig(num_workers=4)), "local_mp", restarts={"trainer": 3, "worker": 3}).wait()

Modules that load JAX are imported in the nodes.
"""

from __future__ import annotations

import functools
import importlib
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import topology as lp
from topology.agents.core.metrics import make_writer
from topology.agents.core.seeding import derive_seed
from topology.agents.scaleout.agent_config import ScaleOutAgentConfig, load_agent
from topology.agents.scaleout.config import (
    ScaleOutDQNConfig,
    ScaleOutPPOConfig,
    ScaleOutSettings,
    Synchronization,
)
from topology.agents.scaleout.patience import patience_ends
from topology.context import get_context
from topology.environments import EnvironmentFactory, make_environment
from topology.environments.specs import make_environment_spec, num_discrete_actions
from topology.program import Program

if TYPE_CHECKING:
    from topology.agents.scaleout.algorithm import Algorithm
    from topology.agents.scaleout.evaluator import PolicyEvaluator
    from topology.agents.scaleout.trainer import Trainer
    from topology.agents.scaleout.workers import AsyncWorker, SyncWorker

__all__ = [
    "PRELOAD",
    "ScaleOutAgent",
    "ScaleOutAgentConfig",
    "ScaleOutDQNConfig",
    "ScaleOutPPOConfig",
    "ppo",
    "restarts",
    "scaleout",
    "scaleout_dqn",
]

PRELOAD = (
    "topology.agents.scaleout.agent_algorithm",
    "topology.agents.scaleout.dqn",
    "topology.agents.scaleout.ppo",
    "topology.environments.gymnasium",
)
"""Modules that a launcher of processes may import once for all nodes, before it forks them: they start nothing."""

ConfigT = TypeVar("ConfigT", bound=ScaleOutSettings)


def ppo(config: ScaleOutPPOConfig) -> Program:
    """PPO with rollout workers in SYNC: every batch is made by exactly the newest policy."""
    return ScaleOutAgent(config, "topology.agents.scaleout.ppo:PPO").build("ppo")


def scaleout_dqn(config: ScaleOutDQNConfig) -> Program:
    """DQN with rollout workers in ASYNC, or SYNC: double, n-step; experience and policies in stores of your choice."""
    return ScaleOutAgent(config, "topology.agents.scaleout.dqn:DQN").build("scaleout-dqn")


def scaleout(config: ScaleOutAgentConfig) -> Program:
    """Any agent (DQN, R2D2, IMPALA, DMPO, MADQN, yours) with rollout workers, SYNC or ASYNC, over stores you choose."""
    return ScaleOutAgent(config, "topology.agents.scaleout.agent_algorithm:AnyAgent").build("scaleout")


def restarts(config: ScaleOutSettings) -> Mapping[str, int]:
    """How often the nodes of each group may die and be started again: for launchers."""
    labels = ("trainer", "worker", *(["evaluator"] if config.evaluation_episodes else []))
    return dict.fromkeys(labels, config.max_restarts)


@final
class ScaleOutAgent(Generic[ConfigT]):
    """An algorithm scaled out. Its methods are what the nodes of its program run.

    Args:
        config: settings.
        algorithm: where its `Algorithm` is, "module:Class"; imported in the nodes.
        environment_factory: makes the environments instead of `config.environment`; travels to the nodes.

    Raises:
        ProgramError: there is no such environment, or it does not fit the algorithm.
    """

    def __init__(self, config: ConfigT, algorithm: str, environment_factory: EnvironmentFactory | None = None) -> None:
        self._config = config
        self._algorithm = algorithm
        self._environment_factory = environment_factory
        if isinstance(config, ScaleOutAgentConfig):
            self._spec = load_agent(config, environment_factory).spec
            return
        environment = make_environment(environment_factory or config.environment, seed=0)
        self._spec = make_environment_spec(environment)
        environment.close()
        num_discrete_actions(self._spec, agent=algorithm.partition(":")[2])

    # --- graph -------------------------------------------------------------------------------------------------------

    def build(self, name: str) -> Program:
        """The graph: where experience waits if that is a node, the trainer, the workers, the evaluator."""
        program = lp.Program(name)
        memory = self._make_memory_node()
        if memory is not None:
            with program.group("memory"):
                memory = program.add_node(memory)
        with program.group("trainer"):
            trainer = program.add_node(lp.CourierNode(self.trainer, memory))
        with program.group("worker"):
            for index in range(self._config.num_workers):
                program.add_node(lp.PyClassNode(functools.partial(self.worker, index), trainer, memory))
        if self._config.evaluation_episodes:
            with program.group("evaluator"):
                program.add_node(lp.PyClassNode(self.evaluator, trainer))
        return program

    def _make_memory_node(self) -> Any:
        from topology.agents.scaleout.stores import REPLAY_NAME
        from topology.nodes.store.memory_replay import memory_tables
        from topology.nodes.store.node import MemoryNode

        most = self._config.memory_max_steps
        if self._config.memory_backend == "replay":
            return lp.ReverbNode(functools.partial(memory_tables, REPLAY_NAME, max_steps=most))
        return MemoryNode(max_steps=most) if self._config.memory_backend == "local" else None

    # --- nodes -------------------------------------------------------------------------------------------------------

    @patience_ends()
    def trainer(self, memory: Any) -> Trainer:
        """Makes the trainer, which takes up what was saved last."""
        self._prepare(accelerator=True)
        from topology.agents.scaleout.intake import Intake
        from topology.agents.scaleout.saving import PolicySaver
        from topology.agents.scaleout.stores import has_trained, open_memory, open_policies, run_name
        from topology.agents.scaleout.trainer import Reporter, Trainer
        from topology.agents.scaleout.training import AsyncTraining, SyncTraining
        from topology.agents.scaleout.training_base import Training
        from topology.nodes.store.rounds import RoundLedger, RoundService

        context, config = get_context(), self._config
        learner = self._make_algorithm().make_learner(context.seed)
        saver = PolicySaver(open_policies(config, context), learner, run=run_name(context), take_over=config.take_over)
        backend = open_memory(config, context, memory)
        trained_before = has_trained(context)
        reporter = Reporter(make_writer(context), config.max_steps)
        rounds: RoundService | None = None
        training: Training
        if config.synchronization is Synchronization.SYNC:
            rounds = RoundService(RoundLedger(config.round_plan, config.share_timeout_s))
            training = SyncTraining(memory=backend, saver=saver, learner=learner, rounds=rounds)
        else:
            training = AsyncTraining(
                memory=backend,
                saver=saver,
                learner=learner,
                intake=Intake(config.max_staleness),
                save_s=config.save_s,
                max_unsaved_steps=max(1, config.memory_max_steps // 2),
                on_reception=reporter.received,
            )
        return Trainer(
            training=training,
            learner=learner,
            rounds=rounds,
            reporter=reporter,
            max_steps=config.max_steps,
            stops_program=not config.evaluation_episodes,
            report=functools.partial(print, flush=True),
            stop=context.stop,
            has_trained=trained_before,
        )

    @patience_ends()
    def worker(self, index: int, trainer: Any, memory: Any) -> SyncWorker | AsyncWorker:
        """Makes a rollout worker."""
        self._prepare()
        from topology.agents.scaleout.stores import open_memory, open_policies
        from topology.agents.scaleout.workers import AsyncWorker, PolicyFollower, SyncWorker, WorkerParts

        context, config = get_context(), self._config
        session = secrets.token_hex(8)
        store = open_policies(config, context)
        follower = PolicyFollower(store)
        sync = config.synchronization is Synchronization.SYNC
        # A worker that is started again goes on elsewhere: it would play the beginning of its last life once more.
        seed = derive_seed(context.seed, config.seed, max(0, store.newest() + 1))
        cast = self._make_algorithm().make_worker(
            index,
            seed=seed,
            follow=None if sync else functools.partial(_load_newer, follower),
            should_stop=context.stop.is_set,
        )
        parts = WorkerParts(
            name=context.name,
            session=session,
            player=cast.player,
            acting=cast.acting,
            make_columns=cast.make_columns,
            memory=open_memory(config, context, memory),
            store=store,
            trainer=trainer,
            metrics=make_writer(context),
            stop=context.stop,
        )
        return SyncWorker(parts) if sync else AsyncWorker(parts, follower, config.share_steps)

    @patience_ends()
    def evaluator(self, trainer: Any) -> PolicyEvaluator:
        """Makes the evaluator."""
        self._prepare()
        from topology.agents.scaleout.evaluator import PolicyEvaluator
        from topology.agents.scaleout.stores import open_policies

        context, config = get_context(), self._config
        cast = self._make_algorithm().make_evaluation(
            seed=derive_seed(context.seed, config.seed), should_stop=context.stop.is_set
        )
        return PolicyEvaluator(
            player=cast.player,
            acting=cast.acting,
            store=open_policies(config, context),
            trainer=trainer,
            period_s=config.evaluation_period_s,
            episodes=config.evaluation_episodes,
            final_episodes=config.final_evaluation_episodes,
            target_return=config.target_return,
            metrics=make_writer(context),
            report=functools.partial(print, flush=True),
            stop=context.stop,
        )

    # --- parts -------------------------------------------------------------------------------------------------------

    def _make_algorithm(self) -> Algorithm[ConfigT]:
        module, _, name = self._algorithm.partition(":")
        kind = getattr(importlib.import_module(module), name)
        algorithm: Algorithm[ConfigT] = kind(self._config, self._spec, self._environment_factory)
        return algorithm

    def _prepare(self, *, accelerator: bool = False) -> None:
        from topology.agents.core.devices import prepare_jax

        prepare_jax(get_context(), accelerator=accelerator)


def _load_newer(follower: Any, acting: Any) -> None:
    if (policy := follower.take()) is not None:
        acting.load(policy)
